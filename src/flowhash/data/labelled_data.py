"""Items with labels or pairs, the splits of a data set, and classes that are held back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from flowhash.argument_checks import whole_number
from flowhash.data.files.array_files import read_npy
from flowhash.data.item_sources import ArrayItems, Items, SomeItems, checked_positions
from flowhash.data.preprocess import Mean, Preprocessing, Spread
from flowhash.errors import InputError


@dataclass(frozen=True, eq=False)
class LabelledItems:
    """Items, one label each.

    Attributes:
        items: images or vectors, read by position.
        labels: int64 [n], from 0 to classes - 1.
        class_names: one name a class.
        source: what the items came from, for messages.

    Raises:
        InputError: the labels do not fit the items or the names.
    """

    items: Items
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    source: str

    def __post_init__(self) -> None:
        labels = np.asarray(self.labels)
        if labels.ndim != 1 or labels.size != len(self.items):
            raise InputError(
                f"{self.source}: {len(self.items)} items, but labels of shape {labels.shape}; "
                "expected one label for each item"
            )
        if labels.size and labels.dtype.kind not in "iu":
            raise InputError(
                f"{self.source}: labels have dtype {labels.dtype}; expected whole numbers that "
                "count classes from 0"
            )
        if labels.size and not (labels.min() >= 0 and labels.max() < len(self.class_names)):
            raise InputError(
                f"{self.source}: labels go from {labels.min()} to {labels.max()}, but there are "
                f"{len(self.class_names)} class names; expected labels from 0 to "
                f"{len(self.class_names) - 1}"
            )
        object.__setattr__(self, "labels", labels.astype(np.int64, copy=False))

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return (
            f"LabelledItems({self.source}: {len(self)} {self.items.kind}, {self.classes} classes)"
        )

    @property
    def classes(self) -> int:
        """How many classes there are; some may have no item in this split."""
        return len(self.class_names)

    def take(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """The items at ``positions``: uint8 [n, height, width, 3] or float32 [n, dim]."""
        return self.items.take(checked_positions(positions, len(self), self.source))

    def subset(self, positions: NDArray[np.int64]) -> LabelledItems:
        """The items at ``positions`` with their labels, as a view: the items are not copied."""
        chosen = checked_positions(positions, len(self), self.source)
        return LabelledItems(
            SomeItems(self.items, chosen), self.labels[chosen], self.class_names, self.source
        )


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set, split: what is trained on, what is selected on, what is reported.

    Attributes:
        train: the items to learn from; also the usual database to search.
        validation: for all choices; may be empty where a loader was told so.
        test: for the final figures only, or None where a data set has none.
        preprocessing: fitted to the training split.
    """

    train: LabelledItems
    validation: LabelledItems
    test: LabelledItems | None
    preprocessing: Preprocessing

    def __repr__(self) -> str:
        tested = "no" if self.test is None else len(self.test)
        return (
            f"Splits({self.train.source}: {len(self.train)} {self.preprocessing.kind} of "
            f"{self.train.classes} classes to learn from, {len(self.validation)} to validate on, "
            f"{tested} to test)"
        )


def split_in_three(
    data: LabelledItems,
    validation: float,
    test: float,
    seed: int,
    **preprocessing: Any,
) -> Splits:
    """Stratified splits of ``data``; ``preprocessing`` goes to :meth:`Preprocessing.fit`."""
    train, held_out, tested = stratified(data.labels, validation, test, seed)
    training = data.subset(train)
    return Splits(
        training,
        data.subset(held_out),
        data.subset(tested) if test > 0 else None,
        Preprocessing.fit(training, **preprocessing),
    )


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
    ranks = shuffled_ranks(classes, seeded(seed))
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


def shuffled_ranks(classes: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """A random rank of each item among those of its class, from 0."""
    order = generator.permutation(classes.size)
    order = order[np.argsort(classes[order], kind="stable")]
    ranks = np.empty(classes.size, np.int64)
    sizes = np.bincount(classes)
    starts = np.cumsum(sizes) - sizes
    ranks[order] = np.arange(classes.size) - starts[classes[order]]
    return ranks


def unseen_classes(
    splits: Splits, share: float = 0.2, seed: int = 0, progress: bool = True
) -> Splits:
    """Keep classes away from training, and test on them alone.

    Train and validation have the other classes, test has the test items of those kept away; labels
    of each count from 0 again. Preprocessing is fitted anew, so that nothing of theirs is in it.

    Args:
        splits: a data set with a test split.
        share: of the classes to keep away, drawn by chance.
        seed: of the chance.
        progress: show a bar where it takes long.

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
        _refitted(splits.preprocessing, train, progress),
    )


def only(data: LabelledItems, classes: NDArray[np.int64]) -> LabelledItems:
    """The items of some classes, which are counted from 0 in the order given."""
    numbers = np.full(data.classes, -1, np.int64)
    numbers[classes] = np.arange(len(classes))
    kept = data.subset(np.flatnonzero(numbers[data.labels] >= 0))
    names = tuple(data.class_names[number] for number in classes)
    return LabelledItems(kept.items, numbers[kept.labels], names, kept.source)


def _refitted(before: Preprocessing, train: LabelledItems, progress: bool) -> Preprocessing:
    """The same kind of preprocessing, measured on fewer classes."""
    mean, spread = before.mean, before.std
    plain = bool((spread == 1).all())
    if before.kind == "images":
        means: Mean = "pixel" if mean.ndim == 3 else "channel" if mean.ndim == 1 else "none"
        spreads: Spread = "none" if plain else "channel"
    else:
        means = "dimension" if mean.ndim == 1 else "none"
        spreads = "none" if plain else "global"
    return Preprocessing.fit(
        train, mean=means, spread=spreads, scale=before.scale, progress=progress
    )


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
    aside = np.isin(group, np.random.default_rng(seed).permutation(count)[:held_out])
    names = tuple(f"group {number}" for number in range(count))
    training, validating = (
        LabelledItems(SomeItems(store, known[chosen]), group[chosen], names, source)
        for chosen in (~aside, aside)
    )
    splits = Splits(training, validating, None, Preprocessing.fit(training))
    place_in_training = np.cumsum(~aside) - 1
    return splits, place_in_training[places[~aside[places[:, 0]]]]


def checked_pairs(pairs: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions that occur, ascending, and the pairs [p, 2] as places in that list."""
    array = np.asarray(pairs)
    if array.ndim != 2 or array.shape[1] != 2 or array.size == 0 or array.dtype.kind not in "iu":
        raise InputError(
            f"pairs have shape {array.shape} and dtype {array.dtype}; expected positions of items "
            "[p, 2], at least one pair"
        )
    if array.min() < 0:
        raise InputError(f"pairs have the position {array.min()}; expected positions from 0")
    same = np.flatnonzero(array[:, 0] == array[:, 1])
    if same.size:
        raise InputError(
            f"pair {same[0]} is item {array[same[0], 0]} with itself; a pair is of two items. Drop "
            "such pairs"
        )
    positions, places = np.unique(array, return_inverse=True)
    return positions.astype(np.int64), places.reshape(array.shape).astype(np.int64)
