"""The scan of a bucket: its rows, their products with the queries, and the candidates kept."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import (
    empty,
    filter_kernel,
    half_to_float,
    high_to_float,
    inner_kernel,
    kernel,
    larger,
    prefetch,
    prefetch_item,
    zeros,
)
from flowhash.table.distance_metrics import to_affinities
from flowhash.table.search.bucket_plan import count_fresh, line_of, longest_run, mark
from flowhash.table.segments.arrays import (
    BROKEN,
    Arrays,
    copy_embedding,
    damaged_listed,
    damaged_postings,
    damaged_rows,
    least_bucket,
)
from flowhash.top_values import GROUP, closely_reached_by, group_count, group_maxima

CHUNK_BYTES = 1 << 19  # rows worked on at once: they and their affinities stay in the cache
QUERIES_TOGETHER = 32  # queries that a piece of a bucket is multiplied with at once
ALONE = 3  # up to so many queries of a bucket are quicker if its rows are read where they lie
ROW_BITS = 32  # a place is the number of a segment, then 32 bits for the row in it
ROW_MASK = (1 << ROW_BITS) - 1
AHEAD = 64  # rows to fetch before they are needed; buckets are scattered over memory
COARSELY, WHOLLY = 1, 2  # what all rows of a bucket were found to be: intact
LANES = 16  # float32 numbers of the longest vector
LINE = 32  # numbers of 16 bits that memory delivers at once


@kernel
def scan(
    segment: Arrays,
    number: int,
    allowed: NDArray[np.uint8],
    metric: int,
    queries: NDArray[np.float32],
    order: NDArray[np.int32],
    pair_queries: NDArray[np.int32],
    pair_turns: NDArray[np.int32],
    first: int,
    last: int,
    fine: bool,
    found: CandidateHeaps,
) -> int:
    """Scan the buckets of pairs ``first`` to ``last``.

    Pairs of a query and a bucket are sorted by bucket; the turn of a pair is the bucket's place in
    the query's ``order`` [q, m]. Queries are of length 1 for COSINE. With ``fine`` whole numbers
    are read also where the upper halves would be quicker. ``number`` is the segment's, for the
    places of candidates, and ``allowed`` has 1 for rows that may be found, or is empty if all may.

    Returns:
        -1, or the block that is damaged, or BROKEN.
    """
    dim = queries.shape[1]
    plain = segment.postings.shape[0] == 0 and allowed.shape[0] == 0
    fine = fine or segment.lows.shape[0] == 0
    chunk = max(GROUP, min(4096, CHUNK_BYTES // (4 * dim)) // GROUP * GROUP)
    together = min(QUERIES_TOGETHER, longest_run(order, pair_queries, pair_turns, first, last))
    needed = fine or together > ALONE
    rows = empty(0 if plain else chunk, np.int32)
    # Whole vectors, with zeros at the end: what is left over would be multiplied one by one.
    width = (dim + LANES - 1) // LANES * LANES
    gathered = zeros((chunk if needed else 0, width), np.float32)
    norms = empty(chunk, np.float32)
    block = zeros((together, width), np.float32)
    affinities = empty((together, chunk), np.float32)
    maxima = empty(2 * group_count(chunk), np.float32)  # and as many hands to deal them to
    chosen = empty(chunk + group_count(chunk) + 1, np.int32)
    buckets = segment.offsets.shape[0] - 1
    lines = buckets + 1 if segment.postings.shape[0] > 0 else 0  # the last is that of -1
    earlier = zeros((lines, together), np.uint8)
    flagged = zeros(earlier.shape[0], np.uint8)
    lanes = zeros((2, together), np.int32)
    begin = first
    while begin < last:
        bucket = order[pair_queries[begin], pair_turns[begin]]
        end = begin + 1
        while end < last and order[pair_queries[end], pair_turns[end]] == bucket:
            end += 1
        coarse = not fine and end - begin <= ALONE
        direct = segment.lows.shape[0] == 0 and end - begin <= ALONE
        entry, stop = segment.offsets[bucket], segment.offsets[bucket + 1]
        # A bucket whose rows were all found intact needs no look at each of them again.
        checked = segment.sums.shape[0] + bucket
        marked = checked < segment.verified.shape[0] and allowed.shape[0] == 0
        wanted = COARSELY if coarse else WHOLLY
        known = marked and segment.verified[checked] & wanted != 0
        while entry < stop:
            base = -1
            if plain:
                base, size = entry, min(chunk, stop - entry)
                entry += size
                fault = damaged_rows(segment, base, entry, coarse)
            else:
                entry, size, fault = list_rows(segment, allowed, entry, stop, coarse, known, rows)
            if fault != -1:
                return fault
            gather_norms(segment.norms, base, rows, size, norms)
            if not coarse and not direct:
                gather(segment, base, rows, size, gathered)
            for start in range(begin, end, together):
                count = min(together, end - start)
                mark(earlier, flagged, order, pair_queries, pair_turns, start, count, 1)
                count_fresh(segment.codes, rows, size, earlier, flagged, lanes,
                            pair_queries, start, count, found.scanned)  # fmt: skip
                for index in range(count):
                    query = pair_queries[start + index]
                    for column in range(dim):
                        block[index, column] = queries[query, column]
                    found.coarse[query] |= coarse
                    if coarse:
                        multiply_highs(segment.highs, base, rows, size, block, index, affinities)
                if direct:
                    multiply_halves(segment.highs, base, rows, size, block, count, affinities)
                elif not coarse:
                    multiply_rows(gathered, size, block, count, affinities)
                for index in range(count):
                    to_affinities(metric, affinities, index, norms, size)
                    select(affinities, index, size, maxima, chosen, rows, base, number, earlier,
                           segment.codes, pair_queries[start + index], found)  # fmt: skip
                mark(earlier, flagged, order, pair_queries, pair_turns, start, count, 0)
        if marked and not known:
            segment.verified[checked] |= COARSELY if coarse else COARSELY | WHOLLY
        begin = end
    return -1


@inner_kernel
def select(
    affinities: NDArray[np.float32],
    index: int,
    size: int,
    maxima: NDArray[np.float32],
    chosen: NDArray[np.int32],
    rows: NDArray[np.int32],
    base: int,
    number: int,
    earlier: NDArray[np.uint8],
    codes: NDArray[np.int32],
    query: int,
    found: CandidateHeaps,
) -> None:
    """Push the rows of a line that may be among the best; each row from its first bucket only."""
    line = affinities[index, :size]
    groups = group_count(size)
    tops = maxima[:groups]
    group_maxima(line, tops)
    room = found.affinities.shape[1]
    floor = closely_reached_by(tops, room, maxima[groups:])
    if floor > found.dropped[query]:
        found.dropped[query] = floor
    if found.filled[query] == room:
        floor = larger(floor, found.affinities[query, 0])
    count = reaching(line, tops, floor, chosen)
    for position in range(count):
        column = chosen[position]
        value = line[column]
        if found.filled[query] == room and value <= found.affinities[query, 0]:
            continue
        row = base + column
        if base < 0:
            row = rows[column]
            known = 0
            for turn in range(codes.shape[1] if earlier.shape[0] > 0 else 0):
                known |= earlier[line_of(codes[row, turn], earlier.shape[0]), index]
            if known != 0:
                continue
        place = (np.int64(number) << ROW_BITS) | np.int64(row)
        push(found, query, value, place)


@inner_kernel
def reaching(
    line: NDArray[np.float32],
    tops: NDArray[np.float32],
    floor: float,
    chosen: NDArray[np.int32],
) -> int:
    """The columns whose value reaches ``floor`` into ``chosen``; how many.

    Written without branches: where the best rows lie cannot be predicted, and a wrong guess of the
    processor costs more than ten such steps.
    """
    groups = 0
    for group in range(tops.shape[0]):
        chosen[groups] = group
        groups += tops[group] >= floor
    # Columns are written behind the groups, which are read from the front.
    size = line.shape[0]
    start = groups
    count = 0
    for position in range(groups):
        first = chosen[position] * GROUP
        for column in range(first, min(size, first + GROUP)):
            chosen[start + count] = column
            count += line[column] >= floor
    for position in range(count):
        chosen[position] = chosen[start + position]
    return count


@filter_kernel
def multiply_highs(
    highs: NDArray[np.uint16],
    base: int,
    rows: NDArray[np.int32],
    size: int,
    block: NDArray[np.float32],
    index: int,
    products: NDArray[np.float32],
) -> None:
    """Inner products of one query with the upper halves of rows, where they lie.

    Four rows at once keep the processor's units busy.
    """
    dim = highs.shape[1]
    for start in range(0, size, 4):
        place = min(start, max(0, size - 4))  # the last four may overlap the four before
        if base >= 0:
            first, second, third, fourth = (
                base + place, base + place + min(1, size - 1),
                base + place + min(2, size - 1), base + place + min(3, size - 1),
            )  # fmt: skip
            for ahead in range(first + AHEAD, first + AHEAD + 4):
                for column in range(0, dim, LINE):
                    prefetch(highs, ahead, column)
        else:
            first, second, third, fourth = (
                rows[place], rows[place + min(1, size - 1)],
                rows[place + min(2, size - 1)], rows[place + min(3, size - 1)],
            )  # fmt: skip
            for ahead in range(min(place + AHEAD, size), min(place + AHEAD + 4, size)):
                for column in range(0, dim, LINE):
                    prefetch(highs, rows[ahead], column)
        one = two = three = four = np.float32(0.0)
        for column in range(dim):
            value = block[index, column]
            one += value * high_to_float(highs[first, column])
            two += value * high_to_float(highs[second, column])
            three += value * high_to_float(highs[third, column])
            four += value * high_to_float(highs[fourth, column])
        products[index, place] = one
        products[index, place + min(1, size - 1)] = two
        products[index, place + min(2, size - 1)] = three
        products[index, place + min(3, size - 1)] = four


@filter_kernel
def multiply_rows(
    gathered: NDArray[np.float32],
    size: int,
    block: NDArray[np.float32],
    count: int,
    products: NDArray[np.float32],
) -> None:
    """Inner products of queries with gathered rows.

    Two queries and four rows at once are what fits into the processor's registers. For the few
    queries of a bucket that is twice as fast as OpenBLAS, which first copies the rows to another
    order.
    """
    dim = block.shape[1]
    last, final = size - 1, count - 1
    for start in range(0, size, 4):
        row = min(start, max(0, size - 4))  # the last four may overlap the four before
        second, third, fourth = min(row + 1, last), min(row + 2, last), min(row + 3, last)
        for begin in range(0, count, 2):
            index = min(begin, max(0, count - 2))  # and the last two queries the two before
            other = min(index + 1, final)
            one = two = three = four = np.float32(0.0)
            five = six = seven = eight = np.float32(0.0)
            for column in range(dim):
                value, another = block[index, column], block[other, column]
                one += value * gathered[row, column]
                two += value * gathered[second, column]
                three += value * gathered[third, column]
                four += value * gathered[fourth, column]
                five += another * gathered[row, column]
                six += another * gathered[second, column]
                seven += another * gathered[third, column]
                eight += another * gathered[fourth, column]
            products[index, row] = one
            products[index, second] = two
            products[index, third] = three
            products[index, fourth] = four
            products[other, row] = five
            products[other, second] = six
            products[other, third] = seven
            products[other, fourth] = eight


@filter_kernel
def multiply_halves(
    halves: NDArray[np.uint16],
    base: int,
    rows: NDArray[np.int32],
    size: int,
    block: NDArray[np.float32],
    count: int,
    products: NDArray[np.float32],
) -> None:
    """Inner products of very few queries with rows of float16, where they lie."""
    dim = halves.shape[1]
    for start in range(0, size, 4):
        place = min(start, max(0, size - 4))  # the last four may overlap the four before
        last = size - 1
        first, second, third, fourth = (
            base + place, base + min(place + 1, last),
            base + min(place + 2, last), base + min(place + 3, last),
        )  # fmt: skip
        if base < 0:
            first, second, third, fourth = (
                rows[place], rows[min(place + 1, last)],
                rows[min(place + 2, last)], rows[min(place + 3, last)],
            )  # fmt: skip
            for ahead in range(min(place + AHEAD, size), min(place + AHEAD + 4, size)):
                for column in range(0, dim, LINE):
                    prefetch(halves, rows[ahead], column)
        for index in range(count):
            one = two = three = four = np.float32(0.0)
            for column in range(dim):
                value = block[index, column]
                one += value * half_to_float(halves[first, column])
                two += value * half_to_float(halves[second, column])
                three += value * half_to_float(halves[third, column])
                four += value * half_to_float(halves[fourth, column])
            products[index, place] = one
            products[index, min(place + 1, last)] = two
            products[index, min(place + 2, last)] = three
            products[index, min(place + 3, last)] = four


class CandidateHeaps(NamedTuple):
    """What one scan keeps; c is the room for each query.

    Attributes:
        affinities: a heap in each line, the smallest first [n, c] float32.
        places: segment and row of each [n, c] int64.
        filled: how many a query has [n] int32.
        dropped: nothing with a larger affinity was left out before it met the heap [n] float32.
        scanned: items seen, each once [n] int64.
        coarse: 1 where an affinity was computed from upper halves [n] uint8.
    """

    affinities: NDArray[np.float32]
    places: NDArray[np.int64]
    filled: NDArray[np.int32]
    dropped: NDArray[np.float32]
    scanned: NDArray[np.int64]
    coarse: NDArray[np.uint8]


@kernel
def empty_candidates(scanned: NDArray[np.int64], room: int) -> CandidateHeaps:
    """Room for ``room`` candidates of every query, none seen yet; ``scanned`` has zeros [n]."""
    queries = scanned.shape[0]
    dropped = empty(queries, np.float32)
    for query in range(queries):
        dropped[query] = -np.inf
    return CandidateHeaps(
        empty((queries, room), np.float32),
        empty((queries, room), np.int64),
        zeros(queries, np.int32),
        dropped,
        scanned,
        zeros(queries, np.uint8),
    )


@inner_kernel
def push(found: CandidateHeaps, query: int, affinity: float, place: int) -> None:
    """Add a candidate; when there is no room, only in the stead of a worse one."""
    affinities, places = found.affinities, found.places
    room = affinities.shape[1]
    count = found.filled[query]
    if count < room:  # let it rise from the bottom
        index = count
        found.filled[query] = count + 1
        while index > 0:
            parent = (index - 1) >> 1
            if affinities[query, parent] <= affinity:
                break
            affinities[query, index] = affinities[query, parent]
            places[query, index] = places[query, parent]
            index = parent
    else:  # let it sink from the top
        if affinity <= affinities[query, 0]:
            return
        index = 0
        while True:
            child = 2 * index + 1
            if child >= room:
                break
            other = min(child + 1, room - 1)
            child += affinities[query, other] < affinities[query, child]  # without a branch
            if affinities[query, child] >= affinity:
                break
            affinities[query, index] = affinities[query, child]
            places[query, index] = places[query, child]
            index = child
    affinities[query, index] = affinity
    places[query, index] = place


@inner_kernel
def merge(found: CandidateHeaps, other: CandidateHeaps) -> None:
    """Add what another thread found for the same queries."""
    room = found.affinities.shape[1]
    for query in range(found.filled.shape[0]):
        found.scanned[query] += other.scanned[query]
        limit = other.dropped[query]
        if other.filled[query] == room:
            limit = max(limit, other.affinities[query, 0])
        found.dropped[query] = max(found.dropped[query], limit)
        found.coarse[query] |= other.coarse[query]
        for index in range(other.filled[query]):
            push(found, query, other.affinities[query, index], other.places[query, index])


def split_place(place: int) -> tuple[int, int]:
    """The part and the row of a place."""
    return place >> ROW_BITS, place & ROW_MASK


@inner_kernel
def list_rows(
    segment: Arrays,
    allowed: NDArray[np.uint8],
    entry: int,
    stop: int,
    coarse: bool,
    known: bool,
    rows: NDArray[np.int32],
) -> tuple[int, int, int]:
    """List the next allowed rows of a bucket, checked unless they are known to be intact.

    Returns:
        The entry to go on from, how many rows were listed, and -1 or what is wrong.
    """
    total = segment.norms.shape[0]
    buckets = segment.offsets.shape[0] - 1
    listed = segment.postings.shape[0] > 0
    least = least_bucket(segment)
    size = 0
    fault = damaged_postings(segment, entry, stop)
    while fault == -1 and entry < stop and size < rows.shape[0]:
        row = segment.postings[entry] if listed else entry
        entry += 1
        if row < 0 or row >= total:
            return entry, size, BROKEN
        if allowed.shape[0] > 0 and allowed[row] == 0:
            continue
        rows[size] = row
        size += 1
        if listed:
            prefetch(segment.codes, row, 0)
            prefetch_item(segment.norms, row)
    if fault == -1 and not known:
        fault = damaged_listed(segment, rows, size, coarse)
    if (
        fault == -1 and not known and listed and segment.sums.shape[0] > 0
    ):  # in memory they are as they were made
        wrong = False
        for place in range(size):
            for column in range(segment.codes.shape[1]):
                bucket = segment.codes[rows[place], column]
                wrong |= (bucket < least) | (bucket >= buckets)
        if wrong:
            fault = BROKEN
    return entry, size, fault


@inner_kernel
def gather(
    segment: Arrays,
    base: int,
    rows: NDArray[np.int32],
    size: int,
    gathered: NDArray[np.float32],
) -> None:
    """Copy rows to one place as float32: ``size`` from ``base`` on, or the listed ones."""
    for index in range(size):
        row = base + index
        if base < 0:
            row = rows[index]
            later = rows[min(index + AHEAD, size - 1)]
            for column in range(0, segment.highs.shape[1], LINE):
                prefetch(segment.highs, later, column)
                if segment.lows.shape[0] > 0:
                    prefetch(segment.lows, later, column)
        copy_embedding(segment.highs, segment.lows, row, gathered, index)


@inner_kernel
def gather_norms(
    norms: NDArray[np.float32],
    base: int,
    rows: NDArray[np.int32],
    size: int,
    gathered: NDArray[np.float32],
) -> None:
    """Copy the norms of the same rows to one place."""
    if base >= 0:
        for index in range(size):
            gathered[index] = norms[base + index]
    else:
        for index in range(size):
            gathered[index] = norms[rows[index]]
