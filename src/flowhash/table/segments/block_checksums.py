"""Checksums of stored data, block by block, checked when a block is first read.

A table larger than memory cannot be read whole when it is opened, yet no damaged byte may ever
reach an answer. So every kilobyte of a file has its own CRC-32 (the one of zlib and PNG), and
kernels ask ``first_damaged`` before they read. A block is checked once; afterwards it costs one
byte to look up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel

BLOCK = 1024  # bytes with one checksum; small, because codes with k > 1 read scattered rows
WORDS = BLOCK // 8


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
def block_checksum(words: NDArray[np.uint64], block: int) -> int:
    """The CRC-32 of one block of little-endian words; the last may be shorter."""
    value = np.uint64(0xFFFFFFFF)
    for index in range(block * WORDS, min(words.shape[0], (block + 1) * WORDS)):
        word = words[index] ^ value
        value = np.uint64(
            TABLES[7, word & np.uint64(255)]
            ^ TABLES[6, (word >> np.uint64(8)) & np.uint64(255)]
            ^ TABLES[5, (word >> np.uint64(16)) & np.uint64(255)]
            ^ TABLES[4, (word >> np.uint64(24)) & np.uint64(255)]
            ^ TABLES[3, (word >> np.uint64(32)) & np.uint64(255)]
            ^ TABLES[2, (word >> np.uint64(40)) & np.uint64(255)]
            ^ TABLES[1, (word >> np.uint64(48)) & np.uint64(255)]
            ^ TABLES[0, word >> np.uint64(56)]
        )
    return value ^ np.uint64(0xFFFFFFFF)


@inner_kernel
def block_checksums(words: NDArray[np.uint64], sums: NDArray[np.uint32]) -> None:
    """The checksum of every block of ``words`` into ``sums``."""
    for block in range(sums.shape[0]):
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
