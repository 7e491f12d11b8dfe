"""The quantised plane: each number of a row in whole steps, in one byte, and what that leaves out.

Every row has a step of its own, a 127th of its largest number or a little more, and the length of
what whole steps leave out of it. Both are kept as the upper half of a float32, rounded up: together
they take no more than a quarter of what the rest of a row does. How far an inner product with the
steps is from the one with the row then follows for each row alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import (
    filter_kernel,
    high_to_float,
    inner_kernel,
    join_planes,
    larger,
    whole_part,
)

BYTE_STEPS = 127
TINY = 1e-25  # rows of smaller numbers are left out as a whole: nothing then underflows


def empty_quantised(count: int, dim: int) -> tuple[NDArray[np.int8], NDArray[np.uint16]]:
    """Room for the plane and the quanta of so many rows."""
    return np.empty((count, dim), np.int8), np.empty((count, 2), np.uint16)


@inner_kernel
def upper_half(value: float) -> int:
    """The upper 16 bits of the least float32 that has no others and is not below ``value`` >= 0.

    It is up to 2^-7 larger.
    """
    nearest = np.float32(value)
    bits = np.int64(nearest.view(np.uint32))
    bits += np.float64(nearest) < value  # the next float32 has the next number as its bits
    return (bits + 0xFFFF) >> 16


@filter_kernel
def quantise_row(
    highs: NDArray[np.uint16],
    lows: NDArray[np.uint16],
    row: int,
    step: float,
    quantised: NDArray[np.int8],
) -> float:
    """Write a row in whole steps; the square of what they leave out.

    A product of steps is exact in float64; the sum is not in its last bits, whatever its order.
    """
    factor = 1.0 / step if step > 0.0 else 0.0
    total = np.float64(0.0)
    for column in range(highs.shape[1]):
        value = np.float64(join_planes(highs[row, column], lows[row, column]))
        steps = whole_part(value * factor)
        quantised[row, column] = np.int8(np.int32(steps))
        rest = value - step * steps
        total += rest * rest
    return total


@filter_kernel
def largest_number(highs: NDArray[np.uint16], lows: NDArray[np.uint16], row: int) -> float:
    """The largest number of a row, without its sign."""
    largest = np.float32(0.0)
    for column in range(highs.shape[1]):
        largest = larger(abs(join_planes(highs[row, column], lows[row, column])), largest)
    return largest


@inner_kernel
def quantise(
    highs: NDArray[np.uint16],
    lows: NDArray[np.uint16],
    quantised: NDArray[np.int8],
    quanta: NDArray[np.uint16],
) -> None:
    """Quantise rows of float32, given in two planes."""
    for row in range(highs.shape[0]):
        largest = np.float64(largest_number(highs, lows, row))
        quanta[row, 0] = upper_half(largest / BYTE_STEPS) if largest >= TINY else 0
        step = np.float64(high_to_float(quanta[row, 0]))
        rest = np.sqrt(quantise_row(highs, lows, row, step, quantised))
        quanta[row, 1] = upper_half(rest * (1.0 + 1e-9) + 1e-40)  # for the bits that sums lose
