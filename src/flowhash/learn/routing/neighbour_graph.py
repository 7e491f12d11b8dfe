"""The neighbour graph of vectors: which items are nearest to each, by the house's own table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import ordered_buckets
from flowhash.progress_bars import items_bar
from flowhash.table import HashTable

NEIGHBOURS = 10  # of each item, whose buckets the router learns
OPENED = 8  # one of so many buckets is opened to find them
LEAST_OPENED = 8
BLOCK = 8_192  # queries at once


def centre_scores(
    vectors: NDArray[np.float32], centres: NDArray[np.float32], inner: bool = False
) -> NDArray[np.float32]:
    """Largest for the nearest centre: x·c - |c|²/2, or x·c for inner products [n, d]."""
    scores: NDArray[np.float32] = vectors @ centres.T
    if not inner:
        scores -= np.square(centres).sum(axis=1) / 2
    return scores


def neighbour_graph(
    vectors: NDArray[np.float32],
    homes: NDArray[np.int32],
    centres: NDArray[np.float32],
    queries: NDArray[np.float32],
    own: NDArray[np.int64] | None = None,
    *,
    inner: bool = False,
    everything: bool = False,
    show: bool = False,
) -> NDArray[np.int32]:
    """The nearest items of each query, nearest first; -1 where there are fewer [q, 10].

    Args:
        vectors: the items [n, dim].
        homes: the bucket of each, that of its nearest centre [n].
        centres: of the buckets [d, dim].
        queries: what is asked with [q, dim].
        own: which items these are, each searched among the others [q]; None where they are none.
        inner: whether the nearest are those with the largest inner product.
        everything: search all items, not only the nearest eighth of the buckets.
        show: a bar with the time left, on the error stream.
    """
    metric = "inner" if inner else "euclidean"
    table = HashTable.create(buckets=len(centres), dim=vectors.shape[1], active=1, metric=metric)
    table.add(homes[:, None], vectors)
    opened = min(len(centres), max(LEAST_OPENED, len(centres) // OPENED))
    if everything:
        opened = len(centres)
    found = np.full((len(queries), NEIGHBOURS), -1, np.int32)
    with items_bar("neighbours", len(queries), show) as advance:
        for start in range(0, len(queries), BLOCK):
            rows = queries[start : start + BLOCK]
            order = ordered_buckets(centre_scores(rows, centres, inner), opened)
            hits = table.search(order, rows, NEIGHBOURS + (own is not None), probe=opened)
            ids = hits.ids
            if own is not None:
                ids = hits.without(own[start : start + BLOCK]).ids
            found[start : start + BLOCK, : ids.shape[1]] = ids[:, :NEIGHBOURS]
            advance(len(rows))
    return found
