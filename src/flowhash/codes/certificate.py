"""What a set of codes costs, and the proof that nothing costs less.

Any prices give a lower bound on the objective: at those prices the best that each class could do
on its own, and the best load of each bucket on its own (the Lagrangian dual of Theorem 1's linear
programme). Codes whose cost equals that bound are optimal, however they were found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.codes.matching import best_codes, loads_of
from flowhash.codes.pricing import agreed_load, load_costs
from flowhash.compile import kernel


class Certificate(NamedTuple):
    """An objective value and its lower bound.

    Attributes:
        objective: what the codes cost.
        bound: what any codes cost at least.
        rounding: how far apart the two may be through floating-point rounding alone.
    """

    objective: float
    bound: float
    rounding: float


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
    costs = load_costs(2.0 * penalty, rows, 0.0)
    load = loads_of(codes, size)
    objective = 0.0
    bound = 0.0
    magnitude = 0.0
    for row in range(rows):
        for index in range(active):
            value = means[row, codes[row, index]]
            bucket = best[row, index]
            objective -= value
            bound -= means[row, bucket] - prices[bucket]
            magnitude += abs(value) + abs(means[row, bucket]) + abs(prices[bucket])
    for bucket in range(size):
        taken = float(load[bucket])
        wanted = float(agreed_load(costs, bucket, prices[bucket], 0))
        objective += penalty[bucket] * taken * (taken - 1.0)
        bound += penalty[bucket] * wanted * (wanted - 1.0) - prices[bucket] * wanted
        magnitude += penalty[bucket] * (taken * taken + wanted * wanted)
        magnitude += abs(prices[bucket]) * wanted
    terms = rows * active + size
    return Certificate(objective, bound, 2.3e-16 * terms * magnitude)
