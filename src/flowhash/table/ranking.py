"""The order of a query's candidates: nearest first, equal distances by their ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel

FEW = 64  # candidates that are sorted fastest by insertion


@inner_kernel
def comes_before(
    distances: NDArray[np.float64], keys: NDArray[np.int64], query: int, one: int, two: int
) -> bool:
    """Whether candidate ``one`` of a query ranks before candidate ``two``."""
    if distances[query, one] != distances[query, two]:
        return distances[query, one] < distances[query, two]
    return keys[query, one] < keys[query, two]


@inner_kernel
def sift(
    distances: NDArray[np.float64], keys: NDArray[np.int64], query: int,
    ranks: NDArray[np.int32], index: int, size: int,
) -> None:  # fmt: skip
    """Let a candidate sink in a heap of candidates whose top ranks last."""
    moving = ranks[query, index]
    while True:
        child = 2 * index + 1
        if child >= size:
            break
        if child + 1 < size and comes_before(
            distances, keys, query, ranks[query, child], ranks[query, child + 1]
        ):
            child += 1
        if not comes_before(distances, keys, query, moving, ranks[query, child]):
            break
        ranks[query, index] = ranks[query, child]
        index = child
    ranks[query, index] = moving


@inner_kernel
def rank(
    distances: NDArray[np.float64], keys: NDArray[np.int64], query: int, size: int,
    ranks: NDArray[np.int32],
) -> None:  # fmt: skip
    """The candidates of a query in their order into ``ranks``: by insertion, or by a heap."""
    for index in range(size):
        ranks[query, index] = index
    if size <= FEW:
        for index in range(1, size):
            place = index
            while place > 0 and comes_before(
                distances, keys, query, index, ranks[query, place - 1]
            ):
                ranks[query, place] = ranks[query, place - 1]
                place -= 1
            ranks[query, place] = index
        return
    for index in range(size // 2 - 1, -1, -1):
        sift(distances, keys, query, ranks, index, size)
    for end in range(size - 1, 0, -1):
        last = ranks[query, end]
        ranks[query, end] = ranks[query, 0]
        ranks[query, 0] = last
        sift(distances, keys, query, ranks, 0, end)
