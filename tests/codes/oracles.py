"""Oracles for the codes room: the formulas written out, by brute force or in plain loops."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def all_codes(rows: int, size: int, active: int) -> Iterator[list[tuple[int, ...]]]:
    """Every way to give each of ``rows`` a set of ``active`` buckets."""
    return map(list, product(combinations(range(size), active), repeat=rows))


def class_cost(codes: list[tuple[int, ...]], means: Array, penalty: Array) -> float:
    """ĝ(z) with binary vectors and explicit double sums, as the paper writes it."""
    rows, size = means.shape
    z = np.zeros((rows, size))
    for row, code in enumerate(codes):
        z[row, list(code)] = 1.0
    cost = sum(-float(means[i] @ z[i]) for i in range(rows))
    for i in range(rows):
        for j in range(rows):
            if i != j:
                cost += float(z[i] @ np.diag(penalty) @ z[j])
    return cost


def least_cost(means: Array, active: int, penalty: Array) -> float:
    """The minimum of ĝ by trying every code."""
    rows, size = means.shape
    return min(class_cost(codes, means, penalty) for codes in all_codes(rows, size, active))


def item_cost(
    codes: list[tuple[int, ...]], items: Array, labels: NDArray[np.int64], penalty: Array
) -> float:
    """g(h) with binary vectors and explicit double sums."""
    rows, size = items.shape
    h = np.zeros((rows, size))
    for row, code in enumerate(codes):
        h[row, list(code)] = 1.0
    cost = sum(-float(items[i] @ h[i]) for i in range(rows))
    for i in range(rows):
        for j in range(rows):
            if labels[i] != labels[j]:
                cost += float(h[i] @ np.diag(penalty) @ h[j])
    return cost


def largest_gap(items: Array, labels: NDArray[np.int64], active: int) -> float:
    """M(θ) by trying every code of every item."""
    total = 0.0
    for item, label in zip(items, labels, strict=True):
        mean = items[labels == label].mean(axis=0)
        codes = combinations(range(items.shape[1]), active)
        total += max(float((mean - item)[list(code)].sum()) for code in codes)
    return total


def dual_bound(means: Array, active: int, penalty: Array, prices: Array) -> float:
    """The Lagrangian bound that prices prove, every load of every bucket tried."""
    rows, size = means.shape
    bound = 0.0
    for row in range(rows):
        bound -= float(np.sort(means[row] - prices)[::-1][:active].sum())
    for bucket in range(size):
        loads = np.arange(rows + 1)
        bound += float((penalty[bucket] * loads * (loads - 1) - prices[bucket] * loads).min())
    return bound
