"""Which buckets each query opens, which queries share them, and that no row is seen twice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import empty, inner_kernel, kernel, zeros
from flowhash.table.segments.arrays import (
    BROKEN,
    Arrays,
    damaged_code,
    damaged_postings,
    least_bucket,
)
from flowhash.table.segments.segment import TableState
from flowhash.table.table_settings import TableSettings
from flowhash.threads import available_threads

WORK_PER_THREAD = 1 << 20  # numbers multiplied; below this a thread costs more than it brings


def open_until(
    settings: TableSettings,
    state: TableState,
    allowed_rows: Sequence[NDArray[np.uint8]],
    order: NDArray[np.int32],
    opened: NDArray[np.int32],
    at_least: int,
) -> None:
    """Let every query open further buckets until it has ``at_least`` items, or none is left."""
    sizes = bucket_sizes(settings, state, allowed_rows)
    reached = np.zeros(len(order), np.int64)
    asking = np.arange(len(order))
    counted = np.zeros_like(opened)
    first = order[:, : opened.max(initial=0)]
    held = np.where(np.arange(first.shape[1]) < opened[:, None], sizes[first], 0)
    if settings.active > 1 and len(order):  # one full bucket is enough, without counting unions
        asking = np.flatnonzero(held.max(axis=1) < at_least)
    if settings.active == 1:
        reached += held.sum(axis=1)
    while len(asking):
        if settings.active == 1:  # every round but the first opens one bucket more
            later = asking[counted[asking] > 0]
            reached[later] += sizes[order[later, opened[later] - 1]]
        else:
            for part, allowed in zip(state.parts, allowed_rows, strict=True):
                fault = add_fresh(
                    part.segment.arrays, allowed, order, asking, counted, opened, reached
                )
                part.segment.check(fault)
        counted[asking] = opened[asking]
        more = (reached[asking] < at_least) & (opened[asking] < order.shape[1])
        asking = asking[more]
        opened[asking] += 1


def bucket_sizes(
    settings: TableSettings, state: TableState, allowed_rows: Sequence[NDArray[np.uint8]]
) -> NDArray[np.int64]:
    """How many allowed rows each bucket has [d]."""
    sizes = np.zeros(settings.buckets, np.int64)
    for part, allowed in zip(state.parts, allowed_rows, strict=True):
        part.segment.check(add_bucket_sizes(part.segment.arrays, allowed, sizes))
    return sizes


@kernel
def first_wrong_bucket(order: NDArray[np.int32], opened: NDArray[np.int32], buckets: int) -> int:
    """The first query whose opened buckets are out of range or name one twice, or -1."""
    seen = empty(buckets, np.int64)
    for bucket in range(buckets):
        seen[bucket] = -1
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
    starts = zeros(buckets + 1, np.int64)
    for query in range(order.shape[0]):
        for turn in range(opened[query]):
            starts[order[query, turn] + 1] += 1
    for bucket in range(buckets):
        starts[bucket + 1] += starts[bucket]
    queries = empty(starts[buckets], np.int32)
    turns = empty(starts[buckets], np.int32)
    following = empty(buckets, np.int64)
    for bucket in range(buckets):
        following[bucket] = starts[bucket]
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


def shards_of(
    state: TableState, starts: NDArray[np.int64], dim: int, threads: int | None
) -> list[tuple[int, int]]:
    """Cut the pairs into ranges of about equal work, one for each thread."""
    pairs = int(starts[-1])
    sizes = np.zeros(len(starts) - 1, np.int64)
    for part in state.parts:
        sizes += np.diff(part.segment.arrays.offsets)
    work = np.repeat(sizes, np.diff(starts)).cumsum() * dim
    total = int(work[-1]) if pairs else 0
    most = available_threads() if threads is None else threads
    count = max(1, min(most, total // WORK_PER_THREAD))
    edges = np.searchsorted(work, [total * shard // count for shard in range(1, count)])
    cuts = [0, *edges.tolist(), pairs]
    return [(first, last) for first, last in pairwise(cuts) if first < last]


@kernel
def count_rows(offsets: NDArray[np.int64], order: NDArray[np.int32], probe: int) -> int:
    """How many rows the first ``probe`` buckets of one query have; wrong buckets count nothing."""
    rows = 0
    for turn in range(min(probe, order.shape[1])):
        bucket = order[0, turn]
        if 0 <= bucket < offsets.shape[0] - 1:
            rows += offsets[bucket + 1] - offsets[bucket]
    return rows


def pays_threads(work: int) -> bool:
    """Whether so many numbers to multiply are enough for two threads."""
    return work >= 2 * WORK_PER_THREAD


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

    ``queries`` says for whom, of all that ``order`` [q, m] has a line for. Each of those has its
    ``first`` turn, one past the ``last``, and in ``reached`` what is added to [q].

    Returns:
        -1, or what is wrong.
    """
    seen = np.zeros(segment.offsets.shape[0], np.uint8)  # the last is that of -1
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
    count, least = 0, least_bucket(segment)
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
            if other < least or other >= seen.shape[0] - 1:
                return count, BROKEN
            known |= seen[other]
        count += 1 - known
    return count, -1


@inner_kernel
def longest_run(
    order: NDArray[np.int32],
    pair_queries: NDArray[np.int32],
    pair_turns: NDArray[np.int32],
    first: int,
    last: int,
) -> int:
    """The most queries that open the same bucket."""
    longest = run = 0
    before = -1
    for pair in range(first, last):
        bucket = order[pair_queries[pair], pair_turns[pair]]
        run = run + 1 if bucket == before else 1
        before = bucket
        longest = max(longest, run)
    return longest


@inner_kernel
def mark(
    earlier: NDArray[np.uint8],
    flagged: NDArray[np.uint8],
    order: NDArray[np.int32],
    pair_queries: NDArray[np.int32],
    pair_turns: NDArray[np.int32],
    start: int,
    count: int,
    value: int,
) -> None:
    """Write ``value`` wherever one of ``count`` queries opened a bucket before this one (k > 1)."""
    for index in range(count if flagged.shape[0] > 0 else 0):
        query = pair_queries[start + index]
        for turn in range(pair_turns[start + index]):
            earlier[order[query, turn], index] = value
            flagged[order[query, turn]] = value


@inner_kernel
def line_of(bucket: int, lines: int) -> int:
    """The line of a code's bucket in an array with one for each and, the last, one for -1.

    Codes of a mapped file were in range when they were checked. Should it be written to later, they
    do not lead out of the array.
    """
    return int(min(np.uint32(bucket), np.uint32(lines - 1)))


@inner_kernel
def count_fresh(
    codes: NDArray[np.int32],
    rows: NDArray[np.int32],
    size: int,
    earlier: NDArray[np.uint8],
    flagged: NDArray[np.uint8],
    lanes: NDArray[np.int32],
    pair_queries: NDArray[np.int32],
    start: int,
    count: int,
    scanned: NDArray[np.int64],
) -> None:
    """Add the rows that no earlier bucket of a query had to what it scanned; all queries at once.

    ``earlier`` has 1 where a query opened a bucket before this one [d + 1, together], ``flagged``
    where any of the queries did [d + 1], without entries with k = 1. ``lanes`` is scratch space, of
    zeros [2, together]. The queries are those of ``count`` pairs from ``start`` on.
    """
    width = lanes.shape[1]
    for place in range(size if flagged.shape[0] > 0 else 0):
        row = rows[place]
        known = 0
        for column in range(codes.shape[1]):
            known |= flagged[line_of(codes[row, column], flagged.shape[0])]
        if known == 0:
            continue
        for column in range(codes.shape[1]):
            line = line_of(codes[row, column], flagged.shape[0])
            for lane in range(width):
                lanes[1, lane] |= earlier[line, lane]
        for lane in range(width):
            lanes[0, lane] += lanes[1, lane]
            lanes[1, lane] = 0
    for index in range(count):
        scanned[pair_queries[start + index]] += size - lanes[0, index]
        lanes[0, index] = 0
