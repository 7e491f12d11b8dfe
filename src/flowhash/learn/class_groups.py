"""Groups: what gets a code of its own; classes, or parts of them where there are more buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.argument_checks import numbers
from flowhash.codes import assign_codes
from flowhash.errors import InputError

ROUNDS = 20  # of k-means with even loads, inside a class
SAMPLE = 2_048  # items of a class that centres are found on, and that are assigned at once
LEAST = 2  # items of a group, so that it has a pair
TURNS = 8  # of two means, in a halving


@dataclass(frozen=True, eq=False)
class ClassGroups:
    """The groups of a training set, each part of one class.

    Attributes:
        labels: the group of each item [n], from 0 to groups - 1, each of which occurs.
        owners: the class of each group [groups].
    """

    labels: NDArray[np.int64]
    owners: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.owners)

    @property
    def split(self) -> bool:
        """Whether a class has several."""
        return len(np.unique(self.owners)) < len(self.owners)


def given_groups(groups: ArrayLike, classes: NDArray[np.int64]) -> ClassGroups:
    """Groups that a user names, one for each item, checked.

    Raises:
        InputError: they are not one whole number an item from 0 on, or one has items of two
            classes.
    """
    labels = numbers(groups, "groups")
    if labels.shape != classes.shape or labels.dtype.kind not in "iu":
        raise InputError(
            f"groups have shape {labels.shape} and dtype {labels.dtype}; expected a whole number "
            f"for each of the {len(classes)} items"
        )
    names, first, labels = np.unique(labels, return_index=True, return_inverse=True)
    if names[0] != 0 or names[-1] != len(names) - 1:
        raise InputError(
            f"groups go from {names[0]} to {names[-1]}, and {len(names)} of them occur; expected "
            "all numbers from 0 on"
        )
    owners = classes[first]
    wrong = np.flatnonzero(owners[labels] != classes)
    if len(wrong):
        group, item = labels[wrong[0]], wrong[0]
        raise InputError(
            f"group {group} has items of the classes {owners[group]} and {classes[item]}; expected "
            "each group inside one class"
        )
    return ClassGroups(labels.astype(np.int64), owners)


def whole_classes(classes: NDArray[np.int64]) -> ClassGroups:
    """Each class is one group, as the paper has it."""
    names, labels = np.unique(classes, return_inverse=True)
    return ClassGroups(labels.astype(np.int64), names)


def split_classes(
    vectors: NDArray[np.float32],
    classes: NDArray[np.int64],
    count: int,
    seed: int = 0,
    least: int = LEAST,
) -> ClassGroups:
    """Classes cut into ``count`` groups of about the same size, by k-means inside each class.

    Every class has one group at least. Where there are not more groups than classes, or too few
    items, there are as many as there is room for.

    Args:
        vectors: what items are ranked by [n, dim].
        classes: of the items [n].
        count: how many groups there are to be.
        seed: of where k-means starts.
        least: items that a group has at least.
    """
    names, labels, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    parts = shared_out(sizes, count, least)
    firsts = np.cumsum(parts) - parts
    order = np.argsort(labels, kind="stable")
    groups = np.empty(len(classes), np.int64)
    for number, chosen in enumerate(np.split(order, np.cumsum(sizes)[:-1])):
        rng = np.random.default_rng([seed, number])
        groups[chosen] = firsts[number] + even_means(vectors[chosen], int(parts[number]), rng)
    return ClassGroups(groups, np.repeat(names, parts))


def shared_out(sizes: NDArray[np.int64], count: int, least: int = LEAST) -> NDArray[np.int64]:
    """How many groups each class gets: as its size wants, one at least, each of ``least`` items.

    One after the other goes to the class whose groups would be the largest (D'Hondt's way).
    """
    parts = np.ones(len(sizes), np.int64)
    most = np.maximum(1, sizes // least)
    for _ in range(min(count, int(most.sum())) - len(sizes)):
        mean = np.where(parts < most, sizes / parts, -1.0)
        parts[mean.argmax()] += 1
    return parts


def even_means(
    vectors: NDArray[np.float32], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Which of ``count`` clusters each vector is in [n]; their sizes differ by one at most.

    k-means whose assignment is a flow, by ``assign_codes`` with a penalty that makes loads even. Of
    many vectors the centres are found on a sample; then all are assigned, block after block, each
    with the loads of those before it.
    """
    inside = np.zeros(len(vectors), np.int64)
    if count == 1:
        return inside
    order = rng.permutation(len(vectors))
    size = max(SAMPLE, LEAST * count)
    rows = _centred(vectors, order[:size], 0.0)
    middle = rows.mean(axis=0)
    rows -= middle
    centres = rows[:count].copy()
    found = np.zeros(0, np.int64)
    for _ in range(ROUNDS):
        before, found = found, _even(rows, centres, np.zeros(count))
        if np.array_equal(before, found):
            break
        sums = np.zeros_like(centres)
        np.add.at(sums, found, rows)
        centres = sums / np.bincount(found, minlength=count)[:, None]
    loads = np.zeros(count)
    for start in range(0, len(vectors), size):
        block = order[start : start + size]
        inside[block] = _even(_centred(vectors, block, middle), centres, loads)
        loads += np.bincount(inside[block], minlength=count)
    return inside


def even_halves(vectors: NDArray[np.floating[Any]], count: int) -> NDArray[np.int64]:
    """Which of ``count`` clusters each vector is in [n]; their sizes differ by one at most.

    Vectors are halved, and the halves again, each time by two means whose parts have the sizes that
    are wanted. It takes n log(count) steps, where ``even_means`` takes n · count and a flow: for
    thousands of clusters of few vectors each, which need not be the best.
    """
    inside = np.zeros(len(vectors), np.int64)
    parts = [(np.arange(len(vectors)), 0, count)]
    while parts:
        rows, first, wanted = parts.pop()
        if wanted == 1 or not len(rows):
            inside[rows] = first
            continue
        few = wanted // 2
        each, rest = divmod(len(rows), wanted)
        lower = _lower(np.asarray(vectors[rows], np.float64), each * few + rest * few // wanted)
        parts += [(rows[lower], first, few), (rows[~lower], first + few, wanted - few)]
    return inside


def _lower(rows: NDArray[np.float64], size: int) -> NDArray[np.bool_]:
    """Which ``size`` of the rows are nearer to one of two means than the others are [n]."""
    far = np.square(rows - rows.mean(axis=0)).sum(axis=1)
    way = rows[far.argmax()] - rows.mean(axis=0)
    lower = np.zeros(len(rows), bool)
    for _ in range(TURNS):
        before, lower = lower, np.zeros(len(rows), bool)
        lower[np.argsort(rows @ way, kind="stable")[:size]] = True
        if np.array_equal(before, lower) or not 0 < size < len(rows):
            break
        way = rows[~lower].mean(axis=0) - rows[lower].mean(axis=0)
    return lower


def _centred(
    vectors: NDArray[np.float32], chosen: NDArray[np.int64], middle: NDArray[np.float64] | float
) -> NDArray[np.float64]:
    return np.asarray(vectors[chosen], np.float64) - middle


def _even(
    rows: NDArray[np.float64], centres: NDArray[np.float64], loads: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The nearest centres by which all loads, with those that are there, are as even as can be."""
    far = _distances(rows, centres)
    far -= far.min(axis=1, keepdims=True)
    far = np.minimum(far, 4 * far.mean())  # of centres so far away one is as bad as the other
    penalty = float(far.max()) or 1.0  # no distance is worth one item more than others have
    codes = assign_codes(-far, 1, penalty, outside=loads - loads.min()).codes
    return codes[:, 0].astype(np.int64)


def _distances(rows: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared, [n, centres]."""
    squares = np.square(rows).sum(axis=1)[:, None] + np.square(centres).sum(axis=1)
    return np.asarray(np.maximum(squares - 2 * rows @ centres.T, 0.0))
