"""k-means by FAISS where it is installed, else by scikit-learn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import InputError, MissingExtraError
from flowhash.extras import require

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


def distances_below(
    embeddings: NDArray[np.float32], centroids: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Minus the squared distance to each centroid [n, count], up to a number for each item."""
    squares = np.square(centroids).sum(axis=1)
    return np.asarray(2 * (embeddings @ centroids.T) - squares, np.float32)
