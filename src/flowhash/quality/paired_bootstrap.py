"""How sure a difference between two searches is: a paired bootstrap over the queries.

Both searches answered the same queries. Queries are drawn again with replacement, as many as there
were; both methods are summed over the same draw, so that what makes a query hard for both falls
out of their difference.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import InputError

RESAMPLES = 2_000
CONFIDENCE_LEVEL = 0.95
AT_ONCE = 2_000_000  # weights of queries in memory at a time


def resampled_sums(
    columns: NDArray[np.integer], resamples: int = RESAMPLES, seed: int = 0
) -> NDArray[np.float64]:
    """Sums over draws of the queries, with replacement; all columns see the same draws.

    Args:
        columns: a number for each query [queries, columns], such as its right ones.
        resamples: how many draws.
        seed: of the draws.

    Returns:
        [resamples, columns]; whole numbers, so that they are exact.

    Raises:
        InputError: there are no queries, or no draws.
    """
    count = len(columns)
    if count < 1 or resamples < 1:
        raise InputError(
            f"there are {count} queries for {resamples} draws; expected one or more of each"
        )
    rng = np.random.default_rng(seed)
    values = np.ascontiguousarray(columns, np.float64)
    sums = np.empty((resamples, values.shape[1]))
    block = max(1, AT_ONCE // count)
    for start in range(0, resamples, block):
        part = sums[start : start + block]
        # How often each query was drawn: a product with these is a sum over the draw.
        times = np.stack(
            [np.bincount(rng.integers(0, count, count), minlength=count) for _ in part]
        )
        part[:] = times.astype(np.float64) @ values
    return sums


def percentile_interval(
    values: NDArray[np.float64], level: float = CONFIDENCE_LEVEL
) -> tuple[float, float]:
    """The percentile interval of what draws gave [resamples]: its low and its high end.

    Example:
        >>> percentile_interval(np.arange(101.0), 0.5)
        (25.0, 75.0)
    """
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
