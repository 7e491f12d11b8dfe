"""Buckets as groups of items: how much they tell of the classes, and what chance would do."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import kernel
from flowhash.errors import InputError

NOTHING = 1e-12
LEAST = 1e-18  # share of the largest probability below which terms do not count


def normalised_information(counts: NDArray[np.int64]) -> float:
    """Normalised mutual information of buckets and classes, by the mean of their entropies.

    Args:
        counts: items of each class in each bucket [classes, d].

    Returns:
        0 to 1; 1 also where there is one class and one bucket, as scikit-learn has it.

    Example:
        >>> normalised_information(np.array([[5, 0], [0, 5]]))
        1.0
    """
    information, entropies = _information(counts)
    return 1.0 if entropies == 0 else max(0.0, 2 * information / entropies)


def adjusted_information(counts: NDArray[np.int64]) -> float:
    """Mutual information above what chance gives, over the most that it could be.

    Unlike the normalised one it does not grow with the number of buckets alone. It is
    scikit-learn's, by the mean of the entropies.

    Args:
        counts: items of each class in each bucket [classes, d].
    """
    rows, columns = counts.sum(axis=1), counts.sum(axis=0)
    groups = int((rows > 0).sum()), int((columns > 0).sum())
    if 1 in groups:
        return 1.0 if groups == (1, 1) else 0.0
    information, entropies = _information(counts)
    chance = expected_information(rows, columns)
    above, most = information - chance, entropies / 2 - chance
    if abs(most) < NOTHING:  # chance alone gives all there is to know
        return 1.0
    return above / most


def purity(counts: NDArray[np.int64]) -> float:
    """The share of items that have the most frequent class of their bucket.

    Args:
        counts: items of each class in each bucket [classes, d].
    """
    return float(counts.max(axis=0).sum() / max(1, counts.sum()))


def bucket_nmi(buckets: NDArray[np.int32], labels: NDArray[np.int64]) -> float:
    """:func:`normalised_information` of one bucket and one class an item, both [n]."""
    _, rows = np.unique(labels, return_inverse=True)
    _, columns = np.unique(buckets, return_inverse=True)
    counts = np.zeros((rows.max() + 1, columns.max() + 1), np.int64)
    np.add.at(counts, (rows, columns), 1)
    return normalised_information(counts)


def expected_speed_up(buckets: int, active: int) -> float:
    """E[SUF] if the codes of all items are independent and even (Eq. 9).

    It is no bound: codes that follow classes can do better.

    Args:
        buckets: d.
        active: k.

    Example:
        >>> expected_speed_up(64, 1)
        64.0
    """
    total, apart = _codes(buckets, active)
    return total / (total - apart)


def scanned_variance(items: int, buckets: int, active: int) -> float:
    """V[N_q], the variance of the number of items a query scans, under the same assumption.

    Args:
        items: n, in the table, the query among them.
        buckets: d.
        active: k.
    """
    total, apart = _codes(buckets, active)
    share = 1 - apart / total
    return (items - 1) * share * (1 - share)


def _codes(buckets: int, active: int) -> tuple[int, int]:
    """How many codes there are, C(d, k), and how many share no bucket with one, C(d-k, k)."""
    if not 1 <= active <= buckets:
        raise InputError(f"active is {active}; expected 1 to {buckets}, the number of buckets")
    return comb(buckets, active), comb(buckets - active, active)


def _information(counts: NDArray[np.int64]) -> tuple[float, float]:
    """Mutual information, and both entropies together."""
    total = counts.sum()
    row_share = counts.sum(axis=1) / total
    column_share = counts.sum(axis=0) / total
    rows, columns = np.nonzero(counts)
    share = counts[rows, columns] / total
    expected = row_share[rows] * column_share[columns]
    information = float((share * np.log(share / expected)).sum())
    return information, _entropy(row_share) + _entropy(column_share)


def _entropy(share: NDArray[np.float64]) -> float:
    held = share[share > 0]
    return -float((held * np.log(held)).sum())


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
