"""Vectors and held-out queries, their true neighbours, and k-means lists of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.balanced.run import clusters
from benchmarks.estimator.data import FASHION, from_folder
from benchmarks.search.data import glove_words

TARGETS = (0.8, 0.9, 0.95, 0.99)
TOP = 10
POOL, TEST, CALIBRATED = 5_000, 5_000, 1_000
IVF_LISTS = (256, 512, 1_024, 2_048, 4_096)
FEWEST_OF_A_LIST = 16  # items; with shorter lists k-means is not tried


@dataclass(frozen=True)
class Vectors:
    """Items and held-out queries: the first half for calibrations, the others for tests."""

    name: str
    items: NDArray[np.float32]
    queries: NDArray[np.float32]
    metric: str
    lists: tuple[int, ...]

    @property
    def test(self) -> NDArray[np.float32]:
        """Queries that nothing is chosen by."""
        return self.queries[len(self.queries) // 2 :]

    def calibration(self, seed: int) -> NDArray[np.float32]:
        """A thousand of the other queries."""
        pool = self.queries[: len(self.queries) // 2]
        return pool[np.random.default_rng(seed).permutation(len(pool))[:CALIBRATED]]


def add_options(parser: argparse.ArgumentParser, lists: list[int], kinds: Sequence[str]) -> None:
    """What every part that takes GloVe may be told."""
    parser.add_argument("files", nargs="*", metavar="NAME=PATH")
    parser.add_argument("--lists", type=int, nargs="+", default=lists, help="for GloVe")
    parser.add_argument("--items", type=int, help="of GloVe at the most, to try it out")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, help="data to take")


def vectors_of(given: argparse.Namespace) -> Iterator[Vectors]:
    """What an option asked for; nothing is loaded before it is its turn."""
    kinds: dict[str, Callable[[], list[Vectors]]] = {
        "glove": lambda: glove(tuple(given.lists), given.items),
        "clusters": lambda: [clouds()],
        "fashion": fashion,
        "files": lambda: files(given.files),
    }
    for name in given.only:
        yield from kinds[name]()


def glove(lists: tuple[int, ...], most: int | None = None) -> list[Vectors]:
    """GloVe at length one; 10,000 words are queries."""
    words = glove_words()
    if words is None:
        return []
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    asked, items = np.split(words, (POOL + TEST,))
    return [Vectors("GloVe 6B 50d", items[:most], asked, "cosine", lists)]


def clouds(items: int = 1_000_000) -> Vectors:
    """Gaussian clusters of unequal weight, 2,000 of them in 64 dimensions."""
    asked, kept = np.split(clusters(items + POOL + TEST, 64, 2_000), (POOL + TEST,))
    return Vectors(f"{items:,} in clusters", kept, asked, "euclidean", (2_048,))


def fashion() -> list[Vectors]:
    """Fashion-MNIST's pixels, where Debian's package is installed."""
    if not FASHION.exists():
        print("no Fashion-MNIST: apt-get install dataset-fashion-mnist")
        return []
    data = from_folder("Fashion-MNIST", FASHION)
    return [Vectors("Fashion-MNIST, pixels", data.train, data.test, "euclidean", (512,))]


def files(given: list[str]) -> list[Vectors]:
    """Npz files with the arrays train and test."""
    found = []
    for each in given:
        name, path = each.split("=", 1)
        with np.load(path, allow_pickle=False) as file:
            lists = (2 ** round(np.log2(2 * np.sqrt(len(file["train"])))),)
            found.append(Vectors(name, file["train"], file["test"], "euclidean", lists))
    return found


def nearest(data: Vectors) -> NDArray[np.int64]:
    """The true nearest items of the test queries."""
    index = faiss.IndexFlatL2(data.items.shape[1])
    index.add(data.items)
    found: NDArray[np.int64] = index.search(data.test, TOP)[1]
    return found


def found_of(ids: NDArray[np.int64], truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """The share of its true nearest that each query found."""
    shares: NDArray[np.float64] = (ids[:, :, None] == truth[:, None]).any(axis=1).mean(axis=1)
    return shares


class Lists:
    """k-means lists, each query opening the same number: recall and share scanned by number."""

    def __init__(
        self, data: Vectors, lists: int, truth: NDArray[np.int64], seed: int, spherical: bool
    ) -> None:
        means = faiss.Kmeans(
            data.items.shape[1], lists, niter=25, seed=seed, spherical=spherical,
            max_points_per_centroid=1_000, min_points_per_centroid=1,
        )  # fmt: skip
        means.train(data.items)
        index = faiss.IndexFlatL2(data.items.shape[1])
        index.add(means.centroids)
        homes = index.search(data.items, 1)[1][:, 0]
        order = index.search(data.test, lists)[1]
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(lists)[None], 1)
        self.needed = np.take_along_axis(ranks, homes[truth], 1)
        loads = np.bincount(homes, minlength=lists)
        self.lists, self.spherical, self.centroids = lists, spherical, means.centroids
        counted = np.bincount(self.needed.ravel(), minlength=lists)
        self.recalls = np.cumsum(counted) / self.needed.size
        self.shares = np.cumsum(loads[order].mean(axis=0)) / len(data.items)

    def scanned(self, recall: float) -> float:
        """The share of the items at that recall, on a line between two numbers of lists."""
        return float(np.interp(recall, self.recalls, self.shares))

    def probe(self, recall: float) -> int:
        """The fewest lists that reach it."""
        return int(min(np.searchsorted(self.recalls, recall - 1e-9) + 1, self.lists))

    def hardest(self, recall: float) -> float:
        """The recall of the tenth of the queries of which least is found."""
        return hardest_tenth((self.needed < self.probe(recall)).mean(axis=1))


def hardest_tenth(shares: NDArray[np.float64]) -> float:
    """The mean of the lowest tenth."""
    return float(np.sort(shares)[: max(1, len(shares) // 10)].mean())


def all_lists(data: Vectors, truth: NDArray[np.int64], seed: int) -> list[Lists]:
    """Lists of every number; on a sphere also with centres of length one, as FAISS offers."""
    kinds = (False, True) if data.metric == "cosine" else (False,)
    return [
        Lists(data, lists, truth, seed, spherical)
        for lists in sorted({*IVF_LISTS, *data.lists})
        if lists <= len(data.items) // FEWEST_OF_A_LIST
        for spherical in kinds
    ]
