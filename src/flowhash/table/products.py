"""Affinities of queries with the rows of a bucket: inner products, and norms.

An affinity is larger for a nearer row: 2q·x - |x|², q·x/|x| or q·x. Sums are in float32, in any
order; ``refine.error_bound`` says how wrong they may be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import filter_kernel, inner_kernel
from flowhash.intrinsics import half_to_float, high_to_float, prefetch
from flowhash.table.arrays import COSINE, EUCLIDEAN
from flowhash.table.gather import AHEAD, LINE


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
    count: int,
    products: NDArray[np.float32],
) -> None:
    """Inner products of a few queries with gathered rows, four of them at once as above."""
    dim = block.shape[1]
    whole = size // 4 * 4
    for row in range(0, whole, 4):
        for index in range(count):
            one = two = three = four = np.float32(0.0)
            for column in range(dim):
                value = block[index, column]
                one += value * gathered[row, column]
                two += value * gathered[row + 1, column]
                three += value * gathered[row + 2, column]
                four += value * gathered[row + 3, column]
            products[index, row] = one
            products[index, row + 1] = two
            products[index, row + 2] = three
            products[index, row + 3] = four
    for row in range(whole, size):
        for index in range(count):
            total = np.float32(0.0)
            for column in range(dim):
                total += block[index, column] * gathered[row, column]
            products[index, row] = total


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
    dim = block.shape[1]
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
