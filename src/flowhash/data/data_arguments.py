"""Checks of arguments that data sets and samplers share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import InputError


def checked_pairs(pairs: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions that occur, ascending, and the pairs [p, 2] as places in that list."""
    array = np.asarray(pairs)
    if array.ndim != 2 or array.shape[1] != 2 or array.size == 0 or array.dtype.kind not in "iu":
        raise InputError(
            f"pairs have shape {array.shape} and dtype {array.dtype}; expected positions of items "
            "[p, 2], at least one pair"
        )
    if array.min() < 0:
        raise InputError(f"pairs have the position {array.min()}; expected positions from 0")
    same = np.flatnonzero(array[:, 0] == array[:, 1])
    if same.size:
        raise InputError(
            f"pair {same[0]} is item {array[same[0], 0]} with itself; a pair is of two items. Drop "
            "such pairs"
        )
    positions, places = np.unique(array, return_inverse=True)
    return positions.astype(np.int64), places.reshape(array.shape).astype(np.int64)


def whole_number(name: str, value: Any, least: int) -> int:
    """``value``, if it is a whole number of ``least`` or more."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} is {value!r}; expected a whole number from {least}")
    return int(value)
