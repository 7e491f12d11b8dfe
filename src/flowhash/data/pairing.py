"""Items that have no labels but positive pairs: which two belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from flowhash.data.arguments import checked_pairs
from flowhash.data.files import read_npy
from flowhash.data.items import ArrayItems
from flowhash.data.labelled import LabelledItems, Splits
from flowhash.data.preprocess import Preprocessing
from flowhash.errors import InputError


def open_pairs(
    items: str | Path | NDArray[Any],
    pairs: ArrayLike,
    validation: float = 0.1,
    seed: int = 0,
) -> tuple[Splits, NDArray[np.int64]]:
    """Splits of items that are known by pairs only, and the pairs to train on.

    Items that pairs connect, directly or through others, make a group, and a group is what stands
    for a class: some groups are held out to validate on, whole, and each of their items should find
    one of its own group. Items in no pair are trained on as little as they are known: not at all.

    Args:
        items: vectors [n, dim] or images uint8 [n, height, width, 3], or an ``.npy`` file of them.
        pairs: positions of the items [p, 2].
        validation: share of the groups that is held out.
        seed: of the split.

    Returns:
        The splits (without a test split) and the pairs [q, 2] as positions in ``splits.train``, for
        ``flowhash.learn.train(splits, settings, folder, pairs=...)``.

    Raises:
        InputError: pairs that do not fit the items, or fewer than two groups.

    Example:
        >>> import numpy as np
        >>> vectors = np.random.default_rng(0).normal(size=(40, 8))
        >>> splits, pairs = open_pairs(vectors, np.arange(40).reshape(20, 2))
        >>> len(splits.train), len(splits.validation), pairs.shape
        (36, 4, (18, 2))
    """
    source = "items" if isinstance(items, np.ndarray) else str(items)
    array = items if isinstance(items, np.ndarray) else read_npy(Path(items))
    store = ArrayItems(array)
    known, places = checked_pairs(pairs)
    if known[-1] >= len(store):
        raise InputError(
            f"pairs name item {known[-1]}, but {source} has {len(store)}; count from 0"
        )
    ones = np.ones(len(places), np.int8)
    graph = coo_array((ones, (places[:, 0], places[:, 1])), shape=(len(known), len(known)))
    count, group = connected_components(graph, directed=False)
    if count < 2 or not 0 <= validation < 1:
        raise InputError(
            f"the pairs of {source} make {count} group and validation is {validation}; expected "
            "two groups or more, and a share from 0 to below 1"
        )
    held_out = min(count - 1, round(validation * count))
    chosen = np.random.default_rng(seed).permutation(count)[:held_out]
    aside = np.isin(group, chosen)
    names = tuple(f"group {number}" for number in range(count))
    everything = LabelledItems(store, np.zeros(len(store), np.int64), names, source)
    training = _part(everything, known[~aside], group[~aside])
    splits = Splits(
        training, _part(everything, known[aside], group[aside]), None, Preprocessing.fit(training)
    )
    place_in_training = np.cumsum(~aside) - 1
    return splits, place_in_training[places[~aside[places[:, 0]]]]


def _part(
    everything: LabelledItems, positions: NDArray[np.int64], group: NDArray[Any]
) -> LabelledItems:
    part = everything.subset(positions)
    return LabelledItems(
        part.items, group.astype(np.int64), everything.class_names, everything.source
    )
