"""The rows' short lists: the few buckets that a row may bid for in the auction.

Prices only rise there. So a list of the best buckets stays good until its second best falls below
everything that was left out; only then it is written anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.codes.matching import worths_of
from flowhash.compile import inner_kernel, kernel, larger, smaller
from flowhash.top_values import GROUP, group_count, group_maxima, reached_by

SPARE = 4  # buckets that a short list has at least beside those that the row will hold


class Lists(NamedTuple):
    """The rows' short lists.

    Attributes:
        buckets: the bucket numbers [n, room].
        values: the class means there, minus infinity where the row holds the bucket [n, room].
        length: how many entries a row's list has [n].
        bound: at most so much is any bucket outside the list worth [n].
    """

    buckets: NDArray[np.int32]
    values: NDArray[np.float64]
    length: NDArray[np.int64]
    bound: NDArray[np.float64]


class Scratch(NamedTuple):
    """Room to work in: a row's worths [d], their group maxima, the worths in its list [room]."""

    worths: NDArray[np.float64]
    maxima: NDArray[np.float64]
    listed: NDArray[np.float64]


@kernel
def new_lists(rows: int, size: int, active: int) -> tuple[Lists, Scratch]:
    """Room for the lists of all rows, and to work in."""
    room = min(size, 3 * (active + SPARE))
    lists = Lists(
        np.empty((rows, room), np.int32),
        np.empty((rows, room)),
        np.empty(rows, np.int64),
        np.empty(rows),
    )
    return lists, Scratch(np.empty(size), np.empty(group_count(size)), np.empty(room))


@inner_kernel
def list_row(
    lists: Lists,
    row: int,
    means: NDArray[np.float64],
    prices: NDArray[np.float64],
    wanted: int,
    scratch: Scratch,
) -> float:
    """Write a row's short list at the present prices; the mean distance between its worths."""
    worths, maxima, listed = scratch
    size, room = worths.shape[0], listed.shape[0]
    worths_of(means, row, prices, worths)
    group_maxima(worths, maxima)
    floor = reached_by(maxima, wanted)
    outside = -np.inf
    count = 0
    for group in range(maxima.shape[0]):
        if maxima[group] < floor:
            outside = larger(maxima[group], outside)
            continue
        for bucket in range(group * GROUP, min(size, group * GROUP + GROUP)):
            worth = worths[bucket]
            if worth < floor:
                outside = larger(worth, outside)
                continue
            index = count
            if count < room:
                count += 1
            else:
                index = 0
                for other in range(1, room):
                    if listed[other] < listed[index]:
                        index = other
                outside = larger(smaller(worth, listed[index]), outside)
                if worth <= listed[index]:
                    continue
            listed[index] = worth
            lists.buckets[row, index] = bucket
            lists.values[row, index] = means[row, bucket]
    lists.length[row] = count
    lists.bound[row] = outside
    best, worst = listed[0], listed[0]
    for index in range(1, count):
        best = larger(listed[index], best)
        worst = smaller(listed[index], worst)
    return float((best - worst) / count)


@inner_kernel
def favourite(
    buckets: NDArray[np.int32],
    values: NDArray[np.float64],
    row: int,
    length: int,
    prices: NDArray[np.float64],
    worths: NDArray[np.float64],
) -> tuple[int, float, float]:
    """Where in its list the row's best free bucket stands, its worth, and the second best's."""
    first = -np.inf
    for index in range(length):
        worth = values[row, index] - prices[buckets[row, index]]
        worths[index] = worth
        first = larger(worth, first)
    choice = 0
    while worths[choice] != first:
        choice += 1
    worths[choice] = -np.inf
    second = -np.inf
    for index in range(length):
        second = larger(worths[index], second)
    return choice, first, second
