"""FAISS on the same vectors: an index that scans everything, inverted lists, a graph; times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import MissingExtraError
from flowhash.evaluate.comparison.stopwatch import median_seconds
from flowhash.extras import require
from flowhash.threads import available_threads

TOP = 16  # items that a timed search returns
TIMED = 10_000  # queries of a timing, at most
FLAT_PAIRS = 2_000_000_000  # of query and item in a timing of exhaustive search, at most
LINKS, EFFORT = 16, 100  # of an item of HNSW's graph, and efConstruction


def flat_index(vectors: NDArray[np.float32], metric: str = "euclidean") -> Any:
    """FAISS Flat with these items [n, dim]; cosine takes vectors of length one.

    Raises:
        MissingExtraError: FAISS is not installed.
    """
    faiss = require("faiss", "evaluate")
    kind = faiss.METRIC_L2 if metric == "euclidean" else faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexFlat(vectors.shape[1], kind)
    index.add(np.ascontiguousarray(vectors, np.float32))
    return index


def list_index(centroids: NDArray[np.float32], metric: str = "euclidean") -> Any:
    """FAISS's inverted lists (IVFFlat), a list for each centroid [d, dim], still empty."""
    faiss = require("faiss", "evaluate")
    quantiser = flat_index(centroids, metric)
    return faiss.IndexIVFFlat(quantiser, quantiser.d, quantiser.ntotal, quantiser.metric_type)


def add_to_lists(index: Any, vectors: NDArray[np.float32], codes: NDArray[np.integer]) -> None:
    """Add items to given lists: each [n, dim] to the lists of its k buckets [n, k]."""
    swig_ptr = require("faiss", "evaluate").swig_ptr
    numbers = np.arange(len(vectors), dtype=np.int64)
    for column in codes.T:
        given = np.ascontiguousarray(column, np.int64)  # FAISS gets an address: keep the array
        index.add_core(len(vectors), swig_ptr(vectors), swig_ptr(numbers), swig_ptr(given), None)


def flat_seconds(database: NDArray[np.float32], queries: NDArray[np.float32]) -> float | None:
    """FAISS Flat's time for one query in a batch; None without FAISS."""
    count = max(1, min(TIMED, FLAT_PAIRS // max(1, len(database))))
    return _seconds(lambda: flat_index(database), queries[:count])


def lists_seconds(
    centroids: NDArray[np.float32],
    probe: int,
    database: NDArray[np.float32],
    queries: NDArray[np.float32],
) -> float | None:
    """FAISS's own inverted lists of these centroids, ``probe`` opened; None without FAISS."""

    def filled() -> Any:
        index = list_index(centroids)
        index.add(np.ascontiguousarray(database, np.float32))
        index.nprobe = probe
        return index

    return _seconds(filled, queries)


def _seconds(make: Callable[[], Any], queries: NDArray[np.float32]) -> float | None:
    """Of one query, on as many threads as the table has; None where FAISS is not installed."""
    try:
        faiss = require("faiss", "evaluate")
    except MissingExtraError:
        return None
    with _threads(faiss, available_threads()):
        index, asked = make(), np.ascontiguousarray(queries, np.float32)
        return median_seconds(lambda: index.search(asked, TOP)) / len(asked)


@contextmanager
def _threads(faiss: Any, count: int) -> Iterator[None]:
    """As many threads for FAISS; torch, which shares its OpenMP, has its own again behind it."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def graph_index(vectors: NDArray[np.float32]) -> Any:
    """FAISS's HNSW with these items [n, dim]; equal ones in equal order make the same graph."""
    faiss = require("faiss", "evaluate")
    with _threads(faiss, 1):  # several would make another graph each time
        index = faiss.IndexHNSWFlat(vectors.shape[1], LINKS)
        index.hnsw.efConstruction = EFFORT
        index.add(np.ascontiguousarray(vectors, np.float32))
    return index


def graph_answers(
    index: Any, queries: NDArray[np.float32], top: int, effort: int
) -> tuple[NDArray[np.int64], float]:
    """What HNSW finds with an efSearch.

    Returns:
        Positions of the nearest items [q, top], -1 where there are no more, and how many items
        were compared with a query on average, those of the upper levels included.
    """
    faiss = require("faiss", "evaluate")
    index.hnsw.efSearch = effort
    faiss.cvar.hnsw_stats.reset()
    with _threads(faiss, available_threads()):
        ids = index.search(np.ascontiguousarray(queries, np.float32), top)[1]
    return ids, faiss.cvar.hnsw_stats.ndis / len(queries)
