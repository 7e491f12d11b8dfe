"""Checks of arguments that several rooms share."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.compile import inner_kernel
from flowhash.errors import InputError

LONGEST_VALUE = 80  # characters of one that a message repeats


@inner_kernel
def row_reaches(bits: NDArray[Any], row: int, exponent: Any, limit: Any) -> bool:
    """Whether any number of a row has an exponent of ``limit`` or more; see ``float_bits``."""
    reached = False
    for column in range(bits.shape[1]):
        reached |= (bits[row, column] & exponent) >= limit
    return reached


@inner_kernel
def first_bad_row(bits: NDArray[Any], exponent: Any, limit: Any) -> int:
    """The first row with a number whose exponent reaches ``limit``, or -1."""
    for row in range(bits.shape[0]):
        if row_reaches(bits, row, exponent, limit):
            return row
    return -1


def float_bits(values: NDArray[Any]) -> tuple[NDArray[Any], Any]:
    """The bits of a float32 or float64 array as integers, and the mask of their exponent.

    A number is NaN or infinite when all bits under the mask are set; integers compare so in SIMD,
    where a sum of floats would not.
    """
    if values.dtype == np.float32:
        return values.view(np.int32), np.int32(0x7F800000)
    return values.view(np.int64), np.int64(0x7FF0000000000000)


def plain_integer(value: Any) -> Any:
    """``value`` as an int where it is a whole number; otherwise as it is, for others to refuse."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def whole_number(name: str, value: Any, least: int) -> int:
    """``value``, if it is a whole number of ``least`` or more."""
    number = plain_integer(value)
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        came = f"{value!r}" if len(f"{value!r}") <= LONGEST_VALUE else f"a {type(value).__name__}"
        raise InputError(f"{name} is {came}; expected a whole number from {least}")
    return number


def numbers(values: ArrayLike, name: str) -> NDArray[Any]:
    """``values`` as an array of real numbers of any shape."""
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{name} is a masked array, and masks are not used; fill or drop its gaps")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, tensors with gradients
        raise InputError(f"{name} cannot be read as an array of numbers: {error}") from error
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} has dtype {array.dtype}; expected an array of real numbers")
    return array


def matrix(values: ArrayLike, name: str, columns: str, dtypes: tuple[type, ...]) -> NDArray[Any]:
    """``values`` as a contiguous two-dimensional float array, in the first dtype unless it has one.

    Args:
        values: anything numpy reads as numbers.
        name: what the argument is called.
        columns: what its columns are called, for the message.
        dtypes: the accepted types.
    """
    array = numbers(values, name)
    dtype = array.dtype if array.dtype in dtypes else np.dtype(dtypes[0])
    # Writable, because numba would compile all kernels once more for read-only arrays.
    array = np.require(array, dtype=dtype, requirements=["C", "W"])
    if array.ndim != 2:
        raise InputError(
            f"{name} has shape {array.shape}; expected two dimensions, one row each and "
            f"{columns} as columns. For a single row use values[None, :]"
        )
    if array.shape[1] == 0:
        raise InputError(f"{name} has shape {array.shape}: no {columns}; expected at least one")
    return array


def finite(array: NDArray[Any], name: str) -> None:
    """Refuse NaN and infinity, naming the first place."""
    bits, exponent = float_bits(array)
    row = first_bad_row(bits, exponent, exponent)
    if row >= 0:
        column = int(np.flatnonzero(~np.isfinite(array[row]))[0])
        raise InputError(
            f"{name}[{row}, {column}] is {array[row, column]}; every value must be finite. Look "
            f"for a division by zero or a learning rate that is too high, or drop those rows"
        )
