"""The libraries that people name, each with the settings that reach a recall.

A peer is told a recall and answers with ways to search that reach it on the test queries, each with
the least effort that its settings allow; of these the benchmark takes the quickest.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.vectors.data import FEWEST_OF_A_LIST, TOP, Lists, Vectors, found_of
from flowhash.evaluate import list_index

Queries = NDArray[np.float32]
Way = Callable[[Queries], object]

LINKS = (16, 32)  # of a graph
BUILT = 200  # candidates while a graph is built
WIDEST = 4_096  # candidates of a graph, at the most
SCANNED_LISTS = (1_024, 4_096)  # of IVFPQFastScan
RERANKED = (4, 16, 64)  # times the hits that it measures again
LEAVES = (500, 2_000)  # of ScaNN
OTHERS = ("hnswlib", "usearch", "ScaNN")  # packages of their own
PEERS = ("IVFFlat", "IVFFlat, preassigned", "big_batch_search", "IVFPQFastScan, refined", *OTHERS)
REORDERED = (30, 100, 300)  # candidates that it measures again


class Peer(Protocol):
    """A library with an index of the items.

    Attributes:
        name: for the page.
        kinds: what it is asked: "batch" or "one", or both.
        seconds: that building took.
    """

    name: str
    kinds: tuple[str, ...]
    seconds: float

    def at(self, recall: float) -> Iterator[tuple[str, Way]]:
        """Settings that reach a recall, and the search with each; none where it cannot."""


Search = Callable[[int, Queries], Any]  # with an effort, for queries: the positions found


class _Efforts:
    """What searches with an effort find; each is looked up once."""

    def __init__(self, data: Vectors, truth: NDArray[np.int64]) -> None:
        self._data, self._truth = data, truth
        self._known: dict[tuple[object, ...], float] = {}

    def least(
        self, key: tuple[object, ...], search: Search, recall: float, start: int, most: int
    ) -> int | None:
        """The smallest effort that reaches a recall, by halving; None where ``most`` does not."""

        def reached(effort: int) -> float:
            known = (*key, effort)
            if known not in self._known:
                ids = np.asarray(search(effort, self._data.test)).astype(np.int64)
                self._known[known] = float(found_of(ids, self._truth).mean())
            return self._known[known]

        low, high = start - 1, start
        while reached(high) < recall:
            if high >= most:
                return None
            low, high = high, min(most, 2 * high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if reached(middle) >= recall else (middle, high)
        return high


class InvertedLists:
    """FAISS's IVFFlat on given k-means lists; products where the centres have length one.

    Also ``search_preassigned``, whose lists are looked for beforehand, in the time.
    """

    kinds: tuple[str, ...] = ("batch", "one")

    def __init__(self, data: Vectors, lists: Sequence[Lists], preassigned: bool = False) -> None:
        start = time.perf_counter()
        self.name = "IVFFlat, preassigned" if preassigned else "IVFFlat"
        self.preassigned = preassigned
        self.all = [(each, self._index(data, each)) for each in lists]
        self.seconds = time.perf_counter() - start

    @staticmethod
    def _index(data: Vectors, lists: Lists) -> Any:
        index = list_index(lists.centroids, "inner" if lists.spherical else "euclidean")
        index.add(data.items)
        return index

    def at(self, recall: float) -> Iterator[tuple[str, Way]]:
        """One way for each number of lists."""
        for lists, index in self.all:
            probe = lists.probe(recall)
            yield setting(lists, probe), self._way(index, probe)

    def _way(self, index: Any, probe: int) -> Way:
        def search(asked: Queries) -> object:
            index.nprobe = probe
            if not self.preassigned:
                return index.search(asked, TOP)
            near, opened = index.quantizer.search(asked, probe)
            return index.search_preassigned(asked, TOP, opened, near)

        return search


class BigBatch(InvertedLists):
    """FAISS's ``contrib.big_batch_search`` on the same lists: list by list, for many queries."""

    kinds = ("batch",)

    def __init__(self, data: Vectors, lists: Sequence[Lists]) -> None:
        super().__init__(data, lists)
        self.name = "big_batch_search"

    def _way(self, index: Any, probe: int) -> Way:
        from faiss.contrib.big_batch_search import big_batch_search

        def search(asked: Queries) -> object:
            index.nprobe = probe
            # Two threads: the next list is read while this one is computed.
            # At verbose=0 it prints a line for each list, which takes a good part of its time.
            return big_batch_search(index, asked, TOP, verbose=1, threaded=int(cores() > 1))

        return search


def setting(lists: Lists, probe: int) -> str:
    """In words."""
    kind = "products" if lists.spherical else "distances"
    return f"{probe} of {lists.lists:,} lists, {kind}"


class FastScan:
    """FAISS's IVFPQFastScan, four bits for two numbers, whose best are measured again."""

    name = "IVFPQFastScan, refined"
    kinds = ("batch", "one")

    def __init__(self, data: Vectors, truth: NDArray[np.int64]) -> None:
        start = time.perf_counter()
        self._efforts, self._indexes = _Efforts(data, truth), []
        dim = data.items.shape[1]
        pieces = next(count for count in range(dim // 2, 0, -1) if dim % count == 0)
        for lists in (each for each in SCANNED_LISTS if each <= most_lists(data)):
            index = faiss.index_factory(dim, f"IVF{lists},PQ{pieces}x4fs,RFlat")
            index.train(data.items)
            index.add(data.items)
            self._indexes.append((lists, index))
        self.seconds = time.perf_counter() - start

    def at(self, recall: float) -> Iterator[tuple[str, Way]]:
        """One way for each number of lists and of items that are measured again."""
        for (lists, index), factor in product(self._indexes, RERANKED):
            search = partial(self._search, index, factor)
            probe = self._efforts.least((lists, factor), search, recall, 1, lists // 2)
            if probe is not None:
                words = f"{probe} of {lists:,} lists, {factor * TOP} measured"
                yield words, partial(search, probe)

    @staticmethod
    def _search(index: Any, factor: int, probe: int, asked: Queries) -> Any:
        faiss.extract_index_ivf(index).nprobe = probe
        index.k_factor = factor
        return index.search(asked, TOP)[1]


class HnswLib:
    """hnswlib's graphs."""

    name = "hnswlib"
    kinds = ("batch", "one")

    def __init__(self, data: Vectors, truth: NDArray[np.int64]) -> None:
        import hnswlib

        start = time.perf_counter()
        self._efforts, self._indexes = _Efforts(data, truth), []
        for links in LINKS:
            index = hnswlib.Index(space="l2", dim=data.items.shape[1])
            index.init_index(len(data.items), M=links, ef_construction=BUILT, random_seed=1)
            index.set_num_threads(2)
            index.add_items(data.items)
            self._indexes.append((links, index))
        self.seconds = time.perf_counter() - start

    def at(self, recall: float) -> Iterator[tuple[str, Way]]:
        """One way for each graph."""
        return _of_graphs(self._efforts, self._indexes, self._search, recall)

    @staticmethod
    def _search(index: Any, width: int, asked: Queries) -> Any:
        index.set_num_threads(cores())
        index.set_ef(width)
        return index.knn_query(asked, TOP)[0]


class USearch:
    """usearch's graphs."""

    name = "usearch"
    kinds = ("batch", "one")

    def __init__(self, data: Vectors, truth: NDArray[np.int64]) -> None:
        from usearch.index import Index

        start = time.perf_counter()
        self._efforts, self._indexes = _Efforts(data, truth), []
        for links in LINKS:
            index = Index(
                ndim=data.items.shape[1], metric="l2sq", dtype="f32", connectivity=links,
                expansion_add=BUILT,
            )  # fmt: skip
            index.add(np.arange(len(data.items)), data.items, threads=2)
            self._indexes.append((links, index))
        self.seconds = time.perf_counter() - start

    def at(self, recall: float) -> Iterator[tuple[str, Way]]:
        """One way for each graph."""
        return _of_graphs(self._efforts, self._indexes, self._search, recall)

    @staticmethod
    def _search(index: Any, width: int, asked: Queries) -> Any:
        index.expansion_search = width
        return index.search(asked, TOP, threads=cores()).keys.reshape(len(asked), TOP)


def _of_graphs(
    efforts: _Efforts,
    indexes: Sequence[tuple[int, Any]],
    searched: Callable[[Any, int, Queries], Any],
    recall: float,
) -> Iterator[tuple[str, Way]]:
    """The fewest candidates of each graph that reach a recall."""
    for links, index in indexes:
        search = partial(searched, index)
        width = efforts.least((links,), search, recall, TOP, WIDEST)
        if width is not None:
            yield f"M {links}, ef {width}", partial(search, width)


class ScaNN:
    """Google's ScaNN: a tree, anisotropic quantisation to four bits, the best measured again."""

    name = "ScaNN"
    kinds = ("batch", "one")

    def __init__(self, data: Vectors, truth: NDArray[np.int64]) -> None:
        from scann import scann_ops_pybind

        start = time.perf_counter()
        self._efforts, self._indexes = _Efforts(data, truth), []
        unit = data.metric == "cosine"  # products rank as distances do, and it is made for them
        for leaves in (each for each in LEAVES if each <= most_lists(data)):
            made = scann_ops_pybind.builder(
                data.items, TOP, "dot_product" if unit else "squared_l2"
            )
            made = made.tree(
                num_leaves=leaves, num_leaves_to_search=leaves // 10,
                training_sample_size=min(len(data.items), 250_000),
            )  # fmt: skip
            threshold = 0.2 if unit else float("nan")
            made = made.score_ah(2, anisotropic_quantization_threshold=threshold)
            index = made.reorder(REORDERED[0]).build()
            index.set_num_threads(2)
            self._indexes.append((leaves, index))
        self.seconds = time.perf_counter() - start

    def at(self, recall: float) -> Iterator[tuple[str, Way]]:
        """One way for each number of leaves and of candidates that are measured again."""
        for (leaves, index), again in product(self._indexes, REORDERED):
            search = partial(self._search, index, again)
            opened = self._efforts.least((leaves, again), search, recall, 1, leaves // 2)
            if opened is not None:
                words = f"{opened} of {leaves:,} leaves, {again} measured"
                yield words, partial(search, opened)

    @staticmethod
    def _search(index: Any, again: int, opened: int, asked: Queries) -> Any:
        options = {"leaves_to_search": opened, "pre_reorder_num_neighbors": again}
        if len(asked) == 1:
            return index.search(asked[0], **options)[0]
        batched = index.search_batched if cores() == 1 else index.search_batched_parallel
        return batched(asked, **options)[0]


def most_lists(data: Vectors) -> int:
    """That may be tried: with shorter ones nobody is served."""
    return len(data.items) // FEWEST_OF_A_LIST


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def all_peers(
    data: Vectors, truth: NDArray[np.int64], lists: Sequence[Lists], wanted: Sequence[str] | None
) -> Iterator[Peer]:
    """Every peer that is installed, or those that are ``wanted``."""
    makers: tuple[Callable[[], Peer], ...] = (
        lambda: InvertedLists(data, lists),
        lambda: InvertedLists(data, lists, preassigned=True),
        lambda: BigBatch(data, lists),
        lambda: FastScan(data, truth),
        lambda: HnswLib(data, truth),
        lambda: USearch(data, truth),
        lambda: ScaNN(data, truth),
    )
    for name, made in zip(PEERS, makers, strict=True):
        module = name.lower()
        if wanted is not None and name not in wanted:
            continue
        if name in OTHERS and importlib.util.find_spec(module) is None:
            print(f"no {module}: pip install {module}", flush=True)
        else:
            yield made()
