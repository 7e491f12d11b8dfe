"""Good starting prices: an auction in which the rows bid for the buckets of their short lists."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.codes.load_prices import LoadCosts, marginal, worths_of
from flowhash.compile import inner_kernel, kernel, larger, smaller
from flowhash.top_values import GROUP, group_count, group_maxima, reached_by

EAGERNESS = 0.8  # share of its advantage that a row bids
FINENESS = 0.15  # the least raise, in parts of the mean distance between a row's best buckets
BUCKETS_PER_BID = 10  # a unit gets one bid for so many buckets; the rest is for the exact search
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


class Places(NamedTuple):
    """The buckets' places, the first ``load`` of a column taken.

    Place comes before bucket, so that the few places in use lie together and the memory of the
    others is never touched.

    Attributes:
        load: taken places [d].
        paid: what the holder paid [n, d].
        owner: the row that holds it [n, d].
        spot: where the bucket stood in the owner's short list when it bid [n, d].
    """

    load: NDArray[np.int64]
    paid: NDArray[np.float64]
    owner: NDArray[np.int32]
    spot: NDArray[np.int32]


@inner_kernel
def mark_held(lists: Lists, places: Places, row: int) -> int:
    """Tell a new short list which of its buckets the row holds; how many it does not."""
    free = 0
    for index in range(lists.length[row]):
        bucket = lists.buckets[row, index]
        held = False
        for place in range(places.load[bucket]):
            if places.owner[place, bucket] == row:
                places.spot[place, bucket] = index
                held = True
        if held:
            lists.values[row, index] = -np.inf
        else:
            free += 1
    return free


@inner_kernel
def cheapest_place(
    paid: NDArray[np.float64], bucket: int, load: int, fresh: float, after: float
) -> tuple[int, float]:
    """The cheapest place of a bucket, and what the next cheapest one costs.

    A place at ``load`` is a new one and costs ``fresh``, the one behind it ``after``.
    """
    cheapest, next_cheapest, place = np.inf, np.inf, load
    for index in range(load):
        cost = paid[index, bucket]
        if cost < cheapest:
            next_cheapest, cheapest, place = cheapest, cost, index
        elif cost < next_cheapest:
            next_cheapest = cost
    if fresh <= cheapest:
        return load, min(cheapest, after)
    return place, min(next_cheapest, fresh)


@inner_kernel
def run_bids(
    means: NDArray[np.float64],
    active: int,
    loads: LoadCosts,
    opening: NDArray[np.float64],
    prices: NDArray[np.float64],
    lists: Lists,
    places: Places,
    waiting: NDArray[np.int64],
    scratch: Scratch,
    least_raise: float,
) -> None:
    """Let the rows bid until all are served or the budget is spent; raises ``prices`` in place.

    ``waiting`` names a row for every unit that it still needs; it is used as a ring.
    """
    size, units = means.shape[1], waiting.shape[0]
    buckets, values, length, bound = lists
    load, paid, owner, spot = places
    listed = scratch.listed
    head, left = 0, units
    for _ in range(units * max(1, size // BUCKETS_PER_BID)):
        if left == 0:
            break
        row = waiting[head]
        choice, first, second = favourite(buckets, values, row, length[row], prices, listed)
        if second < bound[row]:
            list_row(lists, row, means, prices, min(size, active + SPARE), scratch)
            if mark_held(lists, places, row) >= 2:
                continue
            second = -np.inf
        head = head + 1 if head + 1 < units else 0
        left -= 1
        if second == -np.inf:
            continue  # nothing to choose between: the exact search will serve this row
        bucket = buckets[row, choice]
        taken = load[bucket]
        fresh = max(marginal(loads, bucket, taken), opening[bucket])
        after = max(marginal(loads, bucket, taken + 1), opening[bucket])
        place, next_price = cheapest_place(paid, bucket, taken, fresh, after)
        if place == taken:
            load[bucket] += 1
        else:
            loser = owner[place, bucket]
            seat = spot[place, bucket]
            if seat < length[loser] and buckets[loser, seat] == bucket:
                values[loser, seat] = means[loser, bucket]
            else:  # the loser's list was written anew since, without this bucket
                bound[loser] = max(bound[loser], means[loser, bucket] - prices[bucket])
            waiting[(head + left) % units] = loser
            left += 1
        owner[place, bucket] = row
        spot[place, bucket] = choice
        paid[place, bucket] = prices[bucket] + least_raise + EAGERNESS * (first - second)
        prices[bucket] = min(paid[place, bucket], next_price)
        values[row, choice] = -np.inf


@kernel
def auction(
    means: NDArray[np.float64], active: int, loads: LoadCosts, opening: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Prices [d] near the optimal ones, counted from the level, none below ``opening`` [d]."""
    rows, size = means.shape
    wanted = min(size, active + SPARE)
    room = min(size, 3 * wanted)
    prices = opening.copy()
    lists = Lists(
        np.empty((rows, room), np.int32),
        np.empty((rows, room)),
        np.empty(rows, np.int64),
        np.empty(rows),
    )
    scratch = Scratch(np.empty(size), np.empty(group_count(size)), np.empty(room))
    places = Places(
        np.zeros(size, np.int64),
        np.empty((rows, size)),
        np.empty((rows, size), np.int32),
        np.empty((rows, size), np.int32),
    )
    spacing = 0.0
    for row in range(rows):
        spacing += list_row(lists, row, means, prices, wanted, scratch)
    waiting = np.arange(rows * active) % rows
    least_raise = FINENESS * spacing / rows
    run_bids(means, active, loads, opening, prices, lists, places, waiting, scratch, least_raise)
    return prices
