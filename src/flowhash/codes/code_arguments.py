"""Arguments of the functions that find codes, checked: k, λ, prices, codes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.argument_checks import finite, first_bad_row, float_bits, numbers, plain_integer
from flowhash.errors import InputError

# Sums and differences of class means and prices stay finite below this.
LARGEST = 1e100


def summable(array: NDArray[np.float64], name: str) -> None:
    """Refuse NaN, infinity, and numbers beyond LARGEST, whose sums could overflow."""
    bits, exponent = float_bits(array)
    limit = np.float64(LARGEST).view(np.int64) & exponent
    row = first_bad_row(bits, exponent, limit)
    if row >= 0:
        finite(array, name)
        column = int(np.abs(array[row]).argmax())
        raise InputError(
            f"{name}[{row}, {column}] is {array[row, column]}; sums of such numbers overflow. "
            f"Divide {name} and penalty by the same number, which changes no code"
        )


def active_count(active: int, size: int) -> int:
    """``active`` (k) as a number of buckets between 1 and ``size`` (d)."""
    count = plain_integer(active)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= size:
        raise InputError(
            f"active is {active!r}; expected a whole number with 1 <= active <= {size}, the number "
            f"of buckets"
        )
    return count


def penalties(penalty: ArrayLike, size: int) -> NDArray[np.float64]:
    """``penalty`` (λ) as one non-negative number per bucket [d]."""
    array = numbers(penalty, "penalty").astype(np.float64)
    if array.ndim and array.shape != (size,):
        raise InputError(
            f"penalty has shape {array.shape}; expected one number, or one per bucket: ({size},)"
        )
    lowest, highest = float(array.min()), float(array.max())
    if not lowest >= 0.0:
        raise InputError(
            f"penalty contains {lowest}; every penalty must be at least 0. Use 0 for no penalty "
            f"(then the codes are the top-k of each class)"
        )
    if highest > LARGEST:
        raise InputError(
            f"penalty contains {highest}; expected finite numbers up to {LARGEST:g}. From about a "
            f"thousand times the class means on, a larger penalty changes no code"
        )
    if array.ndim == 0:
        return np.full(size, float(array))
    return np.require(array, requirements=["C", "W"])


def outside_loads(outside: ArrayLike, size: int) -> NDArray[np.float64]:
    """``outside``, loads that others make, one number from 0 per bucket [d]."""
    array = numbers(outside, "outside").astype(np.float64)
    if array.shape != (size,):
        raise InputError(
            f"outside has shape {array.shape}; expected ({size},), how many classes that are not "
            "in the batch are in each bucket"
        )
    if not (array.min() >= 0 and array.max() <= LARGEST):
        bad = array[~((array >= 0) & (array <= LARGEST))][0]
        raise InputError(f"outside contains {bad}; expected finite numbers from 0")
    return array


def start_prices(prices: ArrayLike, size: int) -> NDArray[np.float64]:
    """``prices`` to start from, one finite number per bucket [d]."""
    array = np.require(numbers(prices, "prices"), np.float64, ["C", "W"])
    if array.shape != (size,):
        raise InputError(
            f"prices has shape {array.shape}; expected ({size},), the prices of an earlier "
            f"assignment over the same {size} buckets"
        )
    if not np.abs(array).max() <= LARGEST:
        raise InputError(
            f"prices contain {array[np.abs(array).argmax()]}; expected finite numbers up to "
            f"{LARGEST:g}. Leave prices out to start cold"
        )
    return array


def code_matrix(codes: ArrayLike, rows: int, size: int) -> NDArray[np.int64]:
    """``codes`` as [rows, k] bucket numbers below ``size``, no bucket twice in a row."""
    array = numbers(codes, "codes")
    if array.dtype.kind not in "iu" or array.ndim != 2:
        raise InputError(
            f"codes has shape {array.shape} and dtype {array.dtype}; expected whole numbers "
            f"[{rows}, k], the active buckets of each row"
        )
    if array.shape[0] != rows:
        raise InputError(f"codes has {array.shape[0]} rows; expected {rows}, one code each")
    active_count(array.shape[1], size)
    if array.size and not (array.min() >= 0 and array.max() < size):
        raise InputError(
            f"codes names buckets {array.min()} to {array.max()}; expected 0 to {size - 1}"
        )
    ordered = np.sort(array, axis=1)
    doubled = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    if doubled.any():
        row = int(doubled.argmax())
        raise InputError(f"codes[{row}] is {array[row]}: a bucket twice; a code is a set")
    return array.astype(np.int64, copy=False)
