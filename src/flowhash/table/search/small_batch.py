"""The answer of a search, and the whole search for a few queries in one compiled call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel, kernel
from flowhash.table.search.bucket_plan import pair_few
from flowhash.table.search.rerank import measure, settle
from flowhash.table.search.scan import CandidateHeaps, scan
from flowhash.table.segments.arrays import look_up
from flowhash.table.segments.builder import LARGEST_SQUARE, SMALLEST_SQUARE, square
from flowhash.table.settings import COSINE

SMALL_BATCH = 16  # pairs of query and bucket that one compiled call does best


class RawHits(NamedTuple):
    """The nearest rows of each query.

    Places, distances and keys are [q, top], counts, scanned and opened (buckets) [q].
    """

    places: NDArray[np.int64]
    distances: NDArray[np.float32]
    keys: NDArray[np.int64]
    counts: NDArray[np.int64]
    scanned: NDArray[np.int64]
    opened: NDArray[np.int32]


def empty_found(queries: int, top: int) -> RawHits:
    """Room for an answer."""
    return RawHits(
        np.empty((queries, top), np.int64),
        np.empty((queries, top), np.float32),
        np.empty((queries, top), np.int64),
        np.empty(queries, np.int64),
        np.empty(queries, np.int64),
        np.empty(queries, np.int32),
    )


@inner_kernel
def spare_room(top: int) -> int:
    """How many candidates a query keeps in a coarse scan; the spare ones let the proof succeed."""
    return top + max(16, top // 4)


@inner_kernel
def scale_queries(metric: int, queries: NDArray[np.float32], scaled: NDArray[np.float32]) -> int:
    """Copy queries for a scan, of length 1 for COSINE; the first that cannot be used, or -1."""
    for query in range(queries.shape[0]):
        length = np.float64(square(queries, query))
        if not length <= LARGEST_SQUARE or (metric == COSINE and not length >= SMALLEST_SQUARE):
            return query
        factor = np.float32(1.0 / np.sqrt(length) if metric == COSINE else 1.0)
        for column in range(queries.shape[1]):
            scaled[query, column] = queries[query, column] * factor
    return -1


@kernel
def search_few(
    noted: NDArray[np.int64],
    metric: int,
    order: NDArray[np.int32],
    queries: NDArray[np.float32],
    probe: int,
    largest: float,
    residual: float,
    fine: bool,
    places: NDArray[np.int64],
    distances: NDArray[np.float32],
    keys: NDArray[np.int64],
    counts: NDArray[np.int64],
    scanned: NDArray[np.int64],
) -> tuple[bool, int, bool]:
    """Search one segment for a few queries, all in one call; the last five arrays are the answer.

    Returns:
        Whether the arguments can be used; -1 or what is wrong with the file; whether all queries
        are proven.
    """
    segment, allowed = look_up(noted)
    count, top = distances.shape
    room = spare_room(top)
    found = CandidateHeaps(
        np.empty((count, room), np.float32),
        np.empty((count, room), np.int64),
        np.zeros(count, np.int32),
        np.full(count, -np.inf, np.float32),
        scanned,
        np.zeros(count, np.uint8),
    )
    scaled = np.empty_like(queries)
    pair_queries = np.empty(count * probe, np.int32)
    turns = np.empty(count * probe, np.int32)
    proven = np.empty(count, np.uint8)
    if scale_queries(metric, queries, scaled) != -1 or not pair_few(
        order, probe, segment.offsets.shape[0] - 1, pair_queries, turns
    ):
        return False, -1, False
    sequence = np.arange(count, dtype=np.int32)
    for query in range(count):
        scanned[query] = 0
    fault = scan(segment, 0, allowed, metric, scaled, order, pair_queries, turns, 0,
                 count * probe, fine, found)  # fmt: skip
    if fault != -1:
        return True, fault, False
    exact = np.empty((count, room))
    ids = np.empty((count, room), np.int64)
    ranks = np.empty((count, room), np.int32)
    line = np.empty((1, queries.shape[1]), np.float32)
    fault = measure(segment, 0, metric, queries, found, sequence, top, largest, residual, line,
                    exact, ids)  # fmt: skip
    if fault != -1:
        return True, fault, False
    settle(metric, queries, largest, residual, found, sequence, exact, ids, top, ranks, proven)
    deliver(found, sequence, exact, ids, ranks, places, distances, keys, counts)
    sure = True
    for query in range(count):
        sure &= proven[query] == 1
    return True, -1, sure


@inner_kernel
def deliver(
    found: CandidateHeaps,
    sequence: NDArray[np.int32],
    exact: NDArray[np.float64],
    ids: NDArray[np.int64],
    ranks: NDArray[np.int32],
    places: NDArray[np.int64],
    distances: NDArray[np.float32],
    keys: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Copy the ranked candidates to the answer and pad what is not filled."""
    top = places.shape[1]
    for query in sequence:
        filled = min(top, found.filled[query])
        counts[query] = filled
        for index in range(filled):
            candidate = ranks[query, index]
            places[query, index] = found.places[query, candidate]
            distances[query, index] = exact[query, candidate]
            keys[query, index] = ids[query, candidate]
        for index in range(filled, top):
            places[query, index] = -1
            distances[query, index] = np.inf
            keys[query, index] = -1
