"""The methods that are compared: how each of them puts items and queries into buckets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from flowhash.codes import ordered_buckets
from flowhash.data import release_pages
from flowhash.errors import InputError, MissingExtraError
from flowhash.extras import require

BLOCK = 50_000  # items that are looked at together
# What a side may have beside embeddings and labels, as an error names it.
ARRAYS = {
    "activations": "activations of a hash network",
    "scores": "scores of a classifier",
    "start": "activations of a hash network's start",
    "free": "activations of a hash network with λ = 0",
    "other": "embeddings of the other length",
}
RECALL_NOTE = "recall@K is against exhaustive search by the base embedding"
# Centroids by what they were fitted on and with: the same serve every k.
KnownCentroids = dict[tuple[str, int, int], NDArray[np.float32]]


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
        arrays = [getattr(self, field.name) for field in fields(self)]
        parts: list[Any] = [None if array is None else array[chosen] for array in arrays]
        return Side(*parts)

    def blocks(self) -> Iterator[Side]:
        """The items, some after the other."""
        for start in range(0, len(self), BLOCK):
            yield self.rows(slice(start, start + BLOCK))

    def given(self, name: str) -> NDArray[np.float32]:
        """One of the arrays that a side may have or not.

        Raises:
            InputError: it has not.
        """
        array: NDArray[np.float32] | None = getattr(self, name)
        if array is None:
            raise InputError(f"there are no {ARRAYS[name]}; give them with the embeddings")
        return array


class Method(ABC):
    """A way to search.

    Args:
        active: k.

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
        """As a table shows it; None without buckets."""
        return self.active

    def fit(self, database: Side, queries: Side) -> None:  # noqa: B027  most have nothing to fit
        """Prepare for a table that will hold ``database``."""

    @abstractmethod
    def activations(self, side: Side) -> NDArray[np.float32]:
        """How much each item prefers each bucket [n, d]."""

    def embeddings(self, side: Side) -> NDArray[np.float32]:
        """What items are ranked by [n, dim]: the base embedding."""
        return side.embeddings


class _OfEitherLength(Method):
    """Ranks by the base embedding, or by it in its other length.

    Args:
        active: k.
        length: "raw" or "unit" to rank by ``Side.other``, which has that length; None ranks by the
            embedding itself.
    """

    def __init__(self, active: int, length: str | None) -> None:
        super().__init__(active)
        self.length = length
        if length is not None:
            self.name, self.own_vectors, self.note = f"{self.name}-{length}", True, RECALL_NOTE

    def embeddings(self, side: Side) -> NDArray[np.float32]:
        """The base embedding in the chosen length."""
        return super().embeddings(side) if self.length is None else side.given("other")


class Exhaustive(_OfEitherLength):
    """The base embedding, all items scanned: one bucket that holds everything.

    Args:
        length: "raw" or "unit" ranks by the embedding in its other length.
    """

    name = "exhaustive"

    def __init__(self, length: str | None = None) -> None:
        super().__init__(1, length)

    @property
    def k(self) -> int | None:
        """It has no buckets."""
        return None

    def activations(self, side: Side) -> NDArray[np.float32]:
        """One bucket for all."""
        return np.zeros((len(side), 1), np.float32)


class TopDimensions(Method):
    """Th: the k largest dimensions of the base embedding are the buckets."""

    name = "th"

    def activations(self, side: Side) -> NDArray[np.float32]:
        """The embedding itself."""
        return np.ascontiguousarray(side.embeddings, np.float32)


class VectorQuantisation(_OfEitherLength):
    """VQ: k-means with d centroids; an item lies in the buckets of its k nearest.

    Args:
        active: k.
        buckets: d, centroids.
        train: fit the centroids on these items; None fits them on the searched database, as the
            paper did.
        seed: of k-means.
        known: centroids that were fitted before for the same items; see ``run_all``.
        length: "raw" or "unit" takes the embedding in its other length, to fit and to rank.
    """

    name = "vq"
    computes = True

    def __init__(
        self,
        active: int,
        buckets: int,
        train: Side | None = None,
        seed: int = 0,
        known: KnownCentroids | None = None,
        length: str | None = None,
    ) -> None:
        super().__init__(active, length)
        self.buckets, self.train, self.seed = buckets, train, seed
        self.fitted_on = "the searched table"
        if length is not None:
            self.fitted_on += f"'s {length} vectors"
        if train is not None:
            self.name, self.fitted_on = "vq-train", "the training set"
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
        if self.length is not None:
            self.note += f"; {RECALL_NOTE}"

    def activations(self, side: Side) -> NDArray[np.float32]:
        """The nearer a centroid, the more its bucket is preferred.

        Minus the squared distance to each centroid [n, d], up to a number for each item.
        """
        if self.centroids is None:
            raise InputError("the centroids are not fitted yet; call fit first")
        squares = np.square(self.centroids).sum(axis=1)
        return np.asarray(2 * (self.embeddings(side) @ self.centroids.T) - squares, np.float32)


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

    name = "ivf"

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
        self.scanned, self.itself, self.beside = scanned, itself, active

    @property
    def k(self) -> int | None:
        """Of the method that it is set beside."""
        return self.beside

    def fit(self, database: Side, queries: Side) -> None:
        """Find centroids, and how many lists to open."""
        super().fit(database, queries)
        loads, opened = np.zeros(self.buckets, np.int64), np.zeros(self.buckets)
        for part in database.blocks():
            lists = self.activations(part).argmax(axis=1)
            loads += np.bincount(lists, minlength=self.buckets)
        for part in queries.blocks():
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
        return side.given("scores")


class Learned(Method):
    """FlowHash: the hash network's outputs.

    Args:
        active: k.

    Attributes:
        outputs: which of a side's arrays are the hash network's outputs.
    """

    name = "flowhash"
    passes = 2  # of the base and of the hash network
    outputs = "activations"

    def activations(self, side: Side) -> NDArray[np.float32]:
        """The hash network's outputs."""
        return side.given(self.outputs)


class Start(Learned):
    """The hash network as it starts, before any step of Algorithm 1.

    Where a start is not random, it shows how much of FlowHash's row was there before training.
    """

    name = outputs = "start"


class Unpenalised(Learned):
    """FlowHash trained with λ = 0: each class takes its largest outputs, whoever shares them.

    Beside FlowHash it shows what the flow adds.
    """

    name = "flowhash-free"
    outputs = "free"


class LearnedAlone(Learned):
    """FlowHash without its base: the hash network's outputs rank as well, one network for both."""

    name = "flowhash-own"
    passes = 1
    own_vectors = True

    def __init__(self, active: int) -> None:
        super().__init__(active)
        self.note = RECALL_NOTE

    def embeddings(self, side: Side) -> NDArray[np.float32]:
        """The hash network's outputs."""
        return self.activations(side)


ROUNDS = 25
STARTS = 10  # as many as the authors' k-means had; the one with the nearest centroids is kept
STARTS_WORDS = f"the best of {STARTS} starts"
POINTS_EACH = 2_000  # items that are looked at for each centroid, at most


def fit_centroids(
    embeddings: NDArray[np.float32], count: int, seed: int = 0
) -> NDArray[np.float32]:
    """The centroids of k-means [count, dim], the best of several starts.

    Args:
        embeddings: [n, dim].
        count: how many centroids.
        seed: of where they start.

    Raises:
        InputError: fewer items than centroids.
    """
    if len(embeddings) < count:
        raise InputError(
            f"there are {len(embeddings)} items for {count} centroids; expected at least as many "
            "items: choose fewer buckets"
        )
    items = np.ascontiguousarray(embeddings, np.float32)
    try:
        faiss = require("faiss", "evaluate")
    except MissingExtraError:
        return _by_scikit_learn(items, count, seed)
    means = faiss.Kmeans(
        items.shape[1], count, niter=ROUNDS, nredo=STARTS, seed=seed, min_points_per_centroid=1,
        max_points_per_centroid=POINTS_EACH,
    )  # fmt: skip
    means.train(items)
    return np.asarray(means.centroids, np.float32)


def _by_scikit_learn(items: NDArray[np.float32], count: int, seed: int) -> NDArray[np.float32]:
    cluster = require("sklearn.cluster", "evaluate")
    chosen = items
    if len(items) > POINTS_EACH * count:
        rng = np.random.default_rng(seed)
        chosen = items[np.sort(rng.choice(len(items), POINTS_EACH * count, replace=False))]
    means = cluster.KMeans(count, n_init=STARTS, max_iter=ROUNDS, random_state=seed).fit(chosen)
    return np.asarray(means.cluster_centers_, np.float32)


EPOCHS, BATCH, RATE = 20, 512, 0.05
LEAST = 300  # steps; small sets get more epochs until there are as many


@dataclass(frozen=True)
class Linear:
    """Scores of classes from embeddings.

    Attributes:
        weights: [classes, dim].
        bias: [classes].
    """

    weights: NDArray[np.float32]
    bias: NDArray[np.float32]

    def scores(self, embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
        """[n, classes]; the largest is the likeliest class."""
        return np.asarray(embeddings @ self.weights.T + self.bias, np.float32)


def fit_classifier(
    embeddings: NDArray[np.float32], labels: NDArray[np.int64], classes: int, seed: int = 0
) -> Linear:
    """Logistic regression in small batches, so that a large training set fits into memory.

    Every item is seen equally often: at least 20 times, whatever the size of the training set.

    Args:
        embeddings: of the training set [n, dim], in memory or mapped.
        labels: [n].
        classes: how many there are.
        seed: of where it starts, and of the batches.
    """
    rng = np.random.default_rng(seed)
    scale = 1 / max(float(np.std(embeddings[: 100 * BATCH])), 1e-12)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = nn.Linear(embeddings.shape[1], classes)
    optimiser = torch.optim.Adam(layer.parameters(), RATE)
    epoch = -(-len(labels) // BATCH)
    epochs = max(EPOCHS, -(-LEAST // epoch))
    for step, chosen in enumerate(_batches(len(labels), epochs, rng)):
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - step / (epoch * epochs))
        rows = torch.from_numpy(np.array(embeddings[chosen], np.float32) * np.float32(scale))
        release_pages(embeddings)  # of a large training set they are mapped
        value = nn.functional.cross_entropy(layer(rows), torch.from_numpy(labels[chosen]))
        optimiser.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    weights = scale * layer.weight.detach().numpy()
    return Linear(np.asarray(weights, np.float32), layer.bias.detach().numpy())


def _batches(count: int, epochs: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Positions of each batch, ascending as a file is read; an epoch has every item once.

    Batches are of one size, but for one item: a last one of a few items would be mostly noise.
    """
    for _ in range(epochs):
        for chosen in np.array_split(rng.permutation(count), -(-count // BATCH)):
            yield np.sort(chosen)
