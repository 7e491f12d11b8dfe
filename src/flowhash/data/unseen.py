"""Classes that training never sees: the test of a search for what is new."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.data.labelled import LabelledItems, Splits
from flowhash.data.preprocess import Mean, Preprocessing, Spread
from flowhash.data.split import seeded
from flowhash.errors import InputError


def unseen_classes(splits: Splits, share: float = 0.2, seed: int = 0) -> Splits:
    """Keep classes away from training, and test on them alone.

    Train and validation have the other classes, test has the test items of those kept away; labels
    of each count from 0 again. Preprocessing is fitted anew, so that nothing of theirs is in it.

    Args:
        splits: a data set with a test split.
        share: of the classes to keep away, drawn by chance.
        seed: of the chance.

    Raises:
        InputError: there is no test split, or the share leaves fewer than two classes on a side.
    """
    classes = splits.train.classes
    if splits.test is None:
        raise InputError(
            f"{splits.train.source} has no test split; expected one to search unseen classes in"
        )
    away = round(share * classes)
    if away < 2 or classes - away < 2:
        raise InputError(
            f"share is {share} of {classes} classes, which keeps {away} away; expected at least "
            "two classes to learn from and two to search"
        )
    order = seeded(seed).permutation(classes)
    unseen, seen = np.sort(order[:away]), np.sort(order[away:])
    train = only(splits.train, seen)
    return Splits(
        train,
        only(splits.validation, seen),
        only(splits.test, unseen),
        _refitted(splits.preprocessing, train),
    )


def only(data: LabelledItems, classes: NDArray[np.int64]) -> LabelledItems:
    """The items of some classes, which are counted from 0 in the order given."""
    numbers = np.full(data.classes, -1, np.int64)
    numbers[classes] = np.arange(len(classes))
    kept = data.subset(np.flatnonzero(numbers[data.labels] >= 0))
    names = tuple(data.class_names[number] for number in classes)
    return LabelledItems(kept.items, numbers[kept.labels], names, kept.source)


def _refitted(before: Preprocessing, train: LabelledItems) -> Preprocessing:
    """The same kind of preprocessing, measured on fewer classes."""
    mean, spread = before.mean, before.std
    plain = bool((spread == 1).all())
    if before.kind == "images":
        means: Mean = "pixel" if mean.ndim == 3 else "channel" if mean.ndim == 1 else "none"
        spreads: Spread = "none" if plain else "channel"
    else:
        means = "dimension" if mean.ndim == 1 else "none"
        spreads = "none" if plain else "global"
    return Preprocessing.fit(train, mean=means, spread=spreads, scale=before.scale)
