"""The rows of a bucket: which they are, checked, and their numbers in one place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel
from flowhash.intrinsics import prefetch
from flowhash.table.arrays import (
    Arrays,
    copy_embedding,
    damaged_code,
    damaged_postings,
    damaged_rows,
)

AHEAD = 32  # rows to fetch before they are needed; buckets are scattered over memory
LINE = 32  # numbers of 16 bits that memory delivers at once
BROKEN = -2  # instead of a block: an entry points out of its array, which no writer does


@inner_kernel
def list_rows(
    segment: Arrays,
    allowed: NDArray[np.uint8],
    entry: int,
    stop: int,
    coarse: bool,
    rows: NDArray[np.int32],
) -> tuple[int, int, int]:
    """List the next allowed rows of a bucket, checked.

    Returns:
        The entry to go on from, how many rows were listed, and -1 or what is wrong.
    """
    total = segment.norms.shape[0]
    buckets = segment.offsets.shape[0] - 1
    listed = segment.postings.shape[0] > 0
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
        if segment.sums.shape[0] > 0:
            fault = damaged_rows(segment, row, row + 1, coarse)
            if fault == -1:
                fault = damaged_code(segment, row)
            for column in range(segment.codes.shape[1] if listed else 0):
                bucket = segment.codes[row, column]
                if bucket < 0 or bucket >= buckets:
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
