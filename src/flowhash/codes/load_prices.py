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

from flowhash.compile import inner_kernel, kernel
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
    return float(costs.steps[bucket] * (load - costs.base[bucket]) + costs.rest[bucket])


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
