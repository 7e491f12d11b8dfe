"""From an engine's candidates to exact answers.

Engines compute distances in float32. What they return is measured again in float64, as the table
does, and a list is cut only where float32 cannot have hidden anything behind its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import kernel
from flowhash.table import METRICS, STRING, Hits, exact_distance, string_ids

SPARE = 2  # rows that are asked for beyond the wanted ones, so that few lists are asked for twice
GROWTH = 4  # how much longer a list is asked for that float32 could not cut
ROUNDING = 2.0**-24  # the most that one float32 operation is off, as a share of its result
LOST = 2.0**-120  # more than products of small numbers lose, each


@dataclass(frozen=True, eq=False)
class EngineCandidates:
    """Rows that may be hits, of several queries.

    Attributes:
        queries: the query of each [m] int64.
        ids: whole numbers [m] int64, or strings [m] object.
        embeddings: [m, dim] float32; of no row once all are measured.
        payloads: of each, or None where they are not wanted.
        codes: the buckets of each, ascending, then -1 [m, k] int32, or None where they are not
            wanted.
    """

    queries: NDArray[np.int64]
    ids: NDArray[Any]
    embeddings: NDArray[np.float32]
    payloads: Sequence[dict[str, Any] | None] | None = None
    codes: NDArray[np.int32] | None = None


@kernel
def _measure(
    metric: int,
    asked: NDArray[np.float32],
    queries: NDArray[np.int64],
    embeddings: NDArray[np.float32],
) -> NDArray[np.float64]:
    distances = np.empty(queries.shape[0])
    for row in range(queries.shape[0]):
        distances[row] = exact_distance(metric, embeddings[row : row + 1], asked, queries[row])
    return distances


def exact_distances(
    metric: str, asked: NDArray[np.float32], candidates: EngineCandidates
) -> NDArray[np.float64]:
    """The distance of each candidate from its query [m]."""
    return _measure(METRICS[metric], asked, candidates.queries, candidates.embeddings)


def ranked(
    candidates: EngineCandidates,
    distances: NDArray[np.float64],
    kind: str,
    count: int,
    top: int,
    scanned: NDArray[np.int64],
    opened: NDArray[np.int32],
) -> tuple[Hits, NDArray[np.float64]]:
    """The ``top`` nearest candidates of each query, each item once, equal distances by their ids.

    Args:
        candidates: of all queries; an item may be there once for each of its buckets.
        distances: of :func:`exact_distances` [m].
        kind: of the ids.
        count: how many queries there are.
        top: hits of each.
        scanned: what becomes of ``Hits.scanned`` [count].
        opened: what becomes of ``Hits.opened`` [count].

    Returns:
        The answer, and the exact distance of each query's last wanted hit, infinite where it has
        fewer than ``top`` [count].
    """
    strings = kind == STRING
    keys = string_ids(candidates.ids).keys if strings else candidates.ids
    order = np.lexsort((keys, distances, candidates.queries))
    queries, ids = candidates.queries[order], candidates.ids[order]
    again = np.zeros(len(order), bool)
    again[1:] = (queries[1:] == queries[:-1]) & (ids[1:] == ids[:-1])
    order, queries, ids = order[~again], queries[~again], ids[~again]
    places = np.arange(len(order)) - np.searchsorted(queries, queries)
    kept = places < top
    order, queries, ids, places = order[kept], queries[kept], ids[kept], places[kept]
    answer = Hits(
        np.full((count, top), None if strings else -1, object if strings else np.int64),
        np.full((count, top), np.inf, np.float32),
        np.bincount(queries, minlength=count).astype(np.int64),
        scanned,
        opened,
    )
    answer.ids[queries, places] = ids
    answer.distances[queries, places] = distances[order]
    if candidates.payloads is not None:
        texts = [candidates.payloads[row] for row in order.tolist()]
        starts = [0, *np.cumsum(answer.counts).tolist()]
        answer.payloads = [texts[a:b] for a, b in pairwise(starts)]
    if candidates.codes is not None:
        answer.buckets = np.full((count, top, candidates.codes.shape[1]), -1, np.int32)
        answer.buckets[queries, places] = candidates.codes[order]
    worst = np.full(count, np.inf)
    last = places == top - 1
    worst[queries[last]] = distances[order[last]]
    return answer, worst


def least_possible(
    metric: str, dim: int, last: NDArray[np.float64], lengths: NDArray[np.float64], largest: float
) -> NDArray[np.float64]:
    """The least exact distance of what an engine ranked behind a row.

    Args:
        metric: of the table.
        dim: numbers in an embedding.
        last: the distance of that row in the engine's float32 [m].
        lengths: |q| of its query [m].
        largest: no embedding is longer.
    """
    share = (4 * dim + 16) * ROUNDING
    if metric == "euclidean":
        return last * (1.0 - share) - dim * LOST
    if metric == "cosine":
        return last - share
    return last - share * lengths * largest - dim * LOST
