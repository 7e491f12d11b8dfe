"""Which buckets each query opens, and who opens them together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel, kernel
from flowhash.table.arrays import Arrays, damaged_code, damaged_postings
from flowhash.table.gather import BROKEN


@kernel
def first_wrong_bucket(order: NDArray[np.int32], opened: NDArray[np.int32], buckets: int) -> int:
    """The first query whose opened buckets are out of range or name one twice, or -1."""
    seen = np.full(buckets, -1, np.int64)
    for query in range(order.shape[0]):
        for turn in range(opened[query]):
            bucket = order[query, turn]
            if bucket < 0 or bucket >= buckets or seen[bucket] == query:
                return query
            seen[bucket] = query
    return -1


@kernel
def pair_up(
    order: NDArray[np.int32], opened: NDArray[np.int32], buckets: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """All pairs of a query and a bucket that it opens, sorted by bucket (counting sort).

    Returns:
        The query of each pair, its turn in the query's order, and where each bucket's pairs
        start [d + 1].
    """
    starts = np.zeros(buckets + 1, np.int64)
    for query in range(order.shape[0]):
        for turn in range(opened[query]):
            starts[order[query, turn] + 1] += 1
    for bucket in range(buckets):
        starts[bucket + 1] += starts[bucket]
    queries = np.empty(starts[buckets], np.int32)
    turns = np.empty(starts[buckets], np.int32)
    following = starts[:-1].copy()
    for query in range(order.shape[0]):
        for turn in range(opened[query]):
            bucket = order[query, turn]
            pair = following[bucket]
            following[bucket] += 1
            queries[pair] = query
            turns[pair] = turn
    return queries, turns, starts


@inner_kernel
def pair_few(
    order: NDArray[np.int32],
    probe: int,
    buckets: int,
    queries: NDArray[np.int32],
    turns: NDArray[np.int32],
) -> bool:
    """Like :func:`pair_up` for a few pairs, into given arrays; False if a bucket is wrong."""
    count = 0
    for query in range(order.shape[0]):
        for turn in range(probe):
            bucket = order[query, turn]
            if bucket < 0 or bucket >= buckets:
                return False
            for before in range(turn):
                if order[query, before] == bucket:
                    return False
            place = count
            while place > 0 and order[queries[place - 1], turns[place - 1]] > bucket:
                queries[place] = queries[place - 1]
                turns[place] = turns[place - 1]
                place -= 1
            queries[place] = query
            turns[place] = turn
            count += 1
    return True


@kernel
def add_bucket_sizes(segment: Arrays, allowed: NDArray[np.uint8], sizes: NDArray[np.int64]) -> int:
    """Add how many allowed rows each bucket has to ``sizes`` [d]; -1, or what is wrong."""
    if allowed.shape[0] == 0:
        for bucket in range(sizes.shape[0]):
            sizes[bucket] += segment.offsets[bucket + 1] - segment.offsets[bucket]
        return -1
    fault = damaged_postings(segment, 0, segment.postings.shape[0])
    if fault != -1:
        return fault
    for bucket in range(sizes.shape[0]):
        for entry in range(segment.offsets[bucket], segment.offsets[bucket + 1]):
            row = segment.postings[entry] if segment.postings.shape[0] > 0 else entry
            if row < 0 or row >= allowed.shape[0]:
                return BROKEN
            sizes[bucket] += allowed[row]
    return -1


@kernel
def add_fresh(
    segment: Arrays,
    allowed: NDArray[np.uint8],
    order: NDArray[np.int32],
    queries: NDArray[np.int64],
    first: NDArray[np.int32],
    last: NDArray[np.int32],
    reached: NDArray[np.int64],
) -> int:
    """Add the rows that a query's buckets first to last have and its earlier ones do not (k > 1).

    Args:
        segment: where to count.
        allowed: 1 for rows that may be found; empty if all may.
        order: the buckets of each query in its order [q, m].
        queries: whom to count for.
        first: the turn to start from, one for each query of ``order`` [q].
        last: one past the last turn [q].
        reached: what is added to [q].

    Returns:
        -1, or what is wrong.
    """
    buckets = segment.offsets.shape[0] - 1
    seen = np.zeros(buckets, np.uint8)
    for query in queries:
        for turn in range(last[query]):
            if turn >= first[query]:
                count, fault = count_unseen(segment, allowed, order[query, turn], seen)
                if fault != -1:
                    return fault
                reached[query] += count
            seen[order[query, turn]] = 1
        for turn in range(last[query]):
            seen[order[query, turn]] = 0
    return -1


@inner_kernel
def count_unseen(
    segment: Arrays, allowed: NDArray[np.uint8], bucket: int, seen: NDArray[np.uint8]
) -> tuple[int, int]:
    """How many allowed rows of a bucket have no bucket that was seen; and -1 or what is wrong."""
    count = 0
    start, stop = segment.offsets[bucket], segment.offsets[bucket + 1]
    fault = damaged_postings(segment, start, stop)
    if fault != -1:
        return count, fault
    for entry in range(start, stop):
        row = segment.postings[entry]
        if row < 0 or row >= segment.codes.shape[0]:
            return count, BROKEN
        if allowed.shape[0] > 0 and allowed[row] == 0:
            continue
        fault = damaged_code(segment, row)
        if fault != -1:
            return count, fault
        known = 0
        for column in range(segment.codes.shape[1]):
            other = segment.codes[row, column]
            if other < 0 or other >= seen.shape[0]:
                return count, BROKEN
            known |= seen[other]
        count += 1 - known
    return count, -1
