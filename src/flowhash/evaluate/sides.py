"""Encoded items with their labels: what every method starts from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import InputError


@dataclass(frozen=True, eq=False)
class Side:
    """The items of a table, or the queries, as the networks see them.

    The arrays may be mapped files: methods read them block by block.

    Attributes:
        embeddings: of the base network [n, dim], to rank by.
        labels: [n].
        activations: of the hash network [n, d], if there is one.
        scores: of a classifier [n, classes], if there is one.
        start: of the hash network before its first step [n, d], where it does not start at random.
    """

    embeddings: NDArray[np.float32]
    labels: NDArray[np.int64]
    activations: NDArray[np.float32] | None = None
    scores: NDArray[np.float32] | None = None
    start: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        for name in ("labels", "activations", "scores", "start"):
            array = getattr(self, name)
            if array is not None and len(array) != len(self.embeddings):
                raise InputError(
                    f"there are {len(self.embeddings)} embeddings and {len(array)} {name}; "
                    "expected one of each an item"
                )

    def __len__(self) -> int:
        return len(self.embeddings)

    def rows(self, chosen: slice | NDArray[np.int64]) -> Side:
        """Some of the items."""
        return Side(
            self.embeddings[chosen],
            self.labels[chosen],
            None if self.activations is None else self.activations[chosen],
            None if self.scores is None else self.scores[chosen],
            None if self.start is None else self.start[chosen],
        )
