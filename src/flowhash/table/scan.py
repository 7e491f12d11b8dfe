"""The scan: every opened bucket is read once, for all queries that open it together.

Pairs of a query and a bucket come sorted by bucket. The queries of a bucket form a matrix, and
their affinities with its rows one matrix product; a bucket with few queries is read by plain
loops, with very few where its rows lie. What is likely to be among the nearest goes into the
candidates of its query.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel, kernel, larger
from flowhash.table.arrays import Arrays, damaged_rows
from flowhash.table.candidates import ROW_BITS, Candidates, push
from flowhash.table.gather import gather, gather_norms, list_rows
from flowhash.table.products import (
    copy_row,
    multiply_halves,
    multiply_highs,
    multiply_rows,
    spread,
    to_affinities,
)
from flowhash.table.turns import count_fresh, longest_run, mark
from flowhash.top_values import GROUP, group_count, group_maxima, reached_by

CHUNK_BYTES = 1 << 19  # rows worked on at once: they and their affinities stay in the cache
TOGETHER = 32  # queries in one matrix product
ALONE = 3  # up to so many queries of a bucket are quicker if its rows are read where they lie
FEW = 8  # up to so many are quicker without a matrix product, unless rows are long
NARROW = 128  # numbers of a row that is not
# OpenBLAS starts its own threads from here on, counted in multiplications; ours are enough, and
# smaller products lose nothing.
PRODUCT = 1 << 18


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
    found: Candidates,
) -> int:
    """Scan the buckets of pairs ``first`` to ``last``.

    Args:
        segment: what is scanned.
        number: its number, for the places of candidates.
        allowed: 1 for rows that may be found [n]; empty if all may.
        metric: EUCLIDEAN, COSINE or INNER.
        queries: [q, dim]; of length 1 for COSINE.
        order: the buckets of each query in the order in which it opens them [q, m].
        pair_queries: the query of each pair, sorted by bucket.
        pair_turns: which bucket of that query's order it is.
        first: the pair to start with.
        last: one past the last pair.
        fine: whether to read whole numbers also where the upper halves would be quicker.
        found: receives what was found.

    Returns:
        -1, or the block that is damaged, or BROKEN.
    """
    dim = queries.shape[1]
    plain = segment.postings.shape[0] == 0 and allowed.shape[0] == 0
    fine = fine or segment.lows.shape[0] == 0
    chunk = max(GROUP, min(4096, CHUNK_BYTES // (4 * dim)) // GROUP * GROUP)
    together = min(TOGETHER, longest_run(order, pair_queries, pair_turns, first, last))
    together = min(together, max(ALONE + 1, PRODUCT // (GROUP * dim)))
    few = FEW if dim <= NARROW else ALONE
    needed = fine or together > ALONE
    rows = np.empty(0 if plain else chunk, np.int32)
    gathered = np.empty((chunk if needed else 0, dim), np.float32)
    norms = np.empty(chunk, np.float32)
    block = np.empty((together, dim), np.float32)
    width = max(PRODUCT // dim, GROUP * together)
    products = np.empty(width if together > few else 0, np.float32)
    affinities = np.empty((together, chunk), np.float32)
    maxima = np.empty(group_count(chunk), np.float32)
    chosen = np.empty(chunk + group_count(chunk) + 1, np.int32)
    buckets = segment.offsets.shape[0] - 1
    earlier = np.zeros((buckets if segment.postings.shape[0] > 0 else 0, together), np.uint8)
    flagged = np.zeros(earlier.shape[0], np.uint8)
    lanes = np.zeros((2, together), np.int32)
    begin = first
    while begin < last:
        bucket = order[pair_queries[begin], pair_turns[begin]]
        end = begin + 1
        while end < last and order[pair_queries[end], pair_turns[end]] == bucket:
            end += 1
        coarse = not fine and end - begin <= ALONE
        direct = segment.lows.shape[0] == 0 and end - begin <= ALONE
        entry, stop = segment.offsets[bucket], segment.offsets[bucket + 1]
        while entry < stop:
            base = -1
            if plain:
                base, size = entry, min(chunk, stop - entry)
                entry += size
                fault = damaged_rows(segment, base, entry, coarse)
            else:
                entry, size, fault = list_rows(segment, allowed, entry, stop, coarse, rows)
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
                    copy_row(queries, query, block, index)
                    found.coarse[query] |= coarse
                    if coarse:
                        multiply_highs(segment.highs, base, rows, size, block, index, affinities)
                if direct:
                    multiply_halves(segment.highs, base, rows, size, block, count, affinities)
                elif not coarse and count <= few:
                    multiply_rows(gathered, size, block, count, affinities)
                elif not coarse:
                    width = max(GROUP, PRODUCT // (dim * count))
                    for left in range(0, size, width):
                        right = min(size, left + width)
                        product = products[: count * (right - left)].reshape(count, right - left)
                        np.dot(block[:count], gathered[left:right].T, product)
                        spread(product, left, affinities)
                for index in range(count):
                    to_affinities(metric, affinities, index, norms, size)
                    select(affinities, index, size, maxima, chosen, rows, base, number, earlier,
                           segment.codes, pair_queries[start + index], found)  # fmt: skip
                mark(earlier, flagged, order, pair_queries, pair_turns, start, count, 0)
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
    found: Candidates,
) -> None:
    """Push the rows of a line that may be among the best; each row from its first bucket only."""
    line = affinities[index, :size]
    tops = maxima[: group_count(size)]
    group_maxima(line, tops)
    room = found.affinities.shape[1]
    floor = reached_by(tops, room)
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
                known |= earlier[codes[row, turn], index]
            if known != 0:
                continue
        place = (np.int64(number) << ROW_BITS) | np.int64(row)
        push(found.affinities, found.places, found.filled, query, value, place)


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
