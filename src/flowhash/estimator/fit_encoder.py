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

from flowhash.data import ArrayItems, LabelledItems, Preprocessing, Splits, stratified
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.learn import (
    Settings,
    Trial,
    choose_for_new_classes,
    choose_settings,
    enough_of_each,
    train,
    vector_settings,
)

if TYPE_CHECKING:
    from flowhash.estimator.flow_hasher import FlowHasher

METRIC_NAMES = {  # the names that people know them by
    "euclidean": "euclidean", "l2": "euclidean", "cosine": "cosine",
    "inner": "inner", "ip": "inner", "dot": "inner",
}  # fmt: skip
RANKS = {"input": "base", "whitened": "whitened", "codes": "hash"}  # as settings call them
HELD_OUT = 0.2  # of the items, to choose settings on


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
) -> tuple[Encoder, list[Trial]]:
    """Learn the buckets, in memory; and what was tried to choose what the parameters leave open.

    Args:
        hasher: whose parameters say what to learn; a generator as seed goes on by a number.
        items: [n, dim].
        labels: [n], from 0 to classes - 1, each of which occurs.
        names: of the classes.

    Raises:
        InputError: the parameters do not go together.
    """
    seed = int(check_random_state(hasher.random_state).randint(np.iinfo(np.int32).max))
    data = LabelledItems(ArrayItems(items), labels, names, "X")
    preprocessing = Preprocessing.fit(data)
    settings, trials = _settings(hasher, data, preprocessing, seed)
    learned, nothing = data, data.subset(np.zeros(0, np.int64))
    if settings.hash.loss != "codes":  # on distances, of at least two items of a class
        learned = data.subset(enough_of_each(labels, settings.hash.items))
    splits = Splits(learned, nothing, None, preprocessing)
    encoder = train(splits, settings, None, device=hasher.device, quiet=not hasher.verbose)
    return encoder, trials


def _settings(
    hasher: FlowHasher, data: LabelledItems, preprocessing: Preprocessing, seed: int
) -> tuple[Settings, list[Trial]]:
    """What the parameters say; what they leave open, a part of the items chooses."""
    buckets = None if isinstance(hasher.buckets, str) else int(hasher.buckets)
    hidden = None if isinstance(hasher.hidden, str) else layer_sizes(hasher.hidden)
    classes = len(data.class_names)

    def make(count: int, sizes: tuple[int, ...]) -> Settings:
        made = vector_settings(
            data.labels, max(count, hasher.active), sizes,
            active=int(hasher.active),
            loss=hasher.loss,
            groups=hasher.groups,
            penalty=None if isinstance(hasher.penalty, str) else float(hasher.penalty),
            steps=None if isinstance(hasher.steps, str) else int(hasher.steps),
            seed=seed,
        )  # fmt: skip
        order = None if isinstance(hasher.class_order, str) else float(hasher.class_order)
        made = replace(made, class_order=order)
        return replace(made, rank=RANKS[hasher.rank], checkpoint_every=made.hash.steps)

    if buckets is not None and hasher.active > buckets:
        raise InputError(
            f"active is {hasher.active} and buckets is {buckets}; an item cannot be in more "
            "buckets than there are"
        )
    if hasher.loss != "codes":  # the paper's: twice as many buckets as classes, no layers
        buckets = max(32, 2 * classes) if buckets is None else buckets
        hidden = () if hidden is None else hidden
    say = print if hasher.verbose else lambda line: None
    if hasher.new_classes:
        nothing = data.subset(np.zeros(0, np.int64))
        return choose_for_new_classes(
            Splits(data, nothing, None, preprocessing), make, buckets, hidden or (),
            ranks=_open_ranks(hasher), seed=seed, device=hasher.device, say=say,
        )  # fmt: skip
    kept, asked, _ = stratified(data.labels, HELD_OUT, seed=seed)
    splits = Splits(data.subset(kept), data.subset(asked), None, preprocessing)
    return choose_settings(
        splits, make, buckets, hidden, items=len(data), device=hasher.device, say=say
    )


def _open_ranks(hasher: FlowHasher) -> tuple[str, ...]:
    """What may rank new classes: the input, which is what nobody asked for, also whitened."""
    if hasher.loss != "codes":
        raise InputError(
            f'new_classes is True and loss is {hasher.loss!r}; expected the loss "codes", with '
            "which buckets are tried on classes that are held out"
        )
    products = METRIC_NAMES[hasher.metric] == "inner"  # which a linear map does not keep
    if hasher.rank != "input" or products:
        return (RANKS[hasher.rank],)
    return ("base", "whitened")


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
