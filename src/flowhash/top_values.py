"""Selection of the largest values of a row, without sorting it and almost without branches.

One SIMD pass takes the maximum of every few neighbours. From those maxima follows a floor that the
wanted values are sure to reach; only the few groups that reach it are looked at value by value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel, larger, smaller

GROUP = 8  # neighbouring values that are compared at once before any is looked at alone


@inner_kernel
def group_count(size: int) -> int:
    """How many groups a row of ``size`` values has."""
    return (size + GROUP - 1) // GROUP


@inner_kernel
def group_maxima(values: NDArray[Any], maxima: NDArray[Any]) -> None:
    """The largest value of every GROUP neighbours; the last group may be smaller."""
    size = values.shape[0]
    whole = size // GROUP
    for group in range(whole):
        best = values[group * GROUP]
        for index in range(1, GROUP):
            best = larger(values[group * GROUP + index], best)
        maxima[group] = best
    if whole * GROUP < size:
        best = values[whole * GROUP]
        for index in range(whole * GROUP + 1, size):
            best = larger(values[index], best)
        maxima[whole] = best


@inner_kernel
def reached_by(maxima: NDArray[Any], count: int) -> Any:
    """A floor that at least ``count`` values reach; minus infinity with fewer groups than that.

    Dealt out to ``count`` hands, each hand's best is another value; the least of those is it.
    """
    groups = maxima.shape[0]
    least = maxima[0]
    if groups < count:
        least -= np.inf
        return least
    for hand in range(count):
        best = maxima[hand]
        for group in range(hand + count, groups, count):
            best = larger(maxima[group], best)
        least = best if hand == 0 else smaller(best, least)
    return least


@inner_kernel
def closely_reached_by(maxima: NDArray[Any], count: int, hands: NDArray[Any]) -> Any:
    """Like :func:`reached_by`, but a floor that few more than ``count`` values reach.

    Dealt out to twice as many hands, it is the best of hand number ``count``; with one hand for
    each wanted value the worst hand is a bad one, and four times as many values reach its best.

    Args:
        maxima: the largest value of each group.
        count: how many values are wanted.
        hands: scratch space for two values each wanted one, or for as many as there are maxima.
    """
    groups = maxima.shape[0]
    least = maxima[0]
    if groups < count:
        least -= np.inf
        return least
    dealt = min(groups, 2 * count)
    for hand in range(dealt):
        hands[hand] = maxima[hand]
    for start in range(dealt, groups, dealt):
        for hand in range(min(dealt, groups - start)):
            hands[hand] = larger(maxima[start + hand], hands[hand])
    least += np.inf
    for hand in range(dealt):
        value = hands[hand]
        better = 0
        for other in range(dealt):
            better += hands[other] > value
        if better < count:
            least = smaller(value, least)
    return least


@inner_kernel
def best_first(
    values: NDArray[Any],
    maxima: NDArray[Any],
    codes: NDArray[np.int32],
    row: int,
    found: NDArray[Any],
) -> None:
    """The indices of the largest values, best first, ties to the lowest index, into ``codes[row]``.

    Args:
        values: all finite [d].
        maxima: scratch space for ``group_count(d)`` maxima.
        codes: line ``row`` receives as many indices as it has room for [n, k].
        row: which line.
        found: receives their values [k].
    """
    size = values.shape[0]
    count = codes.shape[1]
    group_maxima(values, maxima)
    floor = reached_by(maxima, count)
    filled = 0
    for group in range(maxima.shape[0]):
        if maxima[group] < floor:
            continue
        for index in range(group * GROUP, min(size, group * GROUP + GROUP)):
            value = values[index]
            if value < floor or (filled == count and value <= found[count - 1]):
                continue
            place = min(filled, count - 1)
            filled = place + 1
            while place > 0 and found[place - 1] < value:
                found[place] = found[place - 1]
                codes[row, place] = codes[row, place - 1]
                place -= 1
            found[place] = value
            codes[row, place] = index


@inner_kernel
def sort_rows(codes: NDArray[np.int32]) -> None:
    """Put every row in ascending order; rows are short, so by insertion."""
    for row in range(codes.shape[0]):
        for index in range(1, codes.shape[1]):
            bucket = codes[row, index]
            place = index
            while place > 0 and codes[row, place - 1] > bucket:
                codes[row, place] = codes[row, place - 1]
                place -= 1
            codes[row, place] = bucket
