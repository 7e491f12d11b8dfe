"""Stratified splits: every class gives the same share, by chance, reproducibly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data.arguments import whole_number
from flowhash.errors import InputError


def stratified(
    labels: NDArray[np.int64], validation: float, test: float = 0.0, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Split positions so that every class gives its share; a pure function of its arguments.

    A class gives the rounded share, and at least one item to validation when it has three or more,
    then at least one to test when it has four or more (where these shares are not 0). It keeps at
    least two for training: a class with one item has no pair to learn from.

    Args:
        labels: [n] whole numbers.
        validation: share of validation, 0 to 1.
        test: share of test; the two together are below 1.
        seed: of the chance.

    Returns:
        Positions of train, validation and test, each in ascending order.
    """
    shares = (validation, test)
    if not all(np.isfinite(share) and 0 <= share < 1 for share in shares) or sum(shares) >= 1:
        raise InputError(
            f"validation is {validation} and test is {test}; expected shares from 0 whose sum is "
            "below 1, such as 0.1"
        )
    labels = np.asarray(labels)
    _, classes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    held_out = _held_out(sizes, validation, least_size=3, spare=sizes - 2)
    tested = _held_out(sizes, test, least_size=4, spare=sizes - 2 - held_out)
    ranks = _shuffled_ranks(classes, sizes, seeded(seed))
    in_validation = ranks < held_out[classes]
    in_test = ~in_validation & (ranks < (held_out + tested)[classes])
    in_train = ~in_validation & ~in_test
    return np.flatnonzero(in_train), np.flatnonzero(in_validation), np.flatnonzero(in_test)


def seeded(seed: Any) -> np.random.Generator:
    """A generator of random numbers for ``seed``."""
    return np.random.default_rng(whole_number("seed", seed, 0))


def _held_out(
    sizes: NDArray[np.int64], share: float, least_size: int, spare: NDArray[np.int64]
) -> NDArray[np.int64]:
    """How many items each class gives up."""
    if share == 0:
        return np.zeros(sizes.size, np.int64)
    wanted = np.floor(sizes * share + 0.5).astype(np.int64)
    wanted = np.maximum(wanted, sizes >= least_size)
    given: NDArray[np.int64] = np.minimum(wanted, np.maximum(spare, 0))
    return given


def _shuffled_ranks(
    classes: NDArray[np.int64], sizes: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """A random rank of each item among those of its class, from 0."""
    order = generator.permutation(classes.size)
    order = order[np.argsort(classes[order], kind="stable")]
    ranks = np.empty(classes.size, np.int64)
    starts = np.cumsum(sizes) - sizes
    ranks[order] = np.arange(classes.size) - starts[classes[order]]
    return ranks
