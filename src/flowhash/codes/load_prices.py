"""What load costs a bucket, which load agrees with a price, and the best codes at given prices.

By Theorem 1 the load ``y`` of bucket ``q`` costs ``λ_q y (y - 1)``, so row number ``y + 1`` adds
``2 λ_q y``. The solver counts prices from a common level, not from zero: with a huge penalty all
prices are huge and almost equal, and only their small differences decide. While bucket ``q`` costs
``prices[q]``, a row takes the k buckets with the largest ``means[row, q] - prices[q]``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel, kernel, larger, smaller
from flowhash.top_values import best_first, group_count


class LoadCosts(NamedTuple):
    """The buckets' marginal costs, less the level: ``steps * (load - base) + rest``.

    Attributes:
        steps: twice the penalty [d].
        base: the load whose marginal cost is nearest to the level [d].
        rest: what is left of it there; exactly 0 where all penalties are equal [d].
        rows: the largest load.
    """

    steps: NDArray[np.float64]
    base: NDArray[np.float64]
    rest: NDArray[np.float64]
    rows: int


@kernel
def load_costs(steps: NDArray[np.float64], rows: int, level: float) -> LoadCosts:
    """The marginal costs of buckets, counted from ``level``."""
    base = np.zeros(steps.shape[0])
    rest = np.empty(steps.shape[0])
    for bucket in range(steps.shape[0]):
        if steps[bucket] * rows > level:
            base[bucket] = np.rint(level / steps[bucket])
        rest[bucket] = steps[bucket] * base[bucket] - level
    return LoadCosts(steps, base, rest, rows)


@inner_kernel
def marginal(costs: LoadCosts, bucket: int, load: int) -> float:
    """What one more row costs in a bucket that has ``load``; infinite when it has all."""
    if load >= costs.rows:
        return np.inf
    return costs.steps[bucket] * (load - costs.base[bucket]) + costs.rest[bucket]


@inner_kernel
def agreed_load(costs: LoadCosts, bucket: int, price: float, load: int) -> int:
    """The load nearest to ``load`` that agrees with ``price``.

    Rows that cost less than the price are all taken, rows that cost more are not.
    """
    step, rows = costs.steps[bucket], costs.rows
    if price <= marginal(costs, bucket, load):
        if load == 0 or marginal(costs, bucket, load - 1) <= price:
            return load
    if step == 0.0:
        fewest = rows if costs.rest[bucket] < price else 0
        most = rows if costs.rest[bucket] <= price else 0
        return min(max(load, fewest), most)
    # The quotient may be off by a rounding error; comparing the costs themselves puts it right.
    guess = costs.base[bucket] + (price - costs.rest[bucket]) / step
    fewest = int(np.ceil(min(max(guess, 0.0), float(rows))))
    while fewest > 0 and marginal(costs, bucket, fewest - 1) >= price:
        fewest -= 1
    while fewest < rows and marginal(costs, bucket, fewest) < price:
        fewest += 1
    most = fewest
    while most < rows and marginal(costs, bucket, most) <= price:
        most += 1
    return min(max(load, fewest), most)


@inner_kernel
def level_price(steps: NDArray[np.float64], rows: int, units: int) -> float:
    """The lowest price, the same for all buckets, at which they offer ``units`` places together.

    At price ``u`` bucket ``q`` offers one place for every ``steps[q] * load <= u``.
    """
    least, most = steps[0], steps[0]
    for bucket in range(1, steps.shape[0]):
        least, most = min(least, steps[bucket]), max(most, steps[bucket])
    if least == most:
        return float(most * ((units - 1) // steps.shape[0]))
    low, high = 0.0, most * rows
    while True:
        middle = 0.5 * (low + high)
        if middle <= low or middle >= high:
            break  # neighbouring numbers: penalties may differ by any power of ten
        offered = 0
        for bucket in range(steps.shape[0]):
            step = steps[bucket]
            offered += rows if step * rows <= middle else int(middle / step) + 1
        if offered >= units:
            high = middle
        else:
            low = middle
    # Halving stops just above the price that it looks for, which is a step of some bucket.
    level = 0.0
    for bucket in range(steps.shape[0]):
        step = steps[bucket]
        if step > 0.0 and step * rows > high:
            level = max(level, step * int(high / step))
    return level


@inner_kernel
def surplus_at(costs: LoadCosts, load: NDArray[np.int64], prices: NDArray[np.float64]) -> int:
    """How many units have to move before loads and prices agree."""
    surplus, sink = 0, 0
    for bucket in range(load.shape[0]):
        served = agreed_load(costs, bucket, prices[bucket], load[bucket])
        surplus += max(load[bucket] - served, 0)
        sink += served - load[bucket]
    return surplus + max(sink, 0)


@kernel
def common_prices(
    means: NDArray[np.float64], loads: LoadCosts, level: float, units: int
) -> NDArray[np.float64]:
    """The optimal prices, less the level, if all classes had the same means: their average [d].

    Then load rises in each bucket until the price that it supports takes away what the bucket is
    worth above a common water mark. A network that has just begun to learn gives classes that are
    almost alike, and these prices are almost right.
    """
    rows, size = means.shape
    worth = np.zeros(size)
    for row in range(rows):
        for bucket in range(size):
            worth[bucket] += means[row, bucket]
    worth /= rows
    low, high = worth.min() - level - loads.steps.max(), worth.max()
    for _ in range(40):
        mark = 0.5 * (low + high)
        offered = 0.0
        for bucket in range(size):
            price, step = worth[bucket] - mark, loads.steps[bucket]
            if price >= 0.0:
                offered += rows if step * rows <= price else np.floor(price / step) + 1.0
        if offered >= units:
            low = mark
        else:
            high = mark
    prices = np.zeros(size)
    for bucket in range(size):
        if loads.steps[bucket] > 0.0:
            prices[bucket] = max(worth[bucket] - low, 0.0)
    return prices - level


@inner_kernel
def range_of(means: NDArray[np.float64]) -> tuple[float, float]:
    """The least and the largest class mean."""
    least, most = means[0, 0], means[0, 0]
    for row in range(means.shape[0]):
        for bucket in range(means.shape[1]):
            least = smaller(means[row, bucket], least)
            most = larger(means[row, bucket], most)
    return least, most


@inner_kernel
def follow_loads(
    costs: LoadCosts, load: NDArray[np.int64], prices: NDArray[np.float64], furthest: float
) -> None:
    """Set every price to the nearest one that agrees with the load, in place, within bounds."""
    for bucket in range(load.shape[0]):
        taken = load[bucket]
        lowest = marginal(costs, bucket, taken - 1) if taken > 0 else -np.inf
        highest = marginal(costs, bucket, taken)
        agreed = min(max(prices[bucket], lowest), highest)
        prices[bucket] = min(max(agreed, -furthest), furthest)


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
