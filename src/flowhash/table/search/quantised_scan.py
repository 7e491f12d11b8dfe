"""The quantised scan: which rows of a bucket are worth reading, told by one byte for each number.

An inner product with the quantised plane is wrong by at most what the steps leave out of the row,
and of the query, times the length of the other: each row has an affinity that it does not exceed.
Only rows that may be among the nearest by that are read and measured in float64, at once; what is
kept are exact distances. So there is nothing to prove afterwards, and nothing to search again: the
rows that were not read are farther away, and ties are among those that were.

A query is scanned alone, its nearest bucket first, after which few rows are worth reading.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import (
    empty,
    high_to_float,
    inner_kernel,
    kernel,
    prefetch,
    prefetch_item,
    zeros,
)
from flowhash.table.distance_metrics import (
    COSINE,
    EUCLIDEAN,
    affinity_distance,
    error_bound,
    exact_distance,
    scale_queries,
)
from flowhash.table.search.bucket_plan import line_of
from flowhash.table.search.rerank import keep, query_length
from flowhash.table.search.scan import AHEAD, LINE, ROW_BITS, reaching
from flowhash.table.search.step_products import PADDED, ROWS_TOGETHER, lay_out, multiply
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
from flowhash.top_values import closely_reached_by, group_count, group_maxima, reached_by

CHUNK = 4096  # rows whose affinities are looked at together
CLOSELY = 64  # nearest rows of which the best are found by comparing each with each
FAR = 3 << 12  # bytes of rows to fetch before they are needed, where they follow each other
MOST_BITS = 1 << 26  # rows of a segment for which a thread has bits: 8 MB
ROWS_PER_ENTRY = 64  # whose bits are cleared faster than the code of a row is looked up
SOON = 32  # entries whose codes are fetched before they are looked at
BYTES = 64  # of a row that memory delivers at once
IN_STEPS = 4  # what all rows of a bucket were found to be, beside COARSELY and WHOLLY: intact
QUERY_STEPS = 32767.0  # of a number of the query
# Of all numbers of the query together, so that 127 times as many stay below 2^31.
ALL_STEPS = 16_900_000.0


class Nearest(NamedTuple):
    """The nearest rows of a query so far, and one place more than are wanted, for scratch.

    Attributes:
        exact: their distances, nearest first [1, top + 1].
        ids: their ids, or the hashes of those.
        places: segment and row of each.
    """

    exact: NDArray[np.float64]
    ids: NDArray[np.int64]
    places: NDArray[np.int64]


class Scratch(NamedTuple):
    """What a scan works with, for one query after the other.

    Attributes:
        seen: 1 for buckets that were scanned; the last is that of -1 [d + 1].
        met: a bit for each row, 1 where it was met, eight to a byte; or nothing.
        rows: of a bucket, where they do not follow each other [CHUNK].
        affinities: of these [CHUNK and some that are not used].
        maxima: of their groups.
        chosen: what is worth measuring.
        promising: the largest affinities [top].
        scaled: the query, for COSINE of length 1 [1, dim].
        whole: the query in steps [dim].
        padded: the same, laid out for ``multiply``.
        line: an embedding [1, dim].
        nearest: what was found.
    """

    seen: NDArray[np.uint8]
    met: NDArray[np.uint8]
    rows: NDArray[np.int32]
    affinities: NDArray[np.float32]
    maxima: NDArray[np.float32]
    chosen: NDArray[np.int32]
    promising: NDArray[np.float32]
    scaled: NDArray[np.float32]
    whole: NDArray[np.int16]
    padded: NDArray[np.int16]
    line: NDArray[np.float32]
    nearest: Nearest


@kernel
def room_for_scan(buckets: int, dim: int, top: int, bits: int) -> Scratch:
    """Scratch space for a scan of a table, with so many ``bits`` for rows that were met."""
    room = (1, top + 1)
    return Scratch(
        zeros(buckets + 1, np.uint8),
        zeros((bits + 7) // 8, np.uint8),
        empty(CHUNK, np.int32),
        empty(CHUNK + ROWS_TOGETHER, np.float32),
        empty(2 * group_count(CHUNK), np.float32),  # and as many hands to deal them to
        empty(CHUNK + group_count(CHUNK) + 1, np.int32),
        empty(top, np.float32),
        empty((1, dim), np.float32),
        empty(dim, np.int16),
        empty(dim + PADDED, np.int16),
        empty((1, dim), np.float32),
        Nearest(empty(room, np.float64), empty(room, np.int64), empty(room, np.int64)),
    )


@kernel
def scan_alone(
    noted: NDArray[np.int64],
    buckets: int,
    metric: int,
    order: NDArray[np.int32],
    probe: int,
    queries: NDArray[np.float32],
    sequence: NDArray[np.int64],
    largest: float,
    exact: NDArray[np.float64],
    places: NDArray[np.int64],
    distances: NDArray[np.float32],
    keys: NDArray[np.int64],
    counts: NDArray[np.int64],
    scanned: NDArray[np.int64],
    opened: NDArray[np.int32],
) -> tuple[bool, int, int]:
    """Scan the buckets that the queries in ``sequence`` open; the last six are the answer.

    The first ``probe`` of each, or, if that is 0, as many as ``opened`` says. ``exact`` gets the
    distances as they were computed, if it has lines [q, top].

    Returns:
        As :func:`scan_query`, of the first query that is not well.
    """
    top, bits = places.shape[1], 0
    for query in sequence:
        if probe > 0:
            opened[query] = probe
        if opened[query] > 1 and bits == 0:
            bits = listed_rows(noted)
    scratch = room_for_scan(buckets, queries.shape[1], top, bits)
    nearest = scratch.nearest
    for query in sequence:
        size, usable, fault, number = scan_query(
            noted, metric, order, opened, queries, query, largest, top, scratch, scanned
        )
        if not usable or fault != -1:
            return usable, fault, number
        counts[query] = size
        for index in range(top):
            filled = index < size
            places[query, index] = nearest.places[0, index] if filled else -1
            distances[query, index] = nearest.exact[0, index] if filled else np.inf
            keys[query, index] = nearest.ids[0, index] if filled else -1
        for index in range(size if exact.shape[0] > 0 else 0):
            exact[query, index] = nearest.exact[0, index]
    return True, -1, 0


@kernel
def listed_rows(noted: NDArray[np.int64]) -> int:
    """The rows of the largest segment, if it has lists of rows and may be told apart by bits."""
    most = 0
    for number in range(noted.shape[0]):
        segment, _ = look_up(noted[number])
        if segment.postings.shape[0] > 0 and segment.norms.shape[0] <= MOST_BITS:
            most = max(most, segment.norms.shape[0])
    return most


@inner_kernel
def suits_bits(
    segment: Arrays, order: NDArray[np.int32], opened: NDArray[np.int32], query: int, bits: int
) -> bool:
    """Whether a bit for each row tells best which rows a query has met.

    That is where it opens several buckets, whose rows are in several, unless it meets so few rows
    that the bits would take longer to clear. Then their codes tell.
    """
    rows, entries = segment.norms.shape[0], 0
    if segment.postings.shape[0] == 0 or opened[query] < 2 or rows > bits:
        return False
    for turn in range(opened[query]):
        start = start_of(segment, order[query, turn])
        entries += start_of(segment, np.int64(order[query, turn]) + 1) - start
    return rows <= ROWS_PER_ENTRY * entries


@kernel
def scan_query(
    noted: NDArray[np.int64],
    metric: int,
    order: NDArray[np.int32],
    opened: NDArray[np.int32],
    queries: NDArray[np.float32],
    query: int,
    largest: float,
    top: int,
    scratch: Scratch,
    scanned: NDArray[np.int64],
) -> tuple[int, bool, int, int]:
    """Scan the opened buckets of one query, segment by segment, for its ``top`` nearest rows.

    Returns:
        How many were found; whether the arguments can be used; -1 or what is wrong with a file; the
        number of its segment.
    """
    dim, buckets = queries.shape[1], scratch.seen.shape[0] - 1
    if scale_queries(metric, queries[query : query + 1], scratch.scaled) != -1:
        return 0, False, -1, 0
    length = query_length(scratch.scaled, 0)
    step, rest = quantise_query(scratch.scaled, scratch.whole)
    lay_out(scratch.whole, dim, scratch.padded)
    bound = looseness(metric, dim, length, rest, largest)
    usable, fault, size, total, base = True, -1, 0, 0, 0
    for number in range(noted.shape[0]):
        segment, allowed = look_up(noted[number])
        by_bits = suits_bits(segment, order, opened, query, 8 * scratch.met.shape[0])
        count = 0  # rows whose affinities are known
        for turn in range(opened[query]):
            bucket = order[query, turn]
            usable = 0 <= bucket < buckets and scratch.seen[bucket] == 0
            if not usable:
                break
            entry, stop = segment.offsets[bucket], segment.offsets[bucket + 1]
            known = is_known(segment, bucket)
            while entry < stop and fault == -1:
                before = count
                base, entry, count, fault = list_fresh(
                    segment, allowed, scratch.seen, scratch.met, entry, stop, known, turn == 0,
                    by_bits, scratch.rows, before,
                )  # fmt: skip
                if fault == -1 and base >= 0:
                    following = entry
                    if entry == stop and turn + 1 < opened[query]:
                        following = start_of(segment, order[query, turn + 1])
                    find_affinities(metric, segment, base, following, step, length + rest, scratch,
                                    before, count)  # fmt: skip
                if fault == -1 and count == CHUNK:
                    total += count
                    size, fault = measure_chunk(
                        segment, number, metric, base, step, length, rest, bound, count, queries,
                        query, top, size, scratch,
                    )  # fmt: skip
                    count = 0
            if fault != -1:
                break
            if not known:
                make_known(segment, bucket)
            scratch.seen[bucket] = 1
        if usable and fault == -1 and count > 0:
            total += count
            size, fault = measure_chunk(
                segment, number, metric, base, step, length, rest, bound, count, queries, query,
                top, size, scratch,
            )  # fmt: skip
        for turn in range(opened[query]):
            if 0 <= order[query, turn] < buckets:
                scratch.seen[order[query, turn]] = 0
        if by_bits:
            scratch.met[: (segment.norms.shape[0] + 7) // 8] = 0
        if not usable or fault != -1:
            return size, usable, fault, number
    scanned[query] = total
    return size, True, -1, 0


@inner_kernel
def find_affinities(
    metric: int,
    segment: Arrays,
    base: int,
    following: int,
    step: float,
    length: float,
    scratch: Scratch,
    first: int,
    last: int,
) -> None:
    """Affinities ``first`` to ``last`` of rows, which follow each other from ``base`` on, or -1."""
    rows, affinities = scratch.rows[first:last], scratch.affinities[first:]
    multiply_steps(segment, base, rows, last - first, following, scratch.padded, affinities)
    to_upper(metric, segment, base, rows, last - first, step, length, affinities)


@inner_kernel
def measure_chunk(
    segment: Arrays,
    number: int,
    metric: int,
    base: int,
    step: float,
    length: float,
    rest: float,
    bound: float,
    count: int,
    queries: NDArray[np.float32],
    query: int,
    top: int,
    size: int,
    scratch: Scratch,
) -> tuple[int, int]:
    """Keep the nearest of ``count`` rows, whose affinities are not known yet if ``base`` is -1.

    Returns:
        How many rows are kept now, and -1 or what is wrong.
    """
    if base < 0:
        find_affinities(metric, segment, -1, 0, step, length + rest, scratch, 0, count)
    return measure_reaching(
        segment, number, metric, scratch.rows, scratch.affinities[:count], scratch.maxima,
        scratch.chosen, scratch.promising, queries, query, length, bound, top, size, scratch.line,
        scratch.nearest.exact, scratch.nearest.ids, scratch.nearest.places,
    )  # fmt: skip


@inner_kernel
def is_known(segment: Arrays, bucket: int) -> bool:
    """Whether all that a scan reads of a bucket's rows, in lists, is as it was written.

    In memory it is. Of a file, checksums have said so before: with k > 1 that is kept.
    """
    if segment.sums.shape[0] == 0:
        return True
    checked = segment.sums.shape[0] + bucket
    return checked < segment.verified.shape[0] and segment.verified[checked] & IN_STEPS != 0


@inner_kernel
def make_known(segment: Arrays, bucket: int) -> None:
    """All rows of a bucket were looked at, and are as they were written."""
    checked = segment.sums.shape[0] + bucket
    if checked < segment.verified.shape[0]:
        segment.verified[checked] |= IN_STEPS


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
        step = np.float64(
            np.float32(max(largest / QUERY_STEPS, total / (ALL_STEPS - dim)) * 1.0001)
        )
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
    """Inner products of a query with rows, both in whole steps; ``following`` are read next.

    A few behind the last product are written, too.
    """
    plane = segment.quantised
    last = size - 1
    far = FAR // plane.shape[1]
    for start in range(0, size, ROWS_TOGETHER):
        second, third, fourth = min(start + 1, last), min(start + 2, last), min(start + 3, last)
        if base >= 0:
            # The processor sees that rows follow each other, but not far enough ahead, and not
            # where they go on.
            ahead = start + far
            ahead = base + ahead if ahead < size else following + ahead - size
            for column in range(0, ROWS_TOGETHER * plane.shape[1], BYTES):  # of four rows in a line
                prefetch(plane, ahead, column)
            prefetch(segment.quanta, ahead, 0)
            prefetch_item(segment.norms, ahead)
            places = (base + start, base + second, base + third, base + fourth)
        else:
            for ahead in range(min(start + AHEAD, size), min(start + AHEAD + ROWS_TOGETHER, size)):
                for column in range(0, plane.shape[1], BYTES):
                    prefetch(plane, rows[ahead], column)
                prefetch(plane, rows[ahead], plane.shape[1] - 1)  # rows begin anywhere in a line
            places = (
                np.int64(rows[start]), np.int64(rows[second]), np.int64(rows[third]),
                np.int64(rows[fourth]),
            )  # fmt: skip
        multiply(plane, places, padded, products, start)


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
    if base >= 0:  # the same twice: rows that follow each other are done many at a time
        for index in range(size):
            affinities[index] = upper_affinity(
                metric, segment, base + index, affinities[index], scale, reach
            )
    else:
        for index in range(size):
            affinities[index] = upper_affinity(
                metric, segment, np.int64(rows[index]), affinities[index], scale, reach
            )


@inner_kernel
def upper_affinity(
    metric: int, segment: Arrays, row: int, product: float, scale: float, reach: float
) -> float:
    """The affinity that a row does not exceed, given its product in steps."""
    quantum = high_to_float(segment.quanta[row, 0])
    left_out = high_to_float(segment.quanta[row, 1])
    value = product * quantum * scale + left_out * reach
    norm = segment.norms[row]
    if metric == COSINE:
        return value * norm
    if metric == EUCLIDEAN:
        return value + value - norm
    return value


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
    groups = group_count(affinities.shape[0])
    tops = maxima[:groups]
    group_maxima(affinities, tops)
    ceiling = np.float32(np.inf)
    floor = np.float32(least_affinity(metric, length, bound, top, size, exact))
    if size < top:
        floor = reached_by(tops, top)
    count = reaching(affinities, tops, floor, chosen)
    if count > top:
        if count > 2 * top and top <= CLOSELY:
            floor = max(floor, closely_reached_by(tops, top, maxima[groups:]))
        else:
            floor = reached_by_first(affinities, chosen, count, promising)
        count = reaching(affinities, tops, floor, chosen)
    checks = segment.sums.shape[0] > 0
    dim = line.shape[1]
    while True:
        for position in range(count):
            if affinities[chosen[position]] >= ceiling:
                continue
            row = np.int64(rows[chosen[position]])
            for column in range(0, dim, LINE):
                prefetch(segment.highs, row, column)
                prefetch(segment.lows, row, column)
            prefetch(segment.highs, row, dim - 1)  # rows begin anywhere in a line of memory
            prefetch(segment.lows, row, dim - 1)
            prefetch_item(segment.ids, row)
        for position in range(count):
            value = affinities[chosen[position]]
            if value >= ceiling or value < least_affinity(metric, length, bound, top, size, exact):
                continue
            row = np.int64(rows[chosen[position]])
            if checks:
                fault = max(damaged_rows(segment, row, row + 1, False), damaged_id(segment, row))
                if fault != -1:
                    return size, fault
            copy_embedding(segment.highs, segment.lows, row, line, 0)
            away = exact_distance(metric, line, queries, query)
            if not np.isfinite(away):
                return size, BROKEN
            if size < top or away <= exact[0, top - 1]:
                place = (np.int64(number) << ROW_BITS) | row
                size = keep(away, segment.ids[row], place, top, size, exact, ids, places)
        ceiling = floor
        floor = np.float32(least_affinity(metric, length, bound, top, size, exact))
        if not floor < ceiling:
            return size, -1
        count = reaching(affinities, tops, floor, chosen)


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
def list_fresh(
    segment: Arrays,
    allowed: NDArray[np.uint8],
    seen: NDArray[np.uint8],
    met: NDArray[np.uint8],
    entry: int,
    stop: int,
    known: bool,
    first: bool,
    by_bits: bool,
    rows: NDArray[np.int32],
    count: int,
) -> tuple[int, int, int, int]:
    """List the next rows of a bucket that may be found and lie in no bucket that was seen, checked.

    What is ``known`` to be as it was written needs no look at checksums. In the ``first`` bucket
    of a query every row is new. Otherwise codes say whether a row is in one that was ``seen``, or,
    ``by_bits``, whether it was ``met``. There were ``count`` rows listed before.

    Returns:
        The first of them if they follow each other, or -1; the entry to go on from; how many are
        listed now; and -1 or what is wrong.
    """
    listed = segment.postings.shape[0] > 0
    end = min(stop, entry + rows.shape[0] - count)
    if not listed and allowed.shape[0] == 0:
        for place in range(end - entry):
            rows[count + place] = entry + place
        return entry, end, count + end - entry, damaged_steps(segment, entry, end)
    if not known:
        fault = damaged_entries(segment, entry, end)
        if fault != -1:
            return -1, end, count, fault
    total, filters, width = segment.norms.shape[0], allowed.shape[0] > 0, segment.codes.shape[1]
    outside = False
    # Without branches, which the processor could not predict. A mapped file may be written to
    # after it was checked: whatever it says then, nothing is read outside of the arrays.
    for place in range(entry, end):
        row = np.int64(segment.postings[place] if listed else place)
        outside |= row < 0 or row >= total
        row = min(max(row, 0), total - 1)
        rows[count] = row
        fresh = 1
        if by_bits:
            byte, bit = met[row >> 3], np.int64(row & 7)
            fresh = 1 - ((np.int64(byte) >> bit) & 1)
            met[row >> 3] = byte | np.uint8(1 << bit)
        elif listed and not first:
            for column in range(width):
                fresh &= 1 - np.int64(seen[line_of(segment.codes[row, column], seen.shape[0])])
        if filters:
            fresh &= np.int64(allowed[row])
        if listed:
            if not (first or by_bits):
                later = segment.postings[min(place + SOON, end - 1)]
                prefetch(segment.codes, np.int64(later), 0)
            prefetch(segment.quanta, row, 0)
            prefetch_item(segment.norms, row)
        count += fresh
    return -1, end, count, BROKEN if outside else -1


@inner_kernel
def damaged_entries(segment: Arrays, entry: int, end: int) -> int:
    """The first damaged block under what a scan reads of a bucket's entries, BROKEN, or -1."""
    listed = segment.postings.shape[0] > 0
    if not listed:
        return damaged_steps(segment, entry, end)
    buckets, least = segment.offsets.shape[0] - 1, least_bucket(segment)
    fault = damaged_postings(segment, entry, end)
    for place in range(entry, end if fault == -1 else entry):
        row = np.int64(segment.postings[place])
        if row < 0 or row >= segment.norms.shape[0]:
            return BROKEN
        fault = damaged_code(segment, row)
        if fault == -1:
            fault = damaged_steps(segment, row, row + 1)
        if fault != -1:
            return fault
        for column in range(segment.codes.shape[1]):
            bucket = segment.codes[row, column]
            if bucket < least or bucket >= buckets:
                return BROKEN
    return fault


@inner_kernel
def damaged_steps(segment: Arrays, start: int, stop: int) -> int:
    """The first damaged block under what a quantised scan reads of rows, or -1."""
    fault = damaged_plane(segment, QUANTISED, segment.quantised.shape[1], start, stop)
    if fault == -1:
        fault = damaged_plane(segment, QUANTA, 4, start, stop)
    if fault == -1:
        fault = damaged_plane(segment, NORMS, 4, start, stop)
    return fault
