"""Affinities of queries with the rows of a bucket: gathering rows, inner products, norms.

An affinity is larger for a nearer row: 2q·x - |x|², q·x/|x| or q·x. Sums are in float32, in any
order; ``refine.error_bound`` says how wrong they may be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import filter_kernel, inner_kernel
from flowhash.intrinsics import high_to_float, prefetch
from flowhash.table.arrays import (
    COSINE,
    EUCLIDEAN,
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


@inner_kernel
def copy_row(
    source: NDArray[np.float32], row: int, target: NDArray[np.float32], index: int
) -> None:
    """Copy one row of a matrix to a row of another."""
    for column in range(target.shape[1]):
        target[index, column] = source[row, column]


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
    dim = block.shape[1]
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
    index: int,
    products: NDArray[np.float32],
) -> None:
    """Inner products of one query with gathered rows."""
    for row in range(size):
        total = np.float32(0.0)
        for column in range(block.shape[1]):
            total += block[index, column] * gathered[row, column]
        products[index, row] = total


@inner_kernel
def spread(product: NDArray[np.float32], left: int, affinities: NDArray[np.float32]) -> None:
    """Copy a product's lines behind what earlier products left in the lines of ``affinities``."""
    for index in range(product.shape[0]):
        for column in range(product.shape[1]):
            affinities[index, left + column] = product[index, column]


@inner_kernel
def to_affinities(
    metric: int,
    affinities: NDArray[np.float32],
    index: int,
    norms: NDArray[np.float32],
    size: int,
) -> None:
    """Turn the inner products of a line into affinities."""
    if metric == EUCLIDEAN:
        for column in range(size):
            value = affinities[index, column]
            affinities[index, column] = value + value - norms[column]
    elif metric == COSINE:
        for column in range(size):
            affinities[index, column] *= norms[column]
