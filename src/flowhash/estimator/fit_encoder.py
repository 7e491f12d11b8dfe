"""What ``fit`` learns: from embeddings and labels to an encoder, with settings chosen for them."""

from __future__ import annotations

import copy
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import nn

from flowhash.data import ArrayItems, LabelledItems, Preprocessing, Splits
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.learn import (
    CODES_PENALTY,
    DEFAULT_PENALTY,
    Schedule,
    Settings,
    Stage,
    split_classes,
    train,
    whole_classes,
)

if TYPE_CHECKING:
    from flowhash.estimator.flow_hasher import FlowHasher

BATCH = 256  # items in a training batch, about
CLASSES = 64  # of a batch, at most
LEAST_ITEMS, MOST_ITEMS = 4, 16  # of a class in a batch
ROUNDS = 8  # how often the steps see each item, between these bounds:
LEAST_STEPS, MOST_STEPS = 200, 1_500
LOSS_OPTIONS: dict[str, dict[str, Any]] = {
    "triplet": {"margin": 1.0},
    "npairs": {"regulariser": 0.003, "product": True},
}
RATES = {"classes": 3e-3, "random": 5e-3}  # by where the last layer starts
DEEP_RATE = 1e-3  # where there are layers before it
SAMPLE = 20_000  # items whose spread around their class is measured, at most
WIDEST = 4_096  # numbers in a vector, above which the spread counts as even
SHRINKAGE = 0.5  # how far the spread is drawn towards an even one
BLOCK = 8_192  # items that are centred and summed at once


def layer_sizes(hidden: Any) -> tuple[int, ...]:
    """The sizes of the dense layers, checked: 3.7 is not cut to 3."""
    for size in hidden:
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            raise InputError(
                f"hidden has {size!r} as a layer's size; expected whole numbers from 1, such as "
                "hidden=(128,)"
            )
    return tuple(int(size) for size in hidden)


def learn_encoder(
    hasher: FlowHasher,
    items: NDArray[np.float32],
    labels: NDArray[np.int64],
    names: tuple[str, ...],
) -> Encoder:
    """Learn the buckets by Algorithm 1, in memory.

    Where there are as many buckets as classes, and no layers before the last, the hash network
    starts at a linear discriminant of the classes: a good place that takes a second to compute.

    Args:
        hasher: whose parameters say what to learn; a generator as seed goes on by a number.
        items: [n, dim].
        labels: [n], from 0 to classes - 1, each of which occurs.
        names: of the classes.

    Raises:
        InputError: the parameters do not go together.
    """
    if hasher.active > hasher.buckets:
        raise InputError(
            f"active is {hasher.active} and buckets is {hasher.buckets}; an item cannot be in more "
            "buckets than there are"
        )
    seed = int(check_random_state(hasher.random_state).randint(np.iinfo(np.int32).max))
    settings = make_settings(hasher, labels, seed)
    data = LabelledItems(ArrayItems(items), labels, names, "X")
    preprocessing = Preprocessing.fit(data)
    groups = whole_classes(labels)
    if hasher.groups == "auto" and hasher.buckets > len(names):
        groups = split_classes(preprocessing(items), labels, hasher.buckets, seed)
    directions = None
    if settings.hash.start == "classes":
        directions = discriminant(items, groups.labels, preprocessing, seed)
    chosen = _enough_of_each(groups.labels, settings.hash.items)
    nothing = data.subset(np.zeros(0, np.int64))
    splits = Splits(data.subset(chosen), nothing, None, preprocessing)
    return train(
        splits, settings, None, directions=directions, groups=groups.labels[chosen],
        device=hasher.device, quiet=not hasher.verbose,
    )  # fmt: skip


def without_centre(encoder: Encoder) -> Encoder:
    """An encoder of the same buckets whose embeddings are not centred, only scaled.

    Distances do not depend on where zero is, inner products do. What is no longer taken off the
    vectors goes into the first layer: W (x - m) + b = W x + (b - W m).
    """
    preprocessing, network = encoder.preprocessing, copy.deepcopy(encoder.hash)
    first = next(layer for layer in network.modules() if isinstance(layer, nn.Linear))
    middle = torch.from_numpy(preprocessing.mean.astype(np.float64) / preprocessing.std)
    with torch.no_grad():
        first.bias.sub_(first.weight.double() @ middle)
    uncentred = replace(preprocessing, mean=np.zeros_like(preprocessing.mean))
    return Encoder(encoder.base, network, uncentred, encoder.active, encoder.class_names)


def make_settings(hasher: FlowHasher, labels: NDArray[np.int64], seed: int) -> Settings:
    """Batches and steps that suit the data; the steps are bounded, so that large data is quick."""
    count = int(labels.max()) + 1
    classes = min(CLASSES, count)
    each = int(np.clip(BATCH // classes, LEAST_ITEMS, MOST_ITEMS))
    if isinstance(hasher.steps, str):  # "auto"
        steps = int(np.clip(ROUNDS * len(labels) // (classes * each), LEAST_STEPS, MOST_STEPS))
    else:
        steps = int(hasher.steps)
    hidden = layer_sizes(hasher.hidden)
    start = "classes" if hasher.buckets >= count and not hidden else "random"
    stage = Stage(
        loss=hasher.loss,
        loss_options=LOSS_OPTIONS.get(hasher.loss, {}),
        outputs=int(hasher.buckets),
        classes=classes,
        items=each,
        steps=steps,
        rate=DEEP_RATE if hidden else RATES[start],
        schedule=Schedule("cycle"),
        start=start,
    )
    return Settings(
        {"name": "mlp", "hidden": list(hidden)} if hidden else {"name": "linear"},
        None,
        stage,
        active=int(hasher.active),
        penalty=penalty_of(hasher),
        outside=hasher.groups == "auto",
        rank="base" if hasher.rank == "input" else "hash",
        augment=None,
        seed=seed,
        checkpoint_every=steps,
    )


def penalty_of(hasher: FlowHasher) -> float:
    """λ as given, or what suits the loss."""
    if isinstance(hasher.penalty, str):  # "auto"
        return CODES_PENALTY if hasher.loss == "codes" else DEFAULT_PENALTY
    return float(hasher.penalty)


def _enough_of_each(labels: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """All positions, and those of classes with fewer than ``least`` items again until they have.

    A batch wants several items of each of its classes; a class with a single item is its own pair.
    """
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    firsts = np.cumsum(sizes) - sizes
    missing = np.maximum(least - sizes, 0)
    owners = np.repeat(np.arange(len(sizes)), missing)
    turns = np.arange(len(owners)) - np.repeat(np.cumsum(missing) - missing, missing)
    again = order[firsts[owners] + turns % sizes[owners]]
    return np.concatenate([np.arange(len(labels)), again])


def discriminant(
    items: NDArray[np.float32],
    labels: NDArray[np.int64],
    preprocessing: Preprocessing,
    seed: int,
) -> NDArray[np.float32]:
    """Weights and biases [classes, dim + 1] of Fisher's discriminant, of length one on average.

    The score of class c is s·x with s = S⁻¹ m_c, minus half of m_c·s: the likeliest class of normal
    clouds that share one covariance S. All classes count alike, whatever their sizes. ``labels``
    go from 0 to classes - 1, each of which occurs.
    """
    means = _means(items, labels, preprocessing)
    dim = items.shape[1]
    weights: NDArray[Any] = means
    if dim <= WIDEST:
        rng = np.random.default_rng(seed)
        chosen = np.sort(rng.permutation(len(items))[:SAMPLE])
        rows = preprocessing(items[chosen])
        rows -= means[labels[chosen]].astype(np.float32)
        spread = (rows.T @ rows / len(rows)).astype(np.float64)
        even = float(np.trace(spread)) / dim or 1.0  # no class has two different items
        mixed = (1 - SHRINKAGE) * spread + SHRINKAGE * even * np.eye(dim)
        weights = np.linalg.solve(mixed, means.T).T
    biases = -0.5 * (weights * means).sum(axis=1, keepdims=True)
    length = float(np.linalg.norm(weights, axis=1).mean()) or 1.0
    return np.asarray(np.hstack((weights, biases)) / length, np.float32)


def _means(
    items: NDArray[np.float32], labels: NDArray[np.int64], preprocessing: Preprocessing
) -> NDArray[np.float64]:
    """The mean of each class, as the network sees it [classes, dim]."""
    sizes = np.bincount(labels)
    order = np.argsort(labels, kind="stable")
    sums = np.zeros((len(sizes), items.shape[1]))
    for start in range(0, len(order), BLOCK):
        part = order[start : start + BLOCK]
        here, firsts = np.unique(labels[part], return_index=True)
        sums[here] += np.add.reduceat(preprocessing(items[part]).astype(np.float64), firsts)
    return np.asarray(sums / sizes[:, None])
