"""Codes from activations: the k largest outputs (Eq. 1), and the order in which a query probes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.argument_checks import finite, float_bits, matrix, row_reaches
from flowhash.codes.code_arguments import active_count
from flowhash.compile import kernel
from flowhash.errors import InputError
from flowhash.threads import in_shards
from flowhash.top_values import best_first, group_count, sort_rows

SHORT = 32  # orderings up to this length come from the top-k kernel, longer ones from a sort


@kernel
def _topk(
    activations: NDArray[Any], bits: NDArray[Any], exponent: Any, codes: NDArray[np.int32]
) -> int:
    """Fill ``codes`` [n, k], best first; the first row that is not finite, or -1.

    The check of a row happens while it lies in the cache, so it costs next to nothing.
    """
    rows, size = activations.shape
    count = codes.shape[1]
    maxima = np.empty(group_count(size), activations.dtype)
    found = np.empty(count, activations.dtype)
    for row in range(rows):
        if row_reaches(bits, row, exponent, exponent):
            return row
        best_first(activations[row], maxima, codes, row, found)
    return -1


def _fill(
    activations: NDArray[Any], count: int, sort: bool, threads: int | None
) -> NDArray[np.int32]:
    codes = np.empty((len(activations), count), np.int32)
    bits, exponent = float_bits(activations)

    def work(start: int, stop: int) -> int:
        part = slice(start, stop)
        row = _topk(activations[part], bits[part], exponent, codes[part])
        if sort:
            sort_rows(codes[part])
        return -1 if row < 0 else start + row

    if any(row >= 0 for row in in_shards(work, len(activations), threads)):
        finite(activations, "activations")
    return codes


def topk_codes(
    activations: ArrayLike, active: int, *, threads: int | None = None
) -> NDArray[np.int32]:
    """The code of every item: its ``active`` largest activations (Eq. 1).

    Args:
        activations: the hash network's outputs [n, d]; float32 and float64 are read as they are.
        active: k, the number of active buckets, 1 <= k <= d.
        threads: how many threads to use at the most; all cores by default.

    Returns:
        Codes [n, k] int32. A code is a set: each row is in ascending order, so equal codes are
        equal rows. Among equal activations the lowest buckets win.

    Raises:
        InputError: wrong shape or type, k out of range, NaN or infinity.

    Example:
        >>> topk_codes([[0.1, 0.9, 0.3], [0.5, 0.5, 0.5]], active=2)
        array([[1, 2],
               [0, 1]], dtype=int32)
    """
    array = matrix(activations, "activations", "buckets", (np.float64, np.float32))
    return _fill(array, active_count(active, array.shape[1]), True, threads)


def ordered_buckets(
    activations: ArrayLike, first: int | None = None, *, threads: int | None = None
) -> NDArray[np.int32]:
    """The buckets in the order in which a query opens them: largest activation first.

    Args:
        activations: the hash network's outputs [n, d].
        first: how many buckets to return of each row; all d by default.
        threads: how many threads to use at the most; all cores by default.

    Returns:
        Buckets [n, first] int32; ties go to the lowest bucket, so the first k of a row are, as a
        set, its ``topk_codes``.

    Raises:
        InputError: wrong shape or type, ``first`` out of range, NaN or infinity.

    Example:
        >>> ordered_buckets([[0.1, 0.9, 0.3]])
        array([[1, 2, 0]], dtype=int32)
    """
    array = matrix(activations, "activations", "buckets", (np.float64, np.float32))
    size = array.shape[1]
    try:
        count = size if first is None else active_count(first, size)
    except InputError:
        raise InputError(f"first is {first!r}; expected a whole number from 1 to {size}") from None
    if count <= SHORT:
        return _fill(array, count, False, threads)
    finite(array, "activations")
    ordered = np.empty((len(array), count), np.int32)

    def work(start: int, stop: int) -> None:
        order = np.argsort(-array[start:stop], axis=1, kind="stable")
        ordered[start:stop] = order[:, :count]

    in_shards(work, len(array), threads)
    return ordered
