"""Items with labels, and the splits of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data.items import Items, SomeItems, checked_positions
from flowhash.data.preprocess import Preprocessing
from flowhash.data.split import stratified
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
