"""What a set of codes costs, and the proof that nothing costs less.

Any prices give a lower bound on the objective: at those prices the best that each class could do
on its own, and the best load of each bucket on its own (the Lagrangian dual of Theorem 1's linear
programme). Codes whose cost equals that bound are optimal, however they were found.

The difference of the two is a sum of what each class and each bucket falls short of its best. Those
are small numbers even where cost and bound are huge, so they are added up, not the totals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.codes.code_matching import best_codes, loads_of
from flowhash.codes.load_prices import LoadCosts, agreed_load, load_costs, marginal
from flowhash.compile import inner_kernel, kernel

UNIT = 2.0**-52  # relative distance between neighbouring float64 numbers
ROUNDINGS = 64  # of that size that each price and mean may have gone through


class Certificate(NamedTuple):
    """What codes cost, and how far that may be from the optimum.

    Attributes:
        objective: what the codes cost.
        gap: by how much that is above the bound which the prices prove.
        rounding: how large the gap of optimal codes may be through floating-point rounding.
    """

    objective: float
    gap: float
    rounding: float


@inner_kernel
def bucket_shortfall(loads: LoadCosts, bucket: int, price: float, load: int) -> float:
    """How much worse ``load`` is for a bucket than the best load at ``price``."""
    best = agreed_load(loads, bucket, price, load)
    shortfall = 0.0
    for place in range(best, load):
        shortfall += marginal(loads, bucket, place) - price
    for place in range(load, best):
        shortfall += price - marginal(loads, bucket, place)
    return shortfall


@kernel
def certify(
    codes: NDArray[np.int32],
    means: NDArray[np.float64],
    penalty: NDArray[np.float64],
    prices: NDArray[np.float64],
) -> Certificate:
    """Compare the cost of ``codes`` [n, k] with the bound that ``prices`` [d] prove."""
    rows, active = codes.shape
    size = means.shape[1]
    best = best_codes(means, prices, active)
    load = loads_of(codes, size)
    loads = load_costs(2.0 * penalty, rows, 0.0)
    objective, gap, magnitude = 0.0, 0.0, 0.0
    for row in range(rows):
        for index in range(active):
            held, wanted = codes[row, index], best[row, index]
            objective -= means[row, held]
            gap += (means[row, wanted] - prices[wanted]) - (means[row, held] - prices[held])
            magnitude += abs(means[row, held]) + abs(means[row, wanted])
            magnitude += abs(prices[held]) + abs(prices[wanted])
    for bucket in range(size):
        taken = float(load[bucket])
        objective += penalty[bucket] * taken * (taken - 1.0)
        gap += bucket_shortfall(loads, bucket, prices[bucket], load[bucket])
        magnitude += abs(prices[bucket])
    return Certificate(objective, gap, ROUNDINGS * UNIT * magnitude)
