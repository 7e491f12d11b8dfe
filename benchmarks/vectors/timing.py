"""Claim: at equal recall FlowHash is quicker than FAISS's IVFFlat; hnswlib stands beside them.

    python -m benchmarks.vectors.timing [--lists 2048] [--alone 300] [--repeats 7] [--no-hnsw]

On GloVe, as run.py has it. FlowHash's time has everything in it: checks, the routing, the scan.
IVFFlat and hnswlib get the fewest lists, and the smallest ef, that find as much of the same test
queries; of their settings the quickest is taken, each time. All in one process, turn by turn.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from statistics import median
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.measurement import in_turns
from benchmarks.vectors.data import (
    TARGETS,
    TOP,
    Lists,
    Vectors,
    add_options,
    all_lists,
    found_of,
    glove,
    nearest,
)
from benchmarks.vectors.page import keep
from benchmarks.vectors.run import fitted
from flowhash import FlowHasher
from flowhash.encoder import search_encoded
from flowhash.evaluate import list_index
from flowhash.serve.search_executor import QueryEncoder
from flowhash.table import open_buckets

PROFILED = 0.95
LINKS = (16, 32)  # hnswlib's M
WIDEST = 4_096  # its ef, at the most
Queries = NDArray[np.float32]
Way = Callable[[Queries], object]


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """As many cores, threads of torch, of FAISS and of BLAS.

    FlowHasher takes all cores that it may use, so that it must be told by their number.
    """
    before = os.sched_getaffinity(0)
    with threadpool_limits(count):
        os.sched_setaffinity(0, sorted(before)[:count])
        torch.set_num_threads(count)
        faiss.omp_set_num_threads(count)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


def ours(hasher: FlowHasher, target: float, threads: int) -> dict[str, Way]:
    """The estimator's search; the encoder and the table; and these as the server has them."""
    encoder, table = hasher.encoder_, hasher.table_
    encode = QueryEncoder(encoder, threads)
    options: dict[str, Any] = {"recall": target, "threads": threads}
    return {
        "FlowHasher.search": lambda asked: hasher.search(asked, TOP, recall=target),
        "encode, HashTable.search": lambda asked: search_encoded(
            table, encoder.encode(asked, len(asked)), TOP, **options
        ),
        "as the server": lambda asked: search_encoded(table, encode(asked), TOP, **options),
    }


class InvertedLists:
    """FAISS's IVFFlat on given k-means lists; products where the centres have length one."""

    def __init__(self, data: Vectors, lists: Lists) -> None:
        self.lists = lists
        self.index = list_index(lists.centroids, "inner" if lists.spherical else "euclidean")
        self.index.add(data.items)

    def at(self, recall: float) -> tuple[str, Way]:
        """Its setting for a recall, and the search."""
        probe = self.lists.probe(recall)
        kind = "products" if self.lists.spherical else "distances"

        def search(asked: Queries) -> object:
            self.index.nprobe = probe
            return self.index.search(asked, TOP)

        return f"{probe} of {self.lists.lists:,} lists, {kind}", search


class Graph:
    """hnswlib's graph."""

    def __init__(self, data: Vectors, truth: NDArray[np.int64], links: int) -> None:
        import hnswlib

        self.test, self.truth, self.links = data.test, truth, links
        start = time.perf_counter()
        self.index = hnswlib.Index(space="l2", dim=data.items.shape[1])
        self.index.init_index(len(data.items), M=links, ef_construction=200, random_seed=1)
        self.index.set_num_threads(2)
        self.index.add_items(data.items)
        self.seconds = time.perf_counter() - start
        self._known: dict[int, float] = {}

    def _recall(self, width: int) -> float:
        if width not in self._known:
            self.index.set_ef(width)
            ids = self.index.knn_query(self.test, TOP)[0].astype(np.int64)
            self._known[width] = float(found_of(ids, self.truth).mean())
        return self._known[width]

    def at(self, recall: float) -> tuple[str, Way] | None:
        """Its smallest ef for a recall, and the search; None where none is large enough."""
        low, high = TOP - 1, TOP
        while self._recall(high) < recall:
            if high >= WIDEST:
                return None
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._recall(middle) >= recall else (middle, high)

        def search(asked: Queries) -> object:
            self.index.set_num_threads(len(os.sched_getaffinity(0)))
            self.index.set_ef(high)
            return self.index.knn_query(asked, TOP)

        return f"M {self.links}, ef {high}", search


def over(way: Way, pieces: Sequence[Queries]) -> Callable[[], object]:
    """All calls of one turn."""
    return lambda: [way(piece) for piece in pieces]


def quickest(ways: Sequence[tuple[str, Way]], pieces: Sequence[Queries]) -> tuple[str, Way]:
    """The setting that takes the least time: tried twice after a warm-up."""
    turns = in_turns([over(way, pieces) for _, way in ways], 2)
    least = np.array(turns).min(axis=0)
    return ways[int(least.argmin())]


def compared(
    own: dict[str, Way],
    peers: dict[str, list[tuple[str, Way]]],
    pieces: Sequence[Queries],
    repeats: int,
) -> dict[str, Any]:
    """Median seconds of a query by each, settings of the peers, and how much quicker we are."""
    chosen = {name: quickest(ways, pieces) for name, ways in peers.items() if ways}
    ways = own | {name: way for name, (_, way) in chosen.items()}
    turns = np.array(in_turns([over(way, pieces) for way in ways.values()], repeats))
    asked, names = sum(map(len, pieces)), list(ways)
    return {
        "seconds": dict(zip(names, (np.median(turns, axis=0) / asked).tolist(), strict=True)),
        "settings": {name: setting for name, (setting, _) in chosen.items()},
        "faster": {
            name: {
                peer: median((turns[:, names.index(peer)] / turns[:, names.index(name)]).tolist())
                for peer in chosen
            }
            for name in own
        },
    }  # fmt: skip


def stages(
    hasher: FlowHasher, target: float, threads: int, pieces: Sequence[Queries], repeats: int
) -> dict[str, float]:
    """Where the time of FlowHasher.search goes: median seconds of a query, by stage.

    One stage after the other for each call, as in a search, so that caches are as warm as there.
    """
    encoder, table, known = hasher.encoder_, hasher.table_, hasher.table_.calibration
    assert known is not None
    loads, threshold = table.bucket_loads(), known.threshold(target, TOP)
    turns = []
    for _ in range(1 + repeats):
        marks = []
        for asked in pieces:
            marks.append([time.perf_counter()])
            hasher.search(asked, TOP, recall=target)
            marks[-1].append(time.perf_counter())
            made = encoder.encode(asked, len(asked))
            marks[-1].append(time.perf_counter())
            order, opened = open_buckets(
                made.activations, loads, known.temperature, threshold, threads=threads
            )
            marks[-1].append(time.perf_counter())
            table.search(order, made.embeddings, TOP, probe=opened, threads=threads)
            marks[-1].append(time.perf_counter())
        turns.append(np.diff(marks).sum(axis=0))
    times = np.median(turns[1:], axis=0) / sum(map(len, pieces))
    names = ("all", "encode", "choose and order buckets", "scan and rerank")
    found: dict[str, float] = dict(zip(names, times.tolist(), strict=True))
    return found | {"rest": 2 * found["all"] - sum(found.values())}


def section(
    data: Vectors, threads: Sequence[int], alone: int, repeats: int, graphs: bool
) -> dict[str, Any]:
    """All figures of one data set."""
    truth = nearest(data)
    indexes = [InvertedLists(data, lists) for lists in all_lists(data, truth, 0)]
    linked = [Graph(data, truth, links) for links in LINKS if graphs]
    rows: list[dict[str, Any]] = []
    profiles: list[dict[str, Any]] = []
    calls = {"batch": [data.test], "one": np.split(data.test[:alone], alone)}
    for lists, copies in product(data.lists, ("auto", 0.0)):
        hasher = fitted(data, lists, 0, copies)
        name = {"lists": lists, "second": float(hasher.trials_[-1]["copies"])}
        for target in TARGETS:
            hits = hasher.search(data.test, TOP, recall=target)
            reached = float(found_of(hits.ids, truth).mean())
            peers = {
                "IVFFlat": [index.at(reached) for index in indexes],
                "hnswlib": [way for graph in linked if (way := graph.at(reached)) is not None],
            }
            for count in threads:
                with on_cores(count):
                    own = ours(hasher, target, count)
                    row: dict[str, Any] = {**name, "asked": target, "threads": count}
                    row |= {"reached": reached, "opened": float(hits.opened.mean())}
                    for kind, pieces in calls.items():
                        row[kind] = compared(own, peers, pieces, repeats)
                        if target == PROFILED:
                            found = stages(hasher, target, count, pieces, repeats)
                            about = {**name, "threads": count, "kind": kind}
                            profiles.append({**about, "stages": found})
                    rows.append(row)
                    print(row, flush=True)
    return {
        "name": data.name, "items": len(data.items), "dim": data.items.shape[1],
        "test": len(data.test), "alone": alone, "repeats": repeats, "rows": rows,
        "profiles": profiles, "profiled": PROFILED,
        "graphs": {str(graph.links): graph.seconds for graph in linked},
    }  # fmt: skip


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser, [2_048])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--alone", type=int, default=300, help="queries asked one a call")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--no-hnsw", action="store_true")
    given = parser.parse_args()
    for data in glove(tuple(given.lists), given.items):
        keep("timing", section(data, given.threads, given.alone, given.repeats, not given.no_hnsw))


if __name__ == "__main__":
    main()
