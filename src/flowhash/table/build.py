"""Building a segment: rows sorted by code, the lists of each bucket, norms.

Nothing here depends on where the result goes. Embeddings are copied range by range, so that a
segment larger than memory can be written to a file as it is built.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import filter_kernel, inner_kernel, kernel
from flowhash.intrinsics import half_to_float, high_to_float, join_planes, prefetch
from flowhash.table.arrays import COSINE, Arrays, damaged_rows
from flowhash.table.gather import BROKEN

AHEAD = 8  # rows to fetch before they are needed; they come from all over the input
LINE = 16  # float32 numbers that memory delivers at once
SMALLEST_SQUARE = 1e-30  # of an embedding whose direction is compared
LARGEST_SQUARE = 1e37  # of an embedding's length: distances of two such still fit into float32


@kernel
def first_wrong_code(codes: NDArray[np.int32], buckets: int) -> int:
    """The first code that is out of range or names a bucket twice, or -1."""
    for row in range(codes.shape[0]):
        for column in range(codes.shape[1]):
            bucket = codes[row, column]
            if bucket < 0 or bucket >= buckets:
                return row
            for other in range(column):
                if codes[row, other] == bucket:
                    return row
    return -1


@kernel
def sort_by_code(codes: NDArray[np.int32], buckets: int) -> NDArray[np.int64]:
    """The rows in the order of their codes, equal codes as they came (radix sort) [n].

    Items of one class share codes, so their rows come to lie together, also with k > 1.
    """
    rows, active = codes.shape
    sources = np.arange(rows)
    spare = np.empty(rows if active > 1 else 0, np.int64)
    for column in range(active - 1, -1, -1):
        following = np.zeros(buckets + 1, np.int64)
        for row in range(rows):
            following[codes[row, column] + 1] += 1
        for bucket in range(buckets):
            following[bucket + 1] += following[bucket]
        if column == active - 1:  # the rows are still in their first order
            target = sources if active == 1 else spare
            for row in range(rows):
                bucket = codes[row, column]
                target[following[bucket]] = row
                following[bucket] += 1
        else:
            target = spare
            for row in sources:
                bucket = codes[row, column]
                target[following[bucket]] = row
                following[bucket] += 1
        if active > 1:
            sources, spare = spare, sources
    return sources


@kernel
def bucket_lists(
    codes: NDArray[np.int32], buckets: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Where each bucket starts [d + 1], and the rows of each bucket [n·k]; none with k = 1."""
    rows, active = codes.shape
    offsets = np.zeros(buckets + 1, np.int64)
    for row in range(rows):
        for column in range(active):
            offsets[codes[row, column] + 1] += 1
    for bucket in range(buckets):
        offsets[bucket + 1] += offsets[bucket]
    postings = np.empty(rows * active if active > 1 else 0, np.int32)
    if active > 1:
        following = offsets[:-1].copy()
        for row in range(rows):
            for column in range(active):
                bucket = codes[row, column]
                postings[following[bucket]] = row
                following[bucket] += 1
    return offsets, postings


@inner_kernel
def put_in_order(
    sources: NDArray[np.int64],
    keys: NDArray[np.int64],
    ordered: NDArray[np.int64],
    places: NDArray[np.int32],
) -> None:
    """The key of each place into ``ordered``, and the place of each source into ``places``."""
    for place in range(sources.shape[0]):
        source = sources[place]
        ordered[place] = keys[source]
        places[source] = place


@filter_kernel
def square(vectors: NDArray[np.float32], row: int) -> float:
    """|x|² of a row of float32; NaN or infinite where a number is."""
    total = np.float32(0.0)
    for column in range(vectors.shape[1]):
        total += vectors[row, column] * vectors[row, column]
    return total


@filter_kernel
def stored_square(highs: NDArray[np.uint16], lows: NDArray[np.uint16], row: int) -> float:
    """|x|² of a stored row."""
    total = np.float32(0.0)
    if lows.shape[0] > 0:
        for column in range(highs.shape[1]):
            value = join_planes(highs[row, column], lows[row, column])
            total += value * value
    else:
        for column in range(highs.shape[1]):
            value = half_to_float(highs[row, column])
            total += value * value
    return total


@filter_kernel
def residual_square(highs: NDArray[np.uint16], lows: NDArray[np.uint16], row: int) -> float:
    """|x - y|², where y is what the upper halves of a row alone say."""
    total = np.float32(0.0)
    for column in range(highs.shape[1]):
        high = highs[row, column]
        rest = join_planes(high, lows[row, column]) - high_to_float(high)
        total += rest * rest
    return total


@inner_kernel
def split_row(
    bits: NDArray[np.uint32], row: int, highs: NDArray[np.uint16], lows: NDArray[np.uint16],
    place: int,
) -> None:  # fmt: skip
    """Split a row of float32, given as its bits, into upper halves, rounded, and lower halves."""
    for column in range(bits.shape[1]):
        word = bits[row, column]
        highs[place, column] = (word + np.uint32(0x8000)) >> np.uint32(16)
        lows[place, column] = word & np.uint32(0xFFFF)


@inner_kernel
def copy_rows(
    source: Arrays,
    vectors: NDArray[np.float32],
    bits: NDArray[np.uint32],
    rows: NDArray[np.int64],
    metric: int,
    stored: bool,
    highs: NDArray[np.uint16],
    lows: NDArray[np.uint16],
    norms: NDArray[np.float32],
    largest: NDArray[np.float64],
) -> tuple[int, int]:
    """Copy rows of one source to their places, and compute their norms.

    Args:
        source: where stored rows are.
        vectors: embeddings that were given as float32 [n, dim]; without rows if they are in
            ``source``.
        bits: the same, as bits.
        rows: the row for each place of the result; negative for rows of another source.
        metric: decides which norm is kept.
        stored: whether they come from a segment, where they were found usable.
        highs: receives upper halves, or float16; has as many rows as ``rows``.
        lows: receives lower halves; without rows for float16.
        norms: receives |x|², or 1/|x| for COSINE.
        largest: its numbers become the largest |x|² and ``residual_square`` seen [2].

    Returns:
        The first place whose embedding cannot be used, or -1; and the damaged block, BROKEN or -1.
    """
    given = vectors.shape[0] > 0
    for place in range(rows.shape[0]):
        row = rows[place]
        if row < 0:
            continue
        if given:
            later = rows[min(place + AHEAD, rows.shape[0] - 1)]
            for column in range(0, vectors.shape[1], LINE):
                prefetch(vectors, later, column)
            length = np.float64(square(vectors, row))
            split_row(bits, row, highs, lows, place)
        else:
            fault = damaged_rows(source, row, row + 1, False)
            if fault != -1:
                return -1, fault
            for column in range(highs.shape[1]):
                highs[place, column] = source.highs[row, column]
            for column in range(highs.shape[1] if lows.shape[0] > 0 else 0):
                lows[place, column] = source.lows[row, column]
            length = np.float64(stored_square(source.highs, source.lows, row))
        usable = length <= LARGEST_SQUARE and (metric != COSINE or length >= SMALLEST_SQUARE)
        if not stored and not usable:
            return place, -1
        if metric == COSINE and not length > 0.0:
            return -1, BROKEN
        if length > largest[0]:
            largest[0] = length
        if lows.shape[0] > 0:
            rest = np.float64(residual_square(highs, lows, place))
            if rest > largest[1]:
                largest[1] = rest
        norms[place] = 1.0 / np.sqrt(length) if metric == COSINE else length
    return -1, -1


@inner_kernel
def copy_lows(
    source: Arrays, bits: NDArray[np.uint32], rows: NDArray[np.int64], lows: NDArray[np.uint16]
) -> None:
    """Copy lower halves of rows that ``copy_rows`` has copied before, and hence checked.

    Args:
        source: where stored rows are.
        bits: embeddings that were given, as bits [n, dim]; without rows if they are in ``source``.
        rows: the row for each place of the result; negative for rows of another source.
        lows: receives lower halves; has as many rows as ``rows``.
    """
    for place in range(rows.shape[0]):
        row = rows[place]
        if row < 0:
            continue
        if bits.shape[0] > 0:
            later = rows[min(place + AHEAD, rows.shape[0] - 1)]
            for column in range(0, bits.shape[1], LINE):
                prefetch(bits, later, column)
            for column in range(bits.shape[1]):
                lows[place, column] = bits[row, column] & np.uint32(0xFFFF)
        else:
            for column in range(lows.shape[1]):
                lows[place, column] = source.lows[row, column]


@kernel
def take_bytes(
    content: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
    target: NDArray[np.uint8],
) -> None:
    """Copy the byte strings of ``rows`` to their places in ``target``; negative rows are left."""
    for index in range(rows.shape[0]):
        row = rows[index]
        if row >= 0:
            start = offsets[row]
            for position in range(offsets[row + 1] - start):
                target[places[index] + position] = content[start + position]
