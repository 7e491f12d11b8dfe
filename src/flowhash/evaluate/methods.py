"""The ways to search that are compared, one small class each; all go through the same table.

A method says which buckets an item prefers: its *activations*. The largest k are the item's code
and the buckets that a query opens. They rank by the base embedding unless they say otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import ordered_buckets
from flowhash.errors import InputError
from flowhash.evaluate.centroids import (
    POINTS_EACH,
    STARTS_WORDS,
    distances_below,
    fit_centroids,
)
from flowhash.evaluate.sides import Side

BLOCK = 50_000  # items that are looked at together
# Centroids by what they were fitted on and with: the same serve every k.
KnownCentroids = dict[tuple[str, int, int], NDArray[np.float32]]


def _blocks(side: Side) -> Iterator[Side]:
    for start in range(0, len(side), BLOCK):
        yield side.rows(slice(start, start + BLOCK))


class Method(ABC):
    """A way to search.

    Attributes:
        name: a key of ``flowhash.evaluate.METHODS``.
        active: k, buckets an item lies in.
        probe: buckets a query opens; None for k.
        passes: forward passes of a network a query.
        computes: whether activations are computed in the search, not by a network before it.
        own_vectors: whether it ranks by other vectors than the base embedding.
        note: what a reader must know, after ``fit``.
    """

    name: str
    passes = 1
    computes = False
    own_vectors = False

    def __init__(self, active: int = 1) -> None:
        self.active = active
        self.probe: int | None = None
        self.note = ""

    @property
    def k(self) -> int | None:
        """As a table shows it."""
        return self.active

    def fit(self, database: Side, queries: Side) -> None:  # noqa: B027  most have nothing to fit
        """Prepare for a table that will hold ``database``."""

    @abstractmethod
    def activations(self, side: Side) -> NDArray[np.float32]:
        """How much each item prefers each bucket [n, d]."""

    def embeddings(self, side: Side) -> NDArray[np.float32]:
        """What items are ranked by [n, dim]: the base embedding."""
        return side.embeddings


RECALL_NOTE = "recall@K is against exhaustive search by the base embedding"


def other_embeddings(side: Side) -> NDArray[np.float32]:
    """The base embedding in its other length; see ``Side.other``."""
    if side.other is None:
        raise InputError("there are no embeddings of the other length; give them")
    return side.other


class Exhaustive(Method):
    """The base embedding, all items scanned: one bucket that holds everything."""

    name = "exhaustive"

    @property
    def k(self) -> int | None:
        """It has no buckets."""
        return None

    def activations(self, side: Side) -> NDArray[np.float32]:
        """One bucket for all."""
        return np.zeros((len(side), 1), np.float32)


class ExhaustiveOther(Exhaustive):
    """The same by the base embedding in its other length: raw where training has unit vectors.

    Args:
        length: "raw" or "unit", what the other length is.
    """

    own_vectors = True

    def __init__(self, length: str) -> None:
        super().__init__()
        self.name = f"exhaustive-{length}"
        self.note = RECALL_NOTE

    def embeddings(self, side: Side) -> NDArray[np.float32]:
        """The base embedding in its other length."""
        return other_embeddings(side)


class TopDimensions(Method):
    """Th: the k largest dimensions of the base embedding are the buckets."""

    name = "th"

    def activations(self, side: Side) -> NDArray[np.float32]:
        """The embedding itself."""
        return np.ascontiguousarray(side.embeddings, np.float32)


class VectorQuantisation(Method):
    """VQ: k-means with d centroids; an item lies in the buckets of its k nearest.

    Args:
        active: k.
        buckets: d, centroids.
        train: fit the centroids on these items; None fits them on the searched database, as the
            paper did.
        seed: of k-means.
        known: centroids that were fitted before for the same items; see ``lineup``.
    """

    computes = True

    def __init__(
        self,
        active: int,
        buckets: int,
        train: Side | None = None,
        seed: int = 0,
        known: KnownCentroids | None = None,
    ) -> None:
        super().__init__(active)
        self.buckets, self.train, self.seed = buckets, train, seed
        self.name = "vq" if train is None else "vq-train"
        self.fitted_on = "the searched table" if train is None else "the training set"
        self.centroids: NDArray[np.float32] | None = None
        self.known: KnownCentroids = {} if known is None else known

    def fit(self, database: Side, queries: Side) -> None:
        """Find the centroids."""
        source = database if self.train is None else self.train
        place = (self.fitted_on, self.buckets, self.seed)
        if place not in self.known:
            self.known[place] = fit_centroids(self.embeddings(source), self.buckets, self.seed)
        self.centroids = self.known[place]
        looked = POINTS_EACH * self.buckets
        some = f", fitted on {looked:,} of its items" if len(source) > looked else ""
        self.note = f"{len(self.centroids)} centroids of {self.fitted_on}{some}, {STARTS_WORDS}"

    def activations(self, side: Side) -> NDArray[np.float32]:
        """The nearer a centroid, the more its bucket is preferred."""
        if self.centroids is None:
            raise InputError("the centroids are not fitted yet; call fit first")
        return distances_below(self.embeddings(side), self.centroids)


class VectorQuantisationOther(VectorQuantisation):
    """VQ by the base embedding in its other length, fitted on the searched table.

    Args:
        active: k.
        buckets: d, centroids.
        length: "raw" or "unit", what the other length is.
        seed: of k-means.
        known: centroids that were fitted before.
    """

    own_vectors = True

    def __init__(
        self,
        active: int,
        buckets: int,
        length: str,
        seed: int = 0,
        known: KnownCentroids | None = None,
    ) -> None:
        super().__init__(active, buckets, None, seed, known)
        self.name = f"vq-{length}"
        self.fitted_on = f"the searched table's {length} vectors"

    def fit(self, database: Side, queries: Side) -> None:
        """Find the centroids."""
        super().fit(database, queries)
        self.note = f"{self.note}; {RECALL_NOTE}"

    def embeddings(self, side: Side) -> NDArray[np.float32]:
        """The base embedding in its other length."""
        return other_embeddings(side)


class InvertedLists(VectorQuantisation):
    """FAISS IVF: items in the list of their nearest centroid, queries open several lists.

    It opens as many as come nearest to a given number of scanned items.

    Args:
        buckets: lists.
        scanned: items that a query should scan, on average.
        itself: whether the queries are the database.
        active: k of the method that it is set beside.
        seed: of k-means.
        known: centroids that were fitted before.
    """

    def __init__(
        self,
        buckets: int,
        scanned: float,
        itself: bool,
        active: int = 1,
        seed: int = 0,
        known: KnownCentroids | None = None,
    ) -> None:
        super().__init__(1, buckets, None, seed, known)
        self.name = "ivf"
        self.scanned, self.itself, self.beside = scanned, itself, active

    @property
    def k(self) -> int | None:
        """Of the method that it is set beside."""
        return self.beside

    def fit(self, database: Side, queries: Side) -> None:
        """Find centroids, and how many lists to open."""
        super().fit(database, queries)
        loads, opened = np.zeros(self.buckets, np.int64), np.zeros(self.buckets)
        for part in _blocks(database):
            lists = self.activations(part).argmax(axis=1)
            loads += np.bincount(lists, minlength=self.buckets)
        for part in _blocks(queries):
            order = ordered_buckets(self.activations(part))
            opened += np.cumsum(loads[order], axis=1).sum(axis=0)
        opened /= len(queries)
        self.probe = int(np.abs(opened - self.itself - self.scanned).argmin()) + 1
        lists = "list" if self.probe == 1 else "lists"
        self.note = (
            f"{self.buckets} lists of the searched table, a query opens {self.probe} {lists}"
        )


class Classifier(Method):
    """A softmax classifier: its classes are the buckets, an item lies in its k likeliest."""

    name = "classifier"

    def activations(self, side: Side) -> NDArray[np.float32]:
        """The scores of the classes."""
        if side.scores is None:
            raise InputError("there are no scores of a classifier; give them with the embeddings")
        return side.scores


class Learned(Method):
    """FlowHash: the hash network's outputs.

    Args:
        active: k.
    """

    name = "flowhash"
    passes = 2  # of the base and of the hash network

    def activations(self, side: Side) -> NDArray[np.float32]:
        """The hash network's outputs."""
        if side.activations is None:
            raise InputError("there are no activations of a hash network; give them")
        return side.activations


class Start(Learned):
    """The hash network as it starts, before any step of Algorithm 1.

    Where a start is not random, it shows how much of FlowHash's row was there before training.
    """

    name = "start"

    def activations(self, side: Side) -> NDArray[np.float32]:
        """The hash network's outputs at its start."""
        if side.start is None:
            raise InputError("there are no activations of a hash network's start; give them")
        return side.start


class Unpenalised(Learned):
    """FlowHash trained with λ = 0: each class takes its largest outputs, whoever shares them.

    Beside FlowHash it shows what the flow adds.
    """

    name = "flowhash-free"

    def activations(self, side: Side) -> NDArray[np.float32]:
        """The outputs of the hash network that was trained without a penalty."""
        if side.free is None:
            raise InputError("there are no activations of a hash network with λ = 0; give them")
        return side.free


class LearnedAlone(Learned):
    """FlowHash without its base: the hash network's outputs rank as well, one network for both."""

    name = "flowhash-own"
    own_vectors = True

    passes = 1

    def __init__(self, active: int) -> None:
        super().__init__(active)
        self.note = RECALL_NOTE

    def embeddings(self, side: Side) -> NDArray[np.float32]:
        """The hash network's outputs."""
        return self.activations(side)
