"""Fisher's discriminant of classes or groups: where a last layer on plain vectors starts well."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.learn.whitening import WIDEST, class_averages, within_spread

SHRINKAGE = 0.5  # how far the spread is drawn towards an even one


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
    means = class_averages(vectors, labels)
    weights: NDArray[Any] = means
    if vectors.shape[1] <= WIDEST:  # above which the spread counts as even
        spread = within_spread(vectors, means, labels, SHRINKAGE, seed)
        if spread is not None:
            weights = np.linalg.solve(spread, means.T).T
    biases = -0.5 * (weights * means).sum(axis=1, keepdims=True)
    length = float(np.linalg.norm(weights, axis=1).mean()) or 1.0
    return np.asarray(np.hstack((weights, biases)) / length, np.float32)
