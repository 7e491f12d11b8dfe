"""The whole search of one segment for a few queries, in one compiled call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import kernel
from flowhash.table.distance_metrics import scale_queries
from flowhash.table.search.bucket_plan import pair_few
from flowhash.table.search.rerank import deliver, measure, settle, spare_room
from flowhash.table.search.scan import CandidateHeaps, scan
from flowhash.table.segments.arrays import look_up

SMALL_BATCH = 16  # pairs of query and bucket that one compiled call does best


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
