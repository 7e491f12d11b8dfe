"""A linear discriminant of the classes: where the hash network starts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data.preprocess import Preprocessing

SAMPLE = 20_000  # items whose spread around their class is measured, at most
WIDEST = 4_096  # numbers in a vector, above which the spread counts as even
SHRINKAGE = 0.5  # how far the spread is drawn towards an even one
BLOCK = 8_192  # items that are centred and summed at once


def discriminant(
    items: NDArray[np.float32],
    labels: NDArray[np.int64],
    preprocessing: Preprocessing,
    seed: int,
) -> NDArray[np.float32]:
    """Weights and biases [classes, dim + 1] of Fisher's discriminant, of length one on average.

    The score of class c is s·x with s = S⁻¹ m_c, minus half of m_c·s: the likeliest class of normal
    clouds that share one covariance S. All classes count alike, whatever their sizes.

    Args:
        items: [n, dim].
        labels: [n], from 0 to classes - 1, each of which occurs.
        preprocessing: what the network sees of the items.
        seed: of the sample.
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
