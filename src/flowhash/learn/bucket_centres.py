"""Centres of buckets, fitted to embeddings: an item's buckets are those of the nearest centres."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowhash.progress_bars import tracked

ROUNDS = 20  # of k-means at the most
BLOCK = 8_192  # embeddings that are looked at at once
NEAREST_BYTES = 1 << 26  # of distances to all centres in memory at once
LAST = -1e30  # the output of a bucket without items: below all others, for vectors of any length


@dataclass(frozen=True, eq=False)
class BucketCentres:
    """The centres of buckets.

    Attributes:
        points: the centre of each bucket [d, dim].
        idle: which buckets no item is nearest to [d]; a query opens them last.
    """

    points: NDArray[np.float64]
    idle: NDArray[np.bool_]

    def layer(self, directions: bool = False) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Weights [d, dim] and biases [d] of a linear layer whose largest outputs are the nearest.

        The output of bucket j is s·(x·c_j - |c_j|²/2) but for a number that all buckets have in
        common: of x·c_j the part of the centres' mean is left out, so that embeddings far from
        zero lose no digits. Idle buckets have one output, below all others, whatever x is.

        Args:
            directions: compare angles instead of distances, so that the length of x does not
                matter.
        """
        points = self.points
        if directions:
            lengths = np.linalg.norm(points, axis=1, keepdims=True)
            points = points / np.where(lengths > 0, lengths, 1.0)
        middle = points[~self.idle].mean(axis=0)
        weights = np.where(self.idle[:, None], 0.0, points - middle)
        biases = np.zeros(len(points))
        if not directions:
            biases = -0.5 * (weights * (points + middle)).sum(axis=1)
        scale = float(np.linalg.norm(weights, axis=1).max()) or 1.0
        biases = np.where(self.idle, LAST, biases / scale)
        return (weights / scale).astype(np.float32), biases.astype(np.float32)


def fit_centres(
    embeddings: NDArray[np.float32],
    codes: NDArray[np.int32],
    buckets: int,
    seed: int = 0,
    show: bool = False,
) -> BucketCentres:
    """Centres for buckets, without labels: k-means that starts at the buckets that items have.

    A bucket whose centre is nobody's nearest begins anew at an item of the fullest one.

    Args:
        embeddings: [n, dim], one or more.
        codes: the buckets that the trained network gives each [n, k].
        buckets: d.
        seed: of the items at which buckets begin anew.
        show: a bar with the time left, on the error stream.
    """
    rng = np.random.default_rng(seed)
    middle = embeddings.mean(axis=0, dtype=np.float64)
    scale = max((float(np.abs(part - middle).max()) for part in _blocks(embeddings)), default=0.0)
    scale = scale or 1.0
    rows = np.empty_like(embeddings)
    for start in range(0, len(rows), BLOCK):
        rows[start : start + BLOCK] = (embeddings[start : start + BLOCK] - middle) / scale
    points = np.zeros((buckets, rows.shape[1]), np.float32)
    _move(points, rows, codes)
    _fill(points, rows, codes, rng)
    nearest = _nearest(rows, points)
    for _ in tracked(range(ROUNDS), "fit", ROUNDS, show):
        _move(points, rows, nearest)
        _fill(points, rows, nearest, rng)
        before, nearest = nearest, _nearest(rows, points)
        if np.array_equal(before, nearest):
            break
    idle = np.bincount(nearest[:, 0], minlength=buckets) == 0
    return BucketCentres(points.astype(np.float64) * scale + middle, idle)


def _blocks(rows: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]


def _move(points: NDArray[np.float32], rows: NDArray[np.float32], codes: NDArray[np.int32]) -> None:
    """Move each point to the mean of the rows that have its bucket; the others stay."""
    sums = np.zeros(points.shape)
    loads = np.bincount(codes.ravel(), minlength=len(points))
    for start in range(0, len(rows), BLOCK):
        part = codes[start : start + BLOCK]
        order = np.argsort(part, axis=None, kind="stable")
        here, firsts = np.unique(part.ravel()[order], return_index=True)
        chosen = rows[start : start + BLOCK][order // part.shape[1]]
        sums[here] += np.add.reduceat(chosen.astype(np.float64), firsts)
    used = loads > 0
    points[used] = sums[used] / loads[used, None]


def _fill(
    points: NDArray[np.float32],
    rows: NDArray[np.float32],
    codes: NDArray[np.int32],
    rng: np.random.Generator,
) -> None:
    """Let each empty bucket begin anew at a row of the fullest, which then counts as two halves."""
    loads = np.bincount(codes.ravel(), minlength=len(points))
    fullness = loads.astype(np.float64)
    for bucket in np.flatnonzero(loads == 0):
        fullest = int(fullness.argmax())
        members = np.flatnonzero((codes == fullest).any(axis=1))
        points[bucket] = rows[rng.choice(members)]
        fullness[fullest] /= 2


def _nearest(rows: NDArray[np.float32], points: NDArray[np.float32]) -> NDArray[np.int32]:
    """The nearest point of each row [n, 1]; of several, the first."""
    halves = 0.5 * np.square(points).sum(axis=1)
    size = max(1, min(BLOCK, NEAREST_BYTES // (4 * len(points))))
    found = np.empty((len(rows), 1), np.int32)
    for start in range(0, len(rows), size):
        near = rows[start : start + size] @ points.T
        near -= halves
        found[start : start + size, 0] = near.argmax(axis=1)
    return found
