"""The wall-clock of searches, beside FAISS's on the same vectors and as many threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import MissingExtraError
from flowhash.evaluate.comparison.methods import InvertedLists
from flowhash.extras import require
from flowhash.stopwatch import median_seconds
from flowhash.threads import available_threads

TOP = 16  # items that a timed search returns
TIMED = 10_000  # queries of a timing, at most
PAIRS = 2_000_000_000  # of query and item in a timing of exhaustive search, at most


def flat_seconds(database: NDArray[np.float32], queries: NDArray[np.float32]) -> float | None:
    """FAISS Flat's time for one query in a batch; None without FAISS."""
    with _faiss() as faiss:
        if faiss is None:
            return None
        index = faiss.IndexFlatL2(database.shape[1])
        index.add(np.ascontiguousarray(database, np.float32))
        count = max(1, min(TIMED, PAIRS // max(1, len(database))))
        asked = np.ascontiguousarray(queries[:count], np.float32)
        return median_seconds(lambda: index.search(asked, TOP)) / len(asked)


def lists_seconds(
    method: InvertedLists, database: NDArray[np.float32], queries: NDArray[np.float32]
) -> float | None:
    """FAISS's own inverted lists, with the method's centroids and lists opened; None without."""
    with _faiss() as faiss:
        if faiss is None or method.centroids is None or method.probe is None:
            return None
        quantiser = faiss.IndexFlatL2(database.shape[1])
        quantiser.add(method.centroids)
        index = faiss.IndexIVFFlat(quantiser, database.shape[1], len(method.centroids))
        index.is_trained = True
        index.add(np.ascontiguousarray(database, np.float32))
        index.nprobe = method.probe
        return median_seconds(lambda: index.search(queries, TOP)) / len(queries)


@contextlib.contextmanager
def _faiss() -> Iterator[Any]:
    """FAISS on as many threads as the table has, or None where it is not installed."""
    try:
        faiss = require("faiss", "evaluate")
    except MissingExtraError:
        yield None
        return
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(available_threads())
    try:
        yield faiss
    finally:
        faiss.omp_set_num_threads(before)
