"""Encoded items with their labels: what every method starts from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

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
        free: of a hash network that was trained with λ = 0 [n, d], if there is one.
        other: the base network's embeddings [n, dim] as they are before they are given length one,
            or given length one where ``embeddings`` are not.
    """

    embeddings: NDArray[np.float32]
    labels: NDArray[np.int64]
    activations: NDArray[np.float32] | None = None
    scores: NDArray[np.float32] | None = None
    start: NDArray[np.float32] | None = None
    free: NDArray[np.float32] | None = None
    other: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            array = getattr(self, field.name)
            if array is not None and len(array) != len(self.embeddings):
                raise InputError(
                    f"there are {len(self.embeddings)} embeddings and {len(array)} {field.name}; "
                    "expected one of each an item"
                )

    def __len__(self) -> int:
        return len(self.embeddings)

    def rows(self, chosen: slice | NDArray[np.int64]) -> Side:
        """Some of the items."""
        parts: dict[str, Any] = {}
        for field in fields(self):
            array = getattr(self, field.name)
            parts[field.name] = None if array is None else array[chosen]
        return Side(**parts)
