"""Rerank: exact distances of candidates, the proof that none is missing, and their order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel, kernel, prefetch, prefetch_item
from flowhash.table.distance_metrics import affinity_distance, error_bound, exact_distance
from flowhash.table.search.scan import LINE, ROW_BITS, ROW_MASK, CandidateHeaps
from flowhash.table.segments.arrays import (
    BROKEN,
    Arrays,
    copy_embedding,
    damaged_code,
    damaged_id,
    damaged_postings,
    damaged_rows,
    least_bucket,
)

COMPARED = 256  # candidates that are compared with each other before they are looked up
NOBODY = np.iinfo(np.int64).max  # instead of an id, where it is not looked up
INSERTION_SORTED = 256  # candidates, almost in order, that are sorted fastest by insertion


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


def empty_hits(queries: int, top: int) -> RawHits:
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
def query_length(queries: NDArray[np.float32], query: int) -> float:
    """|q|."""
    total = np.float64(0.0)
    for column in range(queries.shape[1]):
        total += np.float64(queries[query, column]) ** 2
    return np.sqrt(total)


@inner_kernel
def sort_candidates(
    found: CandidateHeaps,
    sequence: NDArray[np.int32],
    scratch: NDArray[np.float64],
    places: NDArray[np.int64],
) -> None:
    """Put the candidates of each query in ascending order of affinity, which is a heap as well.

    They are few: counting how many are smaller needs no branch. ``scratch`` and ``places`` are
    scratch space [q, c]. More than COMPARED stay as they are.
    """
    for query in sequence:
        size = found.filled[query]
        if size > COMPARED:
            continue
        for index in range(size):
            places[query, index] = -1
        for index in range(size):
            affinity = found.affinities[query, index]
            rank = 0
            for other in range(size):
                rank += found.affinities[query, other] < affinity
            while places[query, rank] >= 0:  # one that is equal
                rank += 1
            scratch[query, rank] = affinity
            places[query, rank] = found.places[query, index]
        for index in range(size):
            found.affinities[query, index] = scratch[query, index]
            found.places[query, index] = places[query, index]


@inner_kernel
def measure(
    segment: Arrays,
    number: int,
    metric: int,
    queries: NDArray[np.float32],
    found: CandidateHeaps,
    sequence: NDArray[np.int32],
    top: int,
    largest: float,
    residual: float,
    line: NDArray[np.float32],
    distances: NDArray[np.float64],
    keys: NDArray[np.int64],
) -> int:
    """Exact distances and ids of the candidates that lie in this segment, after they were sorted.

    The best ``top`` by affinity come first. The farthest of them, exactly where it is in this
    segment and at the most where it is not, is as far as any of the nearest ``top`` can be.
    Candidates that are farther at the least are not looked up; they get an infinite distance. The
    queries of one bucket should follow each other in ``sequence``, because their candidates lie
    together. ``line`` is scratch space for an embedding [1, dim]; ``distances`` and ``keys``
    receive what belongs to each candidate [q, c].

    Returns:
        -1, or the block that is damaged, or BROKEN.
    """
    for query in sequence:
        size = found.filled[query]
        if size == 0:
            continue
        first = max(0, size - top) if size <= COMPARED else 0
        length = query_length(queries, query)
        rest = residual if found.coarse[query] else 0.0
        bound = error_bound(metric, queries.shape[1], length, largest, rest)
        reached = (
            affinity_distance(metric, found.affinities[query, first], length) if first else 0.0
        )
        for index in range(size - 1, -1, -1):  # they lie far apart: fetch them side by side
            if index < first:
                away = affinity_distance(metric, found.affinities[query, index], length)
                if away - bound > reached:  # about where the search ends below
                    break
            place = found.places[query, index]
            if place >> ROW_BITS == number:
                row = place & ROW_MASK
                prefetch_item(segment.ids, row)
                for column in range(0, segment.highs.shape[1], LINE):
                    prefetch(segment.highs, row, column)
                    prefetch(segment.lows, row, column)
        farthest = -np.inf
        for index in range(size - 1, -1, -1):
            away = affinity_distance(metric, found.affinities[query, index], length)
            place = found.places[query, index]
            if place >> ROW_BITS != number:
                if index >= first:
                    farthest = max(farthest, away + bound)
                continue
            distances[query, index] = np.inf
            keys[query, index] = NOBODY
            if index < first and away - bound > farthest:
                continue
            row = place & ROW_MASK
            fault = damaged_rows(segment, row, row + 1, False)
            if fault != -1:
                return fault
            copy_embedding(segment.highs, segment.lows, row, line, 0)
            away = exact_distance(metric, line, queries, query)
            if not np.isfinite(away):
                return BROKEN
            distances[query, index] = away
            if index >= first:
                farthest = max(farthest, away)
            elif away > farthest:  # none of the nearest: nobody asks for its id
                continue
            fault = damaged_id(segment, row)
            if fault != -1:
                return fault
            keys[query, index] = segment.ids[row]
    return -1


@inner_kernel
def settle(
    metric: int,
    queries: NDArray[np.float32],
    largest: float,
    residual: float,
    found: CandidateHeaps,
    sequence: NDArray[np.int32],
    distances: NDArray[np.float64],
    keys: NDArray[np.int64],
    top: int,
    ranks: NDArray[np.int32],
    proven: NDArray[np.uint8],
) -> None:
    """Rank the candidates of each query in ``sequence``; say whether its first ``top`` are proven.

    All rows that are not candidates have an affinity of at most ``limit``, so their exact distance
    is at least what ``limit`` stands for, less the error. If the last of the first ``top`` is
    strictly nearer, no other row can take its place.
    """
    room = distances.shape[1]
    for query in sequence:
        size = found.filled[query]
        limit = np.float64(found.dropped[query])
        if size == room:
            limit = max(limit, np.float64(found.affinities[query, 0]))
        rank(distances, keys, query, size, ranks)
        if limit == -np.inf:
            proven[query] = 1
            continue
        length = query_length(queries, query)
        nearest = affinity_distance(metric, limit, length)
        rest = residual if found.coarse[query] else 0.0
        nearest -= error_bound(metric, queries.shape[1], length, largest, rest)
        proven[query] = size >= top and distances[query, ranks[query, top - 1]] < nearest


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


@kernel
def scan_exactly(
    segment: Arrays,
    number: int,
    allowed: NDArray[np.uint8],
    metric: int,
    queries: NDArray[np.float32],
    query: int,
    opened: NDArray[np.int32],
    best: int,
    size: int,
    distances: NDArray[np.float64],
    keys: NDArray[np.int64],
    places: NDArray[np.int64],
) -> tuple[int, int]:
    """Scan the opened buckets of one query in float64 into a list of the ``best`` nearest.

    For the few queries whose nearest rows are too close together for float32 to tell apart.

    Returns:
        How many rows the list has now, and -1 or what is wrong.
    """
    buckets = segment.offsets.shape[0] - 1
    seen = np.zeros(buckets + 1, np.uint8)  # the last is that of -1
    least = least_bucket(segment)
    line = np.empty((1, queries.shape[1]), np.float32)
    listed = segment.postings.shape[0] > 0
    for bucket in opened:
        start, stop = segment.offsets[bucket], segment.offsets[bucket + 1]
        fault = damaged_postings(segment, start, stop)
        if fault != -1:
            return size, fault
        for entry in range(start, stop):
            row = np.int64(segment.postings[entry] if listed else entry)
            if row < 0 or row >= segment.norms.shape[0]:
                return size, BROKEN
            fault = max(damaged_rows(segment, row, row + 1, False), damaged_id(segment, row))
            fault = max(fault, damaged_code(segment, row))
            if fault != -1:
                return size, fault
            if allowed.shape[0] > 0 and allowed[row] == 0:
                continue
            known = 0
            for column in range(segment.codes.shape[1] if listed else 0):
                other = segment.codes[row, column]
                if other < least or other >= buckets:
                    return size, BROKEN
                known |= seen[other]
            if known == 0:
                copy_embedding(segment.highs, segment.lows, row, line, 0)
                away = exact_distance(metric, line, queries, query)
                if not np.isfinite(away):
                    return size, BROKEN
                place = (np.int64(number) << ROW_BITS) | row
                size = keep(away, segment.ids[row], place, best, size, distances, keys, places)
        seen[bucket] = 1
    return size, -1


@inner_kernel
def keep(
    away: float, key: int, place: int, best: int, size: int,
    distances: NDArray[np.float64], keys: NDArray[np.int64], places: NDArray[np.int64],
) -> int:  # fmt: skip
    """Put a row into the sorted list of the ``best`` nearest, if it belongs there; its new length.

    One place behind the list is scratch space, for a row that does not belong there.
    """
    index = size
    while index > 0 and (
        away < distances[0, index - 1]
        or (away == distances[0, index - 1] and key < keys[0, index - 1])
    ):
        distances[0, index] = distances[0, index - 1]
        keys[0, index] = keys[0, index - 1]
        places[0, index] = places[0, index - 1]
        index -= 1
    distances[0, index] = away
    keys[0, index] = key
    places[0, index] = place
    return min(size + 1, best)


@inner_kernel
def comes_before(
    distances: NDArray[np.float64], keys: NDArray[np.int64], query: int, one: int, two: int
) -> bool:
    """Whether candidate ``one`` of a query ranks before candidate ``two``."""
    if distances[query, one] != distances[query, two]:
        return distances[query, one] < distances[query, two]
    return keys[query, one] < keys[query, two]


@inner_kernel
def sift(
    distances: NDArray[np.float64], keys: NDArray[np.int64], query: int,
    ranks: NDArray[np.int32], index: int, size: int,
) -> None:  # fmt: skip
    """Let a candidate sink in a heap of candidates whose top ranks last."""
    moving = ranks[query, index]
    while True:
        child = 2 * index + 1
        if child >= size:
            break
        if child + 1 < size and comes_before(
            distances, keys, query, ranks[query, child], ranks[query, child + 1]
        ):
            child += 1
        if not comes_before(distances, keys, query, moving, ranks[query, child]):
            break
        ranks[query, index] = ranks[query, child]
        index = child
    ranks[query, index] = moving


@inner_kernel
def rank(
    distances: NDArray[np.float64], keys: NDArray[np.int64], query: int, size: int,
    ranks: NDArray[np.int32],
) -> None:  # fmt: skip
    """The candidates of a query in their order into ``ranks``: by insertion, or by a heap."""
    for index in range(size):
        ranks[query, index] = size - 1 - index  # by affinity the last is the best
    if size <= INSERTION_SORTED:
        for index in range(1, size):
            candidate = ranks[query, index]
            place = index
            while place > 0 and comes_before(
                distances, keys, query, candidate, ranks[query, place - 1]
            ):
                ranks[query, place] = ranks[query, place - 1]
                place -= 1
            ranks[query, place] = candidate
        return
    for index in range(size // 2 - 1, -1, -1):
        sift(distances, keys, query, ranks, index, size)
    for end in range(size - 1, 0, -1):
        last = ranks[query, end]
        ranks[query, end] = ranks[query, 0]
        ranks[query, 0] = last
        sift(distances, keys, query, ranks, 0, end)
