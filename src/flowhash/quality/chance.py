"""The mutual information that chance gives to groups of given sizes.

It is what scikit-learn computes too, which takes most of a minute for a thousand classes, five
hundred buckets and a million items; here sums run only where the probability is not nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import kernel

LEAST = 1e-18  # share of the largest probability below which terms do not count


def expected_information(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> float:
    """The mean mutual information of two groupings with these sizes, over all permutations.

    Args:
        rows: items of each class.
        columns: items of each bucket; both have the same sum.
    """
    sizes, times = np.unique(rows[rows > 0], return_counts=True)
    loads, often = np.unique(columns[columns > 0], return_counts=True)
    return float(_expected(sizes, times, loads, often, int(rows.sum())))


@kernel
def _expected(sizes: Any, times: Any, loads: Any, often: Any, total: int) -> float:
    information = 0.0
    for row in range(sizes.size):
        for column in range(loads.size):
            pairs = times[row] * often[column]
            information += pairs * _pair(sizes[row], loads[column], total)
    return information


@kernel
def _pair(size: int, load: int, total: int) -> float:
    """One class and one bucket: how many items they share is hypergeometric.

    The sum starts at the likeliest number and goes both ways, each probability from the one beside
    it; dividing by their sum saves the factorials.
    """
    low, high = max(0, size + load - total), min(size, load)
    mode = min(max((size + 1) * (load + 1) // (total + 2), low), high)
    weights = information = 0.0
    for step in (1, -1):
        number = mode if step == 1 else mode - 1
        chance = 1.0
        if step == -1:
            if number < low:
                continue
            chance = mode * (total - size - load + mode) / ((size - number) * (load - number))
        while chance > LEAST:
            weights += chance
            if number > 0:
                information += (
                    chance * number / total * np.log(total * number / (size * 1.0 * load))
                )
            if step == 1:
                if number == high:
                    break
                chance *= (size - number) * 1.0 * (load - number)
                chance /= (number + 1.0) * (total - size - load + number + 1)
            else:
                if number == low:
                    break
                chance *= number * 1.0 * (total - size - load + number)
                chance /= (size - number + 1.0) * (load - number + 1)
            number += step
    return information / weights
