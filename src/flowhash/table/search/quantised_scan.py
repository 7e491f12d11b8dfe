"""The quantised scan: which rows of a bucket are worth reading, told by one byte for each number.

An inner product with the quantised plane is wrong by at most what the steps leave out of the row,
and of the query, times the length of the other: each row has an affinity that it does not exceed.
Only rows that may be among the nearest by that are read and measured in float64, at once; what is
kept are exact distances. So there is nothing to prove afterwards, and nothing to search again: the
rows that were not read are farther away, and ties are among those that were.

A query is scanned alone, its nearest bucket first, after which few rows are worth reading.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import high_to_float, inner_kernel, kernel, prefetch, prefetch_item
from flowhash.table.distance_metrics import (
    COSINE,
    EUCLIDEAN,
    affinity_distance,
    error_bound,
    exact_distance,
    scale_queries,
)
from flowhash.table.search.rerank import keep, query_length
from flowhash.table.search.scan import AHEAD, LINE, ROW_BITS, reaching
from flowhash.table.search.step_products import PADDED, TOGETHER, lay_out, multiply
from flowhash.table.segments.arrays import (
    BROKEN,
    NORMS,
    QUANTA,
    QUANTISED,
    Arrays,
    copy_embedding,
    damaged_code,
    damaged_id,
    damaged_plane,
    damaged_postings,
    damaged_rows,
    least_bucket,
    look_up,
)
from flowhash.table.segments.quantised_plane import TINY
from flowhash.top_values import group_count, group_maxima, reached_by

CHUNK = 4096  # rows whose affinities are looked at together
FAR = 3 << 12  # bytes of rows to fetch before they are needed, where they follow each other
BYTES = 64  # of a row that memory delivers at once
MOST_STEPS = 32767.0  # of a number of the query
# Of all numbers of the query together, so that 127 times as many stay below 2^31.
ALL_STEPS = 16_900_000.0


@kernel
def scan_quantised(
    noted: NDArray[np.int64],
    number: int,
    metric: int,
    order: NDArray[np.int32],
    opened: NDArray[np.int32],
    queries: NDArray[np.float32],
    first: int,
    last: int,
    top: int,
    largest: float,
    exact: NDArray[np.float64],
    ids: NDArray[np.int64],
    rows_of: NDArray[np.int64],
    places: NDArray[np.int64],
    distances: NDArray[np.float32],
    keys: NDArray[np.int64],
    counts: NDArray[np.int64],
    scanned: NDArray[np.int64],
) -> tuple[bool, int]:
    """Scan the opened buckets of queries ``first`` to ``last`` in one segment; all arrays grow.

    ``exact``, ``ids`` and ``rows_of`` have the nearest rows of the segments before, and of this one
    afterwards [q, top + 1]; ``counts`` has how many, ``scanned`` how many rows were met. The other
    three are the answer so far [q, top].

    Returns:
        Whether the arguments can be used; -1 or what is wrong with the file.
    """
    segment, allowed = look_up(noted)
    dim, buckets = queries.shape[1], segment.offsets.shape[0] - 1
    seen = np.zeros(buckets + 1, np.uint8)  # the last is that of -1
    rows = np.empty(CHUNK, np.int32)
    affinities = np.empty(CHUNK, np.float32)
    maxima = np.empty(group_count(CHUNK), np.float32)
    chosen = np.empty(CHUNK + group_count(CHUNK) + 1, np.int32)
    promising = np.empty(top, np.float32)
    scaled = np.empty((1, dim), np.float32)
    whole = np.empty(dim, np.int16)
    padded = np.empty(dim + PADDED, np.int16)
    line = np.empty((1, dim), np.float32)
    for query in range(first, last):
        if scale_queries(metric, queries[query : query + 1], scaled) != -1:
            return False, -1
        length = query_length(scaled, 0)
        step, rest = quantise_query(scaled, whole)
        lay_out(whole, dim, padded)
        size = counts[query]
        bound = looseness(metric, dim, length, rest, largest)
        usable, fault = True, -1
        for turn in range(opened[query]):
            bucket = order[query, turn]
            usable = 0 <= bucket < buckets and seen[bucket] == 0
            if not usable:
                break
            entry, stop = segment.offsets[bucket], segment.offsets[bucket + 1]
            while entry < stop and fault == -1:
                base, entry, count, fault = list_rows(segment, allowed, seen, entry, stop, rows)
                if fault == -1 and count > 0:
                    scanned[query] += count
                    following = entry
                    if entry == stop and turn + 1 < opened[query]:
                        following = start_of(segment, order[query, turn + 1])
                    multiply_steps(segment, base, rows, count, following, padded, affinities)
                    to_upper(metric, segment, base, rows, count, step, length + rest, affinities)
                    size, fault = measure_reaching(
                        segment, number, metric, base, rows, affinities[:count], maxima, chosen,
                        promising, queries, query, length, bound, top, size, line,
                        exact[query : query + 1], ids[query : query + 1],
                        rows_of[query : query + 1],
                    )  # fmt: skip
            if fault != -1:
                return True, fault
            seen[bucket] = 1
        for turn in range(opened[query]):
            if 0 <= order[query, turn] < buckets:
                seen[order[query, turn]] = 0
        if not usable:
            return False, -1
        counts[query] = size
        for index in range(top):
            filled = index < size
            places[query, index] = rows_of[query, index] if filled else -1
            distances[query, index] = exact[query, index] if filled else np.inf
            keys[query, index] = ids[query, index] if filled else -1
    return True, -1


@inner_kernel
def start_of(segment: Arrays, bucket: int) -> int:
    """The first entry of a bucket; of a wrong one, which is refused later, any."""
    return segment.offsets[min(max(bucket, 0), segment.offsets.shape[0] - 1)]


@inner_kernel
def quantise_query(scaled: NDArray[np.float32], whole: NDArray[np.int16]) -> tuple[float, float]:
    """Write a query in whole steps; the step, and a length that what they leave out is below."""
    dim = scaled.shape[1]
    largest = total = 0.0
    for column in range(dim):
        value = abs(np.float64(scaled[0, column]))
        largest = max(largest, value)
        total += value
    step = 0.0
    if largest >= TINY:
        step = np.float64(np.float32(max(largest / MOST_STEPS, total / (ALL_STEPS - dim)) * 1.0001))
    factor = 1.0 / step if step > 0.0 else 0.0
    left = 0.0
    for column in range(dim):
        value = np.float64(scaled[0, column])
        steps = np.rint(value * factor)
        whole[column] = np.int16(steps)
        left += (value - step * steps) ** 2
    return step, np.sqrt(left) * (1.0 + 1e-9) + 1e-40


@inner_kernel
def looseness(metric: int, dim: int, length: float, rest: float, largest: float) -> float:
    """How far an affinity may be above what ``to_upper`` says: by its rounding, and by the query.

    What steps leave out of the query is multiplied with a whole row.
    """
    bound = error_bound(metric, dim, length, largest, 0.0)
    if metric == EUCLIDEAN:
        return bound + 2.0 * rest * largest
    if metric == COSINE:
        return bound + 1.05 * rest
    return bound + rest * largest


@inner_kernel
def multiply_steps(
    segment: Arrays,
    base: int,
    rows: NDArray[np.int32],
    size: int,
    following: int,
    padded: NDArray[np.int16],
    products: NDArray[np.float32],
) -> None:
    """Inner products of a query with rows, both in whole steps; ``following`` are read next."""
    plane = segment.quantised
    last = size - 1
    far = FAR // plane.shape[1]
    for start in range(0, size, TOGETHER):
        place = min(start, max(0, size - TOGETHER))  # the last few may overlap those before
        second, third, fourth = min(place + 1, last), min(place + 2, last), min(place + 3, last)
        if base >= 0:
            # The processor sees that rows follow each other, but not far enough ahead, and not
            # where they go on.
            ahead = place + far
            ahead = base + ahead if ahead < size else following + ahead - size
            for row in range(ahead, ahead + TOGETHER):
                for column in range(0, plane.shape[1], BYTES):
                    prefetch(plane, row, column)
            prefetch(segment.quanta, ahead, 0)
            prefetch_item(segment.norms, ahead)
            places = (base + place, base + second, base + third, base + fourth)
        else:
            for ahead in range(min(place + AHEAD, size), min(place + AHEAD + TOGETHER, size)):
                for column in range(0, plane.shape[1], BYTES):
                    prefetch(plane, rows[ahead], column)
            places = (
                np.int64(rows[place]), np.int64(rows[second]), np.int64(rows[third]),
                np.int64(rows[fourth]),
            )  # fmt: skip
        sums = multiply(plane, places, padded)
        products[place] = sums[0]
        products[second] = sums[1]
        products[third] = sums[2]
        products[fourth] = sums[3]


@inner_kernel
def to_upper(
    metric: int,
    segment: Arrays,
    base: int,
    rows: NDArray[np.int32],
    size: int,
    step: float,
    length: float,
    affinities: NDArray[np.float32],
) -> None:
    """Turn products into affinities that rows do not exceed, but for their ``looseness``.

    ``step`` is the query's, ``length`` at least that of the query in steps.
    """
    scale = np.float32(step)
    reach = np.float32(length * (1.0 + 1e-6))
    double = np.float32(2.0 if metric == EUCLIDEAN else 1.0)
    for index in range(size):
        row = base + index if base >= 0 else np.int64(rows[index])
        quantum = high_to_float(segment.quanta[row, 0])
        left_out = high_to_float(segment.quanta[row, 1])
        value = affinities[index] * quantum * scale + left_out * reach
        norm = segment.norms[row]
        if metric == COSINE:
            value *= norm
        elif metric == EUCLIDEAN:
            value = value * double - norm
        affinities[index] = value


@inner_kernel
def least_affinity(
    metric: int, length: float, bound: float, top: int, size: int, exact: NDArray[np.float64]
) -> float:
    """What an affinity must reach to be worth measuring: rows below it are farther than the last.

    A distance is a constant less the affinity, for each metric; so the other way round, too.
    """
    if size < top:
        return -np.inf
    floor = affinity_distance(metric, exact[0, top - 1], length) - bound
    return floor - abs(floor) * 2.0**-22  # it becomes a float32


@inner_kernel
def measure_reaching(
    segment: Arrays,
    number: int,
    metric: int,
    base: int,
    rows: NDArray[np.int32],
    affinities: NDArray[np.float32],
    maxima: NDArray[np.float32],
    chosen: NDArray[np.int32],
    promising: NDArray[np.float32],
    queries: NDArray[np.float32],
    query: int,
    length: float,
    bound: float,
    top: int,
    size: int,
    line: NDArray[np.float32],
    exact: NDArray[np.float64],
    ids: NDArray[np.int64],
    places: NDArray[np.int64],
) -> tuple[int, int]:
    """Measure the rows whose affinity may be enough, and keep the ``top`` nearest.

    Where there are more, the ``top`` that promise most come first: after them few others are left.
    ``promising`` is scratch space [top].

    Returns:
        How many rows are kept now, and -1 or what is wrong.
    """
    tops = maxima[: group_count(affinities.shape[0])]
    group_maxima(affinities, tops)
    ceiling = np.float32(np.inf)
    floor = np.float32(least_affinity(metric, length, bound, top, size, exact))
    if size < top:
        floor = reached_by(tops, top)
    count = reaching(affinities, tops, floor, chosen)
    if count > top:
        floor = reached_by_first(affinities, chosen, count, promising)
    while True:
        count = reaching(affinities, tops, floor, chosen)
        for position in range(count):
            row = np.int64(base + chosen[position] if base >= 0 else rows[chosen[position]])
            for column in range(0, segment.highs.shape[1], LINE):
                prefetch(segment.highs, row, column)
                prefetch(segment.lows, row, column)
            prefetch_item(segment.ids, row)
        for position in range(count):
            value = affinities[chosen[position]]
            if value >= ceiling or value < least_affinity(metric, length, bound, top, size, exact):
                continue
            row = np.int64(base + chosen[position] if base >= 0 else rows[chosen[position]])
            fault = max(damaged_rows(segment, row, row + 1, False), damaged_id(segment, row))
            if fault != -1:
                return size, fault
            copy_embedding(segment.highs, segment.lows, row, line, 0)
            away = exact_distance(metric, line, queries, query)
            if np.isnan(away):
                return size, BROKEN
            if size < top or away <= exact[0, top - 1]:
                place = (np.int64(number) << ROW_BITS) | row
                size = keep(away, segment.ids[row], place, top, size, exact, ids, places)
        ceiling = floor
        floor = np.float32(least_affinity(metric, length, bound, top, size, exact))
        if floor >= ceiling or ceiling == -np.inf:
            return size, -1


@inner_kernel
def reached_by_first(
    values: NDArray[np.float32], chosen: NDArray[np.int32], count: int, best: NDArray[np.float32]
) -> float:
    """The least of the largest chosen values, as many as ``best``, scratch space, has room for."""
    last = best.shape[0] - 1
    for position in range(count):
        value = values[chosen[position]]
        place = min(position, last)
        if position > last and value <= best[last]:
            continue
        while place > 0 and best[place - 1] < value:
            best[place] = best[place - 1]
            place -= 1
        best[place] = value
    return best[last]


@inner_kernel
def list_rows(
    segment: Arrays,
    allowed: NDArray[np.uint8],
    seen: NDArray[np.uint8],
    entry: int,
    stop: int,
    rows: NDArray[np.int32],
) -> tuple[int, int, int, int]:
    """The next rows of a bucket that may be found and lie in no bucket that was seen, checked.

    Returns:
        The first of them if they follow each other, or -1 if ``rows`` has them; the entry to go on
        from; how many there are; and -1 or what is wrong.
    """
    listed = segment.postings.shape[0] > 0
    if not listed and allowed.shape[0] == 0:
        end = min(stop, entry + rows.shape[0])
        return entry, end, end - entry, damaged_steps(segment, entry, end)
    buckets = segment.offsets.shape[0] - 1
    least = least_bucket(segment)
    count = 0
    fault = damaged_postings(segment, entry, stop)
    while fault == -1 and entry < stop and count < rows.shape[0]:
        row = np.int64(segment.postings[entry] if listed else entry)
        entry += 1
        if row < 0 or row >= segment.norms.shape[0]:
            return -1, entry, count, BROKEN
        if allowed.shape[0] > 0 and allowed[row] == 0:
            continue
        if listed:
            fault = damaged_code(segment, row)
            if fault != -1:
                break
            known = 0
            for column in range(segment.codes.shape[1]):
                bucket = segment.codes[row, column]
                if bucket < least or bucket >= buckets:
                    return -1, entry, count, BROKEN
                known |= seen[bucket]
            if known != 0:
                continue
        if segment.sums.shape[0] > 0:
            fault = damaged_steps(segment, row, row + 1)
        rows[count] = row
        count += 1
    return -1, entry, count, fault


@inner_kernel
def damaged_steps(segment: Arrays, start: int, stop: int) -> int:
    """The first damaged block under what a quantised scan reads of rows, or -1."""
    fault = damaged_plane(segment, QUANTISED, segment.quantised.shape[1], start, stop)
    if fault == -1:
        fault = damaged_plane(segment, QUANTA, 4, start, stop)
    if fault == -1:
        fault = damaged_plane(segment, NORMS, 4, start, stop)
    return fault
