"""``LabelledTable``, a hash table with labels beside it, and ``Queries`` that are put to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import InputError
from flowhash.table import HashTable


@dataclass(frozen=True, eq=False)
class Queries:
    """A block of queries.

    Attributes:
        activations: [q, d]; the largest k are the buckets that are opened.
        embeddings: [q, dim], to rank by.
        labels: [q].
        own: where each query is itself in the table, the position at which it was added [q]; None
            where queries are not in the table.
    """

    activations: NDArray[np.float32]
    embeddings: NDArray[np.float32]
    labels: NDArray[np.int64]
    own: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.activations), len(self.embeddings), len(self.labels)}
        if self.own is not None:
            lengths.add(len(self.own))
        if len(lengths) > 1:
            raise InputError(
                f"there are {len(self.activations)} activations, {len(self.embeddings)} embeddings "
                f"and {len(self.labels)} labels of queries; expected one of each a query"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, chosen: slice | NDArray[np.bool_] | NDArray[np.int64]) -> Queries:
        """Some of the queries."""
        own = None if self.own is None else self.own[chosen]
        return Queries(self.activations[chosen], self.embeddings[chosen], self.labels[chosen], own)


class LabelledTable:
    """A hash table in memory whose items have labels; blocks of items are added to it.

    Args:
        buckets: d.
        dim: numbers in an embedding.
        active: k.
        classes: how many there are.
    """

    def __init__(self, buckets: int, dim: int, active: int, classes: int) -> None:
        self.table = HashTable.create(buckets=buckets, dim=dim, active=active)
        self.buckets, self.active = buckets, active
        self.counts = np.zeros((classes, buckets), np.int64)
        self._labels: list[NDArray[np.int64]] = []
        self._codes: list[NDArray[np.int32]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        codes: NDArray[np.int32],
        embeddings: NDArray[np.float32],
        labels: NDArray[np.int64],
    ) -> None:
        """Add a block of items: codes [n, k], embeddings [n, dim], labels [n]."""
        labels = np.asarray(labels, np.int64)
        if labels.size and not (labels.min() >= 0 and labels.max() < len(self.counts)):
            raise InputError(
                f"labels go from {labels.min()} to {labels.max()}; expected 0 to "
                f"{len(self.counts) - 1}"
            )
        ids = np.arange(self._count, self._count + len(labels))
        self.table.add(codes, embeddings, ids)
        pairs = labels[:, None] * self.buckets + codes
        self.counts += np.bincount(pairs.ravel(), minlength=self.counts.size).reshape(
            self.counts.shape
        )
        self._labels.append(labels)
        self._codes.append(codes)
        self._count += len(labels)

    @property
    def labels(self) -> NDArray[np.int64]:
        """Of all items [n], by position."""
        if len(self._labels) != 1:
            self._labels = [np.concatenate([np.zeros(0, np.int64), *self._labels])]
        return self._labels[0]

    @property
    def codes(self) -> NDArray[np.int32]:
        """Of all items [n, k], by position."""
        if len(self._codes) != 1:
            empty = np.zeros((0, self.active), np.int32)
            self._codes = [np.concatenate([empty, *self._codes])]
        return self._codes[0]

    @property
    def loads(self) -> NDArray[np.int64]:
        """Items in each bucket [d]."""
        return np.asarray(self.counts.sum(axis=0))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Items of each class [classes]."""
        return np.asarray(self.counts.sum(axis=1)) // self.active

    def compact(self) -> None:
        """Bring all blocks together: the fastest to search."""
        self.table.compact()
