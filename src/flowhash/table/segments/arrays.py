"""A segment as kernels see it: plain arrays, in memory or mapped from a file.

An embedding in float32 is kept in two planes, the upper 16 bits of each number and the lower 16
bits. A scan for few queries of a bucket may read the upper plane only, half of the memory, which
ranks so well that the exact distances of a few candidates settle the rest.

Rows that are not very short have a third plane, the quantised one, of one byte for each number: a
quarter of the memory again, for scans that find out which rows are worth reading at all.

Rows are sorted by their codes. With k = 1 a bucket is therefore a run of neighbouring rows, and
the offsets say it all; with k > 1 each bucket has a list of rows, and each row its code. An item
may be in fewer than k buckets: its code ends with -1, and no list names it for that.

A table larger than memory cannot be read whole when it is opened, yet no damaged byte may ever
reach an answer. So every kilobyte of a file has its own CRC-32 (the one of zlib and PNG), and
kernels ask ``first_damaged`` before they read. A block is checked once; afterwards it costs one
byte to look up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from flowhash.compile import half_to_float, inner_kernel, join_planes, kernel, pointer_to

BLOCK = 1024  # bytes with one checksum; small, because codes with k > 1 read scattered rows
BLOCK_BITS = 10
WORDS = BLOCK // 8
BROKEN = -2  # instead of a block: an entry points out of its array, which no writer does

# Positions in Arrays.starts.
HIGHS, LOWS, NORMS, IDS, POSTINGS, CODES, QUANTISED, QUANTA = range(8)

QUANTISED_FROM = 32  # numbers of a row; shorter ones do not fill a vector


class PlaneLayout(NamedTuple):
    """How the numbers of embeddings are stored; there is one for each dtype of a table.

    Attributes:
        dtype: what ``add`` rounds embeddings to.
        planes: the arrays in a segment's file and their types: what is ``Arrays.highs``, and
            ``Arrays.lows`` if numbers are split.
        limit: the largest number, in words.
    """

    dtype: np.dtype[Any]
    planes: dict[str, np.dtype[Any]]
    limit: str

    @property
    def is_split(self) -> bool:
        """Whether there is a lower plane."""
        return len(self.planes) > 1

    def is_quantised(self, dim: int) -> bool:
        """Whether new segments get the quantised plane: a quarter of two planes, half of one."""
        return self.is_split and dim >= QUANTISED_FROM

    def rounded(self, vectors: NDArray[np.float32]) -> NDArray[Any]:
        """Embeddings as they will be stored; what is too large becomes infinite."""
        with np.errstate(over="ignore"):
            return vectors.astype(self.dtype, copy=False)

    def empty_planes(self, count: int, dim: int) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Room for the upper plane and the lower one; that has no rows if there is none."""
        lows = np.empty((count if self.is_split else 0, dim), np.uint16)
        return np.empty((count, dim), np.uint16), lows


LAYOUTS = {
    "float32": PlaneLayout(
        np.dtype(np.float32),
        {"highs": np.dtype(np.uint16), "lows": np.dtype(np.uint16)},
        "3.4e38",
    ),
    "float16": PlaneLayout(np.dtype(np.float16), {"embeddings": np.dtype(np.float16)}, "65504"),
}


class Arrays(NamedTuple):
    """The arrays of a segment with n rows.

    Attributes:
        highs: the upper 16 bits of the embeddings' float32, rounded to nearest [n, dim] uint16; in
            a table of float16 the bits of those.
        lows: the lower 16 bits [n, dim] uint16; in a table of float16 without rows.
        norms: |x|² (euclidean, inner) or 1/|x| (cosine) [n] float32.
        ids: the ids, or the hashes of ids that are strings [n] int64.
        offsets: bucket b owns entries offsets[b] to offsets[b + 1] [d + 1] int64.
        postings: rows of each bucket, ascending int32; empty with k = 1. There are n·k, or fewer
            if a row has fewer than k buckets.
        codes: the code of each row, ascending, -1 behind its last bucket [n, k] int32; empty with
            k = 1.
        words: the file's data as 64-bit words, for its checksums; empty in memory.
        sums: the checksum of each block; empty in memory.
        verified: which blocks were found intact; with k > 1 behind them a byte for each bucket,
            for what scans found of all its rows.
        starts: the byte at which highs, lows, norms, ids, postings, codes, quantised and quanta
            start [8] int64.
        quantised: numbers in whole steps [n, dim] int8; without rows if there is no such plane.
        quanta: the step of each row, and a length that what the steps leave out of it does not
            exceed, both as upper 16 bits of float32 [n, 2] uint16.
    """

    highs: NDArray[np.uint16]
    lows: NDArray[np.uint16]
    norms: NDArray[np.float32]
    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    postings: NDArray[np.int32] = np.empty(0, np.int32)
    codes: NDArray[np.int32] = np.empty((0, 1), np.int32)
    words: NDArray[np.uint64] = np.empty(0, np.uint64)
    sums: NDArray[np.uint32] = np.empty(0, np.uint32)
    verified: NDArray[np.uint8] = np.empty(0, np.uint8)
    starts: NDArray[np.int64] = np.zeros(8, np.int64)
    quantised: NDArray[np.int8] = np.empty((0, 1), np.int8)
    quanta: NDArray[np.uint16] = np.empty((0, 2), np.uint16)


@inner_kernel
def copy_embedding(
    highs: NDArray[np.uint16],
    lows: NDArray[np.uint16],
    row: int,
    target: NDArray[np.float32],
    index: int,
) -> None:
    """Copy the embedding of a row as float32, however it is stored; ``target`` may be wider."""
    if lows.shape[0] > 0:
        for column in range(highs.shape[1]):
            target[index, column] = join_planes(highs[row, column], lows[row, column])
    else:
        for column in range(highs.shape[1]):
            target[index, column] = half_to_float(highs[row, column])


def _tables() -> NDArray[np.uint32]:
    """What each of eight bytes adds to the checksum (slicing by eight) [8, 256]."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        tables[0, byte] = value
    for step in range(1, 8):
        before = tables[step - 1]
        tables[step] = (before >> 8) ^ tables[0, before & 255]
    return tables


TABLES = _tables()


@inner_kernel
def _added(value: int, word: int) -> int:
    """The checksum ``value`` (its bits turned) with eight bytes more."""
    word ^= value
    return np.uint64(
        TABLES[7, word & np.uint64(255)]
        ^ TABLES[6, (word >> np.uint64(8)) & np.uint64(255)]
        ^ TABLES[5, (word >> np.uint64(16)) & np.uint64(255)]
        ^ TABLES[4, (word >> np.uint64(24)) & np.uint64(255)]
        ^ TABLES[3, (word >> np.uint64(32)) & np.uint64(255)]
        ^ TABLES[2, (word >> np.uint64(40)) & np.uint64(255)]
        ^ TABLES[1, (word >> np.uint64(48)) & np.uint64(255)]
        ^ TABLES[0, word >> np.uint64(56)]
    )


@inner_kernel
def block_checksum(words: NDArray[np.uint64], block: int) -> int:
    """The CRC-32 of one block of little-endian words; the last may be shorter."""
    value = np.uint64(0xFFFFFFFF)
    for index in range(block * WORDS, min(words.shape[0], (block + 1) * WORDS)):
        value = _added(value, words[index])
    return value ^ np.uint64(0xFFFFFFFF)


@inner_kernel
def block_checksums(words: NDArray[np.uint64], sums: NDArray[np.uint32]) -> None:
    """The checksum of every block of ``words`` into ``sums``.

    Four blocks at once: each step waits for the one before it.
    """
    ones = np.uint64(0xFFFFFFFF)
    whole = words.shape[0] // WORDS // 4 * 4
    for block in range(0, whole, 4):
        one = two = three = four = ones
        start = block * WORDS
        for index in range(start, start + WORDS):
            one = _added(one, words[index])
            two = _added(two, words[index + WORDS])
            three = _added(three, words[index + 2 * WORDS])
            four = _added(four, words[index + 3 * WORDS])
        sums[block] = one ^ ones
        sums[block + 1] = two ^ ones
        sums[block + 2] = three ^ ones
        sums[block + 3] = four ^ ones
    for block in range(whole, sums.shape[0]):
        sums[block] = block_checksum(words, block)


@inner_kernel
def first_damaged(
    words: NDArray[np.uint64],
    sums: NDArray[np.uint32],
    verified: NDArray[np.uint8],
    start: int,
    stop: int,
) -> int:
    """The first damaged block among bytes ``start`` to ``stop``, or -1.

    Args:
        words: the data, as 64-bit words.
        sums: the checksum of each block; empty for tables in memory, which have none.
        verified: one byte for each block, 1 where it was found intact before. Threads may write
            it at the same time: they write the same.
        start: the first byte that will be read.
        stop: one past the last.
    """
    if sums.shape[0] == 0 or stop <= start:
        return -1
    for block in range(start // BLOCK, (stop - 1) // BLOCK + 1):
        if verified[block] == 0:
            if block_checksum(words, block) != sums[block]:
                return block
            verified[block] = 1
    return -1


@inner_kernel
def damaged_plane(segment: Arrays, plane: int, width: int, start: int, stop: int) -> int:
    """The first damaged block under rows ``start`` to ``stop`` of one array, or -1."""
    begin = segment.starts[plane]
    return first_damaged(
        segment.words, segment.sums, segment.verified, begin + start * width, begin + stop * width
    )


@inner_kernel
def damaged_rows(segment: Arrays, start: int, stop: int, coarse: bool) -> int:
    """The first damaged block under embeddings and norms of rows ``start`` to ``stop``, or -1.

    With ``coarse`` the lower plane is left out.
    """
    if segment.sums.shape[0] == 0:
        return -1
    width = segment.highs.shape[1] * 2
    block = damaged_plane(segment, HIGHS, width, start, stop)
    if block < 0 and not coarse and segment.lows.shape[0] > 0:
        block = damaged_plane(segment, LOWS, width, start, stop)
    if block < 0:
        block = damaged_plane(segment, NORMS, 4, start, stop)
    return block


@inner_kernel
def damaged_listed(segment: Arrays, rows: NDArray[np.int32], size: int, coarse: bool) -> int:
    """The first damaged block under embeddings, norms and codes of listed rows, or -1.

    Nearly always all of them were found intact before. Whether they were is looked up without
    branches, so that the processor looks up many at a time.
    """
    if segment.sums.shape[0] == 0:
        return -1
    verified, starts, codes = segment.verified, segment.starts, segment.codes
    width, wide = segment.highs.shape[1] * 2, codes.shape[1] * 4
    highs, lows, norms, first = starts[HIGHS], starts[LOWS], starts[NORMS], starts[CODES]
    whole, coded = not coarse and segment.lows.shape[0] > 0, codes.shape[0] > 0
    intact = np.uint8(1)
    for place in range(size):
        row = np.int64(rows[place])
        intact &= was_verified(verified, highs + row * width, width)
        intact &= was_verified(verified, norms + row * 4, 4)
        if whole:
            intact &= was_verified(verified, lows + row * width, width)
        if coded:
            intact &= was_verified(verified, first + row * wide, wide)
    for place in range(0 if intact else size):
        fault = damaged_rows(segment, rows[place], rows[place] + 1, coarse)
        if fault == -1:
            fault = damaged_code(segment, rows[place])
        if fault != -1:
            return fault
    return -1


@inner_kernel
def was_verified(verified: NDArray[np.uint8], begin: int, width: int) -> int:
    """1 if all blocks under so many bytes, at least one, were found intact before."""
    first, last = begin >> BLOCK_BITS, (begin + width - 1) >> BLOCK_BITS
    intact = verified[first] & verified[last]
    for block in range(first + 1, last):
        intact &= verified[block]
    return intact


@inner_kernel
def damaged_postings(segment: Arrays, start: int, stop: int) -> int:
    """The first damaged block under postings ``start`` to ``stop``, or -1; k = 1 has none."""
    if segment.postings.shape[0] == 0:
        return -1
    return damaged_plane(segment, POSTINGS, 4, start, stop)


@inner_kernel
def damaged_code(segment: Arrays, row: int) -> int:
    """The first damaged block under the code of a row, or -1; with k = 1 there is none."""
    if segment.codes.shape[0] == 0:
        return -1
    return damaged_plane(segment, CODES, segment.codes.shape[1] * 4, row, row + 1)


@inner_kernel
def least_bucket(segment: Arrays) -> int:
    """The least number that a code may have: -1 for none where rows have fewer than k buckets.

    Arrays that kernels index by the buckets of a code have one line more than there are buckets,
    which is that of -1, the last.
    """
    return -1 if segment.postings.shape[0] < segment.codes.size else 0


@inner_kernel
def damaged_id(segment: Arrays, row: int) -> int:
    """The damaged block under the id of a row, or -1."""
    return damaged_plane(segment, IDS, 8, row, row + 1)


# Handing a dozen arrays from Python to a kernel takes longer than a small search. The arrays of a
# segment stay where they are, so their addresses can be noted once, in a single array.

_float32 = pointer_to(numba.types.float32)
_int8 = pointer_to(numba.types.int8)
_uint8 = pointer_to(numba.types.uint8)
_uint16 = pointer_to(numba.types.uint16)
_uint32 = pointer_to(numba.types.uint32)
_uint64 = pointer_to(numba.types.uint64)
_int32 = pointer_to(numba.types.int32)
_int64 = pointer_to(numba.types.int64)


def note(segment: Arrays, allowed: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Address and length of each array; valid as long as ``segment`` and ``allowed`` are kept."""
    entries = []
    for array in (*segment, allowed):
        if not array.flags.carray:  # kernels get bare addresses: checked under python -O too
            raise AssertionError("arrays of a segment lie in one piece")
        entries += [array.ctypes.data, array.shape[0]]
    return np.array([*entries, segment.highs.shape[1], segment.codes.shape[1]], np.int64)


@kernel
def look_up(noted: NDArray[np.int64]) -> tuple[Arrays, NDArray[np.uint8]]:
    """The arrays that :func:`note` noted, and the rows that may be found."""
    dim, active = noted[28], noted[29]
    segment = Arrays(
        numba.carray(_uint16(noted[0]), (noted[1], dim)),
        numba.carray(_uint16(noted[2]), (noted[3], dim)),
        numba.carray(_float32(noted[4]), (noted[5],)),
        numba.carray(_int64(noted[6]), (noted[7],)),
        numba.carray(_int64(noted[8]), (noted[9],)),
        numba.carray(_int32(noted[10]), (noted[11],)),
        numba.carray(_int32(noted[12]), (noted[13], active)),
        numba.carray(_uint64(noted[14]), (noted[15],)),
        numba.carray(_uint32(noted[16]), (noted[17],)),
        numba.carray(_uint8(noted[18]), (noted[19],)),
        numba.carray(_int64(noted[20]), (noted[21],)),
        numba.carray(_int8(noted[22]), (noted[23], dim)),
        numba.carray(_uint16(noted[24]), (noted[25], 2)),
    )
    return segment, numba.carray(_uint8(noted[26]), (noted[27],))
