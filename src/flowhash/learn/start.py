"""Where the hash network's last layer starts: at random, small, or at the classes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from flowhash.data.labelled import LabelledItems
from flowhash.data.preprocess import Preprocessing
from flowhash.errors import InputError
from flowhash.learn.validate import embed
from flowhash.networks import EmbeddingNetwork
from flowhash.networks.vectors import Plain

SAMPLE = 64  # items of a class whose mean is taken, at most
QUIET = 0.1  # factor on the outputs that no class starts at
SMALL = 0.01  # σ of the authors' hash layer for ImageNet


def start_small(network: EmbeddingNetwork) -> None:
    """Draw the last layer's weights from a truncated normal of σ = 0.01; biases are zero.

    Truncated is TensorFlow's word: what is farther than 2 σ from zero is drawn again.
    """
    assert isinstance(network.head, nn.Linear)
    nn.init.trunc_normal_(network.head.weight, std=SMALL, a=-2 * SMALL, b=2 * SMALL)
    nn.init.zeros_(network.head.bias)


def start_at_classes(
    network: EmbeddingNetwork,
    base: EmbeddingNetwork,
    directions: Tensor,
    active: int,
) -> None:
    """Give each class outputs that are large for it: products with its direction in the base.

    A class gets as many outputs as there are for each, at most k, so that its items begin with a
    code of their own; Algorithm 1 goes on from there. What is left starts small, at random.

    Args:
        network: the hash network; its last layer is set. Its backbone is a copy of the base's, or
            none where the base ranks by vectors as they are.
        base: with a linear last layer, or with none.
        directions: of the classes in the base embedding [classes, m], or [classes, m + 1] with what
            is added to the products.
        active: k.

    Raises:
        InputError: fewer outputs than classes, or layers between the vectors and the last one.
    """
    classes = len(directions)
    if network.outputs < classes:
        raise InputError(
            f'start is "classes", but there are {classes} classes for {network.outputs} '
            'buckets; choose as many buckets at least, or start="random"'
        )
    assert isinstance(network.head, nn.Linear)
    if directions.shape[1] - base.outputs not in (0, 1):
        raise InputError(
            f"the directions of the classes have {directions.shape[1]} numbers; expected "
            f"{base.outputs}, as the base embedding has, or one more to add"
        )
    weights, added = _scores(network, base, directions.to(network.head.weight))
    copies = min(active, network.outputs // classes)
    with torch.no_grad():
        network.head.weight *= QUIET
        for copy in range(copies):
            rows = slice(copy * classes, (copy + 1) * classes)
            network.head.weight[rows] += weights
            network.head.bias[rows] = added


def _scores(
    network: EmbeddingNetwork, base: EmbeddingNetwork, directions: Tensor
) -> tuple[Tensor, Tensor]:
    """Weights and biases, on the features of the network, of products with the directions."""
    weights, added = directions[:, : base.outputs], directions[:, base.outputs :].sum(1)
    if isinstance(base.head, nn.Linear):
        return weights @ base.head.weight, weights @ base.head.bias + added
    if not isinstance(network.backbone, Plain):
        raise InputError(
            'start is "classes" and the base ranks by vectors as they are, but the network has '
            'layers before its last one; choose the backbone "linear", or start="random"'
        )
    return weights, added


def class_directions(
    base: EmbeddingNetwork, data: LabelledItems, preprocessing: Preprocessing
) -> Tensor:
    """The mean base embedding of each class that is there, at length one [classes, outputs]."""
    order = np.argsort(data.labels, kind="stable")
    starts = np.flatnonzero(np.diff(data.labels[order], prepend=-1))
    chosen = [part[:: max(1, len(part) // SAMPLE)][:SAMPLE] for part in np.split(order, starts[1:])]
    device = next((value.device for value in base.parameters()), torch.device("cpu"))
    made = embed(base, data.subset(np.concatenate(chosen)), preprocessing, device)
    ends = np.cumsum([len(part) for part in chosen])[:-1]
    means = np.stack([part.mean(axis=0) for part in np.split(made, ends)])
    lengths = np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    return torch.from_numpy(np.asarray(means / lengths, np.float32))
