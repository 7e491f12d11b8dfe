"""The solver's picture of a set of codes, and the best codes at given prices.

A *row* is a class of the mini-batch, a *bucket* one of the d outputs. While bucket ``q`` costs
``prices[q]``, a row takes the ``active`` buckets with the largest ``means[row, q] - prices[q]``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel, kernel
from flowhash.top_values import best_first, group_count

NOBODY = -1


class Matching(NamedTuple):
    """Which row holds which buckets, in every form that the search asks for.

    A *holding* is one entry of ``held``, numbered ``row * active + index``; the holdings of one
    bucket form a linked list.

    Attributes:
        held: the buckets of each row [n, k].
        row_of: the row of a holding [n * k].
        first: a bucket's first holding, or NOBODY [d].
        following: the next holding of the same bucket, or NOBODY [n * k].
        preceding: the previous holding of the same bucket, or NOBODY [n * k].
        load: how many rows each bucket has [d].
        free: the class means, minus infinity where the row holds the bucket already [n, d].
    """

    held: NDArray[np.int32]
    row_of: NDArray[np.int32]
    first: NDArray[np.int32]
    following: NDArray[np.int32]
    preceding: NDArray[np.int32]
    load: NDArray[np.int64]
    free: NDArray[np.float64]


@inner_kernel
def worths_of(
    means: NDArray[np.float64],
    row: int,
    prices: NDArray[np.float64],
    worths: NDArray[np.float64],
) -> None:
    """What each bucket is worth to one row: its mean less the price. Written to ``worths`` [d]."""
    for bucket in range(worths.shape[0]):
        worths[bucket] = means[row, bucket] - prices[bucket]


@kernel
def best_codes(
    means: NDArray[np.float64], prices: NDArray[np.float64], active: int
) -> NDArray[np.int32]:
    """The ``active`` best buckets of every row at these prices [n, k], best first."""
    rows, size = means.shape
    codes = np.empty((rows, active), np.int32)
    worths = np.empty(size)
    maxima = np.empty(group_count(size))
    found = np.empty(active)
    for row in range(rows):
        worths_of(means, row, prices, worths)
        best_first(worths, maxima, codes, row, found)
    return codes


@kernel
def loads_of(codes: NDArray[np.int32], size: int) -> NDArray[np.int64]:
    """How many rows each of ``size`` buckets has [d]."""
    load = np.zeros(size, np.int64)
    for row in range(codes.shape[0]):
        for index in range(codes.shape[1]):
            load[codes[row, index]] += 1
    return load


@inner_kernel
def link(matching: Matching, holding: int, bucket: int) -> None:
    """Put ``holding`` at the head of the list of ``bucket``."""
    head = matching.first[bucket]
    matching.following[holding] = head
    matching.preceding[holding] = NOBODY
    if head != NOBODY:
        matching.preceding[head] = holding
    matching.first[bucket] = holding
    matching.load[bucket] += 1


@inner_kernel
def unlink(matching: Matching, holding: int, bucket: int) -> None:
    """Take ``holding`` out of the list of ``bucket``."""
    before = matching.preceding[holding]
    after = matching.following[holding]
    if before == NOBODY:
        matching.first[bucket] = after
    else:
        matching.following[before] = after
    if after != NOBODY:
        matching.preceding[after] = before
    matching.load[bucket] -= 1


@kernel
def match(
    codes: NDArray[np.int32], means: NDArray[np.float64], free: NDArray[np.float64]
) -> Matching:
    """The matching with these codes; ``free`` [n, d] is scratch space that it keeps."""
    rows, active = codes.shape
    size = means.shape[1]
    matching = Matching(
        codes,
        np.empty(rows * active, np.int32),
        np.full(size, NOBODY, np.int32),
        np.empty(rows * active, np.int32),
        np.empty(rows * active, np.int32),
        np.zeros(size, np.int64),
        free,
    )
    for row in range(rows):
        free[row] = means[row]
        for index in range(active):
            bucket = codes[row, index]
            matching.row_of[row * active + index] = row
            link(matching, row * active + index, bucket)
            free[row, bucket] = -np.inf
    return matching


@inner_kernel
def move(matching: Matching, means: NDArray[np.float64], holding: int, target: int) -> None:
    """Let the row of ``holding`` give up that bucket for bucket ``target``."""
    row = matching.row_of[holding]
    index = holding - row * matching.held.shape[1]
    source = matching.held[row, index]
    unlink(matching, holding, source)
    link(matching, holding, target)
    matching.held[row, index] = target
    matching.free[row, source] = means[row, source]
    matching.free[row, target] = -np.inf
