"""Items and queries for the scale benchmark, made in parts, so that ten million fit anywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DIM = 64
Pair = tuple[NDArray[np.int32], NDArray[np.float32]]


@dataclass(frozen=True)
class Crowd:
    """Clusters of uneven size, one a bucket; an item's first bucket is its cluster's.

    With k > 1 the others are drawn by the same popularity.

    Attributes:
        items: how many.
        buckets: d.
        active: k.
        skew: d Σ load² / n², expected.
    """

    items: int
    buckets: int
    active: int
    skew: float

    def _shape(self) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """The centre of each cluster and its share of the items, up to here."""
        random = np.random.default_rng([self.buckets, 0])
        centres = random.standard_normal((self.buckets, DIM), dtype=np.float32) * 2
        # The second moment of exp(σ z) over its squared mean is exp(σ²).
        shares = np.exp(math.sqrt(math.log(self.skew)) * random.standard_normal(self.buckets))
        return centres, np.cumsum(shares / shares.sum())

    def _draw(self, count: int, seed: list[int]) -> Pair:
        centres, ends = self._shape()
        random = np.random.default_rng(seed)
        codes = np.searchsorted(ends, random.random((count, self.active))).astype(np.int32)
        np.minimum(codes, self.buckets - 1, out=codes)
        while True:  # the buckets of a code are different
            again = np.flatnonzero((np.diff(np.sort(codes, 1)) == 0).any(axis=1))
            if not len(again):
                break
            fresh = random.integers(self.buckets, size=(len(again), self.active - 1))
            codes[again, 1:] = fresh
        vectors = random.standard_normal((count, DIM), dtype=np.float32)
        vectors += centres[codes[:, 0]]
        return codes, vectors

    def part(self, start: int, count: int) -> Pair:
        """Codes [m, k] and embeddings [m, dim] of some items."""
        return self._draw(min(count, self.items - start), [self.buckets, 1, start])

    def queries(self, count: int) -> Pair:
        """The buckets that queries open [q, k], and their embeddings [q, dim]."""
        return self._draw(count, [self.buckets, 2])
