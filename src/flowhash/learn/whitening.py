"""Whitening: a metric in which classes are round, so that what tells classes apart counts most."""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from flowhash.data import LabelledItems, Preprocessing
from flowhash.errors import InputError
from flowhash.learn.training.validation import embed
from flowhash.networks import EmbeddingNetwork

SAMPLE = 20_000  # vectors whose spread around their class is measured, at most
SHRINKAGE = 0.3  # how far the spread is drawn towards an even one
BLOCK = 8_192  # vectors that are summed at once
WIDEST = 4_096  # numbers in a vector whose spread is measured


def whitened_base(
    base: EmbeddingNetwork,
    data: LabelledItems,
    preprocessing: Preprocessing,
    device: torch.device,
    seed: int = 0,
) -> EmbeddingNetwork:
    """The base network with a last layer that makes the spread within classes even.

    Directions in which items of one class differ much count less, those in which they hardly differ
    count more; that carries over to classes that training never saw. The map is linear and is put
    into the last layer, so that a query costs no more; vectors that ranked as they are get such a
    layer.

    Args:
        base: whose outputs rank, before they are brought to length one.
        data: with classes.
        preprocessing: what the network takes.
        device: where the network is.
        seed: of the sample whose spread is measured.

    Raises:
        InputError: the embedding has too many numbers, or no class has two different items.
    """
    if base.outputs > WIDEST:
        raise InputError(
            f"the embedding has {base.outputs} numbers, of which {WIDEST} at most can be "
            'whitened; choose rank="base"'
        )
    raw = copy.copy(base)
    raw.unit = False
    made = embed(raw, data, preprocessing, device)
    labels = np.unique(data.labels, return_inverse=True)[1]
    matrix, middle = whitening(made, labels, seed)
    network = EmbeddingNetwork(copy.deepcopy(base.backbone), base.outputs, base.unit)
    assert isinstance(network.head, nn.Linear)
    weight, bias = np.eye(base.outputs), np.zeros(base.outputs)
    if isinstance(base.head, nn.Linear):
        weight, bias = (
            value.detach().cpu().numpy().astype(np.float64)
            for value in (base.head.weight, base.head.bias)
        )
    with torch.no_grad():
        network.head.weight.copy_(torch.from_numpy(matrix @ weight))
        network.head.bias.copy_(torch.from_numpy(matrix @ (bias - middle)))
    return network.to(device).eval()


def whitening(
    vectors: NDArray[np.float32], labels: NDArray[np.int64], seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The symmetric matrix W [dim, dim] and the mean m of all: W (x - m) has an even spread.

    Raises:
        InputError: no class has two different items.
    """
    spread = within_spread(vectors, class_averages(vectors, labels), labels, SHRINKAGE, seed)
    if spread is None:
        raise InputError(
            "no class has two different items, so that nothing is known of the spread within "
            'classes; choose rank="base"'
        )
    values, ways = np.linalg.eigh(spread)
    return (ways / np.sqrt(values)) @ ways.T, vectors.mean(axis=0, dtype=np.float64)


def original_vectors(
    base: EmbeddingNetwork, embeddings: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The vectors that a whitened base made these embeddings of [n, dim]."""
    assert isinstance(base.head, nn.Linear)
    weight, bias = (
        value.detach().cpu().numpy().astype(np.float64)
        for value in (base.head.weight, base.head.bias)
    )
    back = np.linalg.inv(weight)
    return np.asarray((embeddings - bias) @ back.T, np.float32)


def within_spread(
    vectors: NDArray[np.float32],
    means: NDArray[np.float64],
    labels: NDArray[np.int64],
    shrinkage: float,
    seed: int = 0,
) -> NDArray[np.float64] | None:
    """The covariance around the class means [dim, dim], drawn towards an even one.

    None where no class has two different items.
    """
    dim = vectors.shape[1]
    chosen = np.sort(np.random.default_rng(seed).permutation(len(vectors))[:SAMPLE])
    rows = vectors[chosen] - means[labels[chosen]].astype(np.float32)
    # By a power of two, which changes no digit, so that squares stay within float32.
    power = int(np.frexp(float(np.abs(rows).max(initial=0)))[1])
    rows = np.ldexp(rows, -power)
    spread = np.ldexp((rows.T @ rows / len(rows)).astype(np.float64), 2 * power)
    even = float(np.trace(spread)) / dim
    if not even > 0:
        return None
    return np.asarray((1 - shrinkage) * spread + shrinkage * even * np.eye(dim))


def class_averages(vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean of each class [classes, dim]."""
    sizes = np.bincount(labels)
    order = np.argsort(labels, kind="stable")
    sums = np.zeros((len(sizes), vectors.shape[1]))
    for start in range(0, len(order), BLOCK):
        part = order[start : start + BLOCK]
        here, firsts = np.unique(labels[part], return_index=True)
        sums[here] += np.add.reduceat(vectors[part].astype(np.float64), firsts)
    return np.asarray(sums / sizes[:, None])
