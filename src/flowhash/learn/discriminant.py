"""Fisher's discriminant of classes or groups: where a last layer on plain vectors starts well."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLE = 20_000  # vectors whose spread around their class is measured, at most
WIDEST = 4_096  # numbers in a vector, above which the spread counts as even
SHRINKAGE = 0.5  # how far the spread is drawn towards an even one
BLOCK = 8_192  # vectors that are summed at once


def discriminant(
    vectors: NDArray[np.float32], labels: NDArray[np.int64], seed: int = 0
) -> NDArray[np.float32]:
    """Weights and biases [classes, dim + 1], of length one on average.

    The score of class c is s·x with s = S⁻¹ m_c, minus half of m_c·s: the likeliest class of normal
    clouds that share one covariance S. All classes count alike, whatever their sizes.

    Args:
        vectors: as the network sees them [n, dim].
        labels: from 0 to classes - 1, each of which occurs [n].
        seed: of the sample whose spread is measured.
    """
    means = _means(vectors, labels)
    dim = vectors.shape[1]
    weights: NDArray[Any] = means
    if dim <= WIDEST:
        rng = np.random.default_rng(seed)
        chosen = np.sort(rng.permutation(len(vectors))[:SAMPLE])
        rows = vectors[chosen] - means[labels[chosen]].astype(np.float32)
        spread = (rows.T @ rows / len(rows)).astype(np.float64)
        even = float(np.trace(spread)) / dim or 1.0  # no class has two different items
        mixed = (1 - SHRINKAGE) * spread + SHRINKAGE * even * np.eye(dim)
        weights = np.linalg.solve(mixed, means.T).T
    biases = -0.5 * (weights * means).sum(axis=1, keepdims=True)
    length = float(np.linalg.norm(weights, axis=1).mean()) or 1.0
    return np.asarray(np.hstack((weights, biases)) / length, np.float32)


def _means(vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean of each class [classes, dim]."""
    sizes = np.bincount(labels)
    order = np.argsort(labels, kind="stable")
    sums = np.zeros((len(sizes), vectors.shape[1]))
    for start in range(0, len(order), BLOCK):
        part = order[start : start + BLOCK]
        here, firsts = np.unique(labels[part], return_index=True)
        sums[here] += np.add.reduceat(vectors[part].astype(np.float64), firsts)
    return np.asarray(sums / sizes[:, None])
