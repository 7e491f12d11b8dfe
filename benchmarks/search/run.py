"""Claim: the hash table outruns FAISS on the same lists, and loses nothing.

    python -m benchmarks.search.run [--avx2] [--rows 1000000] [--queries 10000] [--no-hnsw]

Everything runs in this process, turn by turn, two threads for everyone; medians of ratios. Needs
the extra ``bench-search``. Most of the time goes to FAISS Flat and the building of hnswlib's graph.
With ``--avx2`` a processor with AVX-512 plays one that has AVX2 only, for FAISS and BLAS, too; what
either finds is kept in docs/results/search.json, and the page shows both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import faiss
import numpy as np
from faiss.contrib.big_batch_search import big_batch_search
from numpy.typing import NDArray

from benchmarks.measurement import in_turns, seconds
from benchmarks.search.data import Data, clustered, glove
from benchmarks.search.report import write_report
from flowhash import HashTable
from flowhash.evaluate import add_to_lists, flat_index, list_index

THREADS = 2  # as the room's __init__ says for FAISS
TOP = 16
ALONE = 500  # queries asked one by one
SILENT = 1  # at 0 it prints a line for each list, which takes a good part of its time
PLAYED = {  # by a processor with AVX-512
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "",
    "OPENBLAS_CORETYPE": "Haswell",
    "FAISS_SIMD_LEVEL": "AVX2",
}
FRESH = """
import sys, time
begin = time.perf_counter()
import numpy as np
from flowhash.table import HashTable
loaded = time.perf_counter()
arrays = np.load(sys.argv[2])
start = time.perf_counter()
table = HashTable.open(sys.argv[1])
opened = time.perf_counter()
table.search(arrays["order"][:1], arrays["queries"][:1], top=16)
searched = time.perf_counter()
print((opened - start) * 1e3, (searched - opened) * 1e3, (loaded - begin) * 1e3)
"""


def turns(
    theirs: Callable[[], object], ours: Callable[[], object], repeats: int, share: int = 1
) -> dict[str, float]:
    """Time both turn by turn: medians of each (over ``share``), and the median of their ratios."""
    pairs = in_turns((theirs, ours), repeats)
    return {
        "theirs": median(pair[0] for pair in pairs) / share,
        "ours": median(pair[1] for pair in pairs) / share,
        "ratio": median(pair[0] / pair[1] for pair in pairs),
    }


class Peer:
    """FAISS IVFFlat with the same lists: an item is in the list of each of its k buckets."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.index = list_index(data.centres)
        self.index.nprobe = data.active
        self.lists = np.asfortranarray(data.codes, np.int64)  # as FAISS takes them: not timed
        self.opened = np.ascontiguousarray(data.order, np.int64)
        self.nearness = np.zeros(self.opened.shape, np.float32)

    def add(self) -> None:
        """Add every item to its lists, which are given."""
        add_to_lists(self.index, self.data.vectors, self.lists)

    def search(self, part: slice) -> tuple[NDArray[Any], NDArray[Any]]:
        """The nearest TOP of the union of the lists; with k > 1 copies have to be removed."""
        asked = self.data.queries[part]
        distances, ids = self.index.search_preassigned(
            asked, TOP * self.data.active, self.opened[part], self.nearness[part]
        )
        return (distances, ids) if self.data.active == 1 else without_copies(distances, ids)

    def search_raw(self, part: slice) -> object:
        """The same without the removal of copies: not the same answer."""
        return self.index.search_preassigned(
            self.data.queries[part], TOP * self.data.active, self.opened[part], self.nearness[part]
        )

    def search_big(self, part: slice) -> object:
        """FAISS's call for large batches, which goes list by list and finds the lists itself."""
        asked = self.data.queries[part]
        return big_batch_search(self.index, asked, TOP, verbose=SILENT, threaded=int(THREADS > 1))

    def search_itself(self, part: slice) -> tuple[NDArray[Any], NDArray[Any]]:
        """The usual call, in which FAISS finds the lists of a query with its own quantiser."""
        return self.index.search(self.data.queries[part], TOP)


def without_copies(distances: NDArray[Any], ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The first TOP different ids of each line, in numpy."""
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(ids, order, 1)
    fresh = np.ones(ids.shape, bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.empty_like(fresh)
    np.put_along_axis(first, order, fresh, 1)
    ranked = np.argsort(~first, axis=1, kind="stable")[:, :TOP]
    return np.take_along_axis(distances, ranked, 1), np.take_along_axis(ids, ranked, 1)


def same_answers(distances: NDArray[Any], ids: NDArray[Any], hits: Any) -> float:
    """The share of hits whose id is the peer's, or whose distance ties with it."""
    same = ids == hits.ids
    tied = np.abs(distances - hits.distances) <= 1e-5 * np.maximum(1.0, np.abs(distances))
    return float((same | tied).mean())


def measure(data: Data, flat: dict[str, Any]) -> dict[str, Any]:
    """All figures of one data set."""
    print(f"{data.name} …", flush=True)
    rows, dim = data.vectors.shape
    row: dict[str, Any] = {"name": data.name, "k": data.active, "rows": rows, "dim": dim}

    def make() -> HashTable:
        table = HashTable.create(buckets=len(data.centres), dim=dim, active=data.active)
        table.add(data.codes, data.vectors)
        return table

    peers = [Peer(data) for _ in range(6)]  # made beforehand: only their adding is timed
    row["add"] = turns(lambda: peers.pop().add(), make, 5)
    peer, table = Peer(data), make()
    peer.add()
    everything = slice(None)
    hits = table.search(data.order, data.queries, TOP, threads=THREADS)
    row["equal"] = same_answers(*peer.search(everything), hits)
    row["suf"] = rows / float(hits.scanned.mean())
    row["recall"] = recall(hits.ids, flat["ids"])

    ask, ours = asking(table, data)
    row["batch"] = turns(lambda: peer.search(everything), ours, 5 if data.active == 1 else 3)
    row["flat"] = flat["seconds"] / row["batch"]["ours"]
    row["queries"] = len(data.queries)
    if data.active == 1:
        row["batch_itself"] = turns(lambda: peer.search_itself(everything), ours, 5)
        row["batch_big"] = turns(lambda: peer.search_big(everything), ours, 5)

    row["one"] = turns(alone(peer.search, data), ask, 15, ALONE)
    if data.active > 1:  # its time without the removal of copies, which is numpy's
        row["one_raw"] = turns(alone(peer.search_raw, data), ask, 15, ALONE)
        row["batch_raw"] = turns(lambda: peer.search_raw(everything), ours, 3)
    if data.active == 1:
        row["one_itself"] = turns(alone(peer.search_itself, data), ask, 15, ALONE)
    row["memory"] = table.stats().bytes / data.vectors.nbytes
    row["disk"], row["mapped"] = on_disk(data, table)
    return row


def asking(table: HashTable, data: Data) -> tuple[Callable[[], object], Callable[[], object]]:
    """One query a call, and the whole batch."""

    def search(part: slice) -> object:
        return table.search(data.order[part], data.queries[part], TOP, threads=THREADS)

    return alone(search, data), lambda: search(slice(None))


def alone(search: Callable[[slice], object], data: Data) -> Callable[[], object]:
    """Calls of a search, each with one of the same queries."""
    chosen = np.random.default_rng(1).permutation(len(data.queries))[:ALONE].tolist()
    return lambda: [search(slice(query, query + 1)) for query in chosen]


def on_disk(data: Data, in_memory: HashTable) -> tuple[dict[str, float], dict[str, float]]:
    """The table in a folder: size, how fast a fresh process opens and searches it; and its time.

    That is how much longer searches of the mapped file take than those in memory.
    """
    folder = Path(tempfile.mkdtemp())
    try:
        path = folder / "table"
        dim = data.vectors.shape[1]
        with HashTable.create(
            path, buckets=len(data.centres), dim=dim, active=data.active
        ) as table:
            adding = seconds(lambda: table.add(data.codes, data.vectors))
        size = sum(file.stat().st_size for file in path.iterdir())
        np.savez(folder / "queries.npz", order=data.order[:1], queries=data.queries[:1])
        words = [sys.executable, "-c", FRESH, str(path), str(folder / "queries.npz")]
        times = []
        for _ in range(6):  # the first one warms the compile cache
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            times.append([float(word) for word in done.stdout.split()])
        fresh = {
            "size": size / data.vectors.nbytes,
            "add": adding,
            "open": median([time[0] for time in times[1:]]),
            "first": median([time[1] for time in times[1:]]),
            "import": median([time[2] for time in times[1:]]),
        }
        with HashTable.open(path) as mapped:
            (one, batch), (here, together) = asking(mapped, data), asking(in_memory, data)
            times_on_disk = {
                "one": turns(one, here, 15)["ratio"], "batch": turns(batch, together, 3)["ratio"]
            }  # fmt: skip
        return fresh, times_on_disk
    finally:
        shutil.rmtree(folder)


def recall(found: NDArray[Any], truth: NDArray[Any]) -> float:
    """The share of the exact nearest TOP that was found."""
    hits = [len(np.intersect1d(line, right)) for line, right in zip(found, truth, strict=True)]
    return float(np.mean(hits)) / truth.shape[1]


def search_flat(data: Data) -> dict[str, Any]:
    """FAISS Flat, exact, on the whole batch; its threads are warm, and it runs once: it is slow."""
    print(f"FAISS Flat on {len(data.vectors):,} × {len(data.queries):,} …", flush=True)
    index = flat_index(data.vectors)
    answer: list[Any] = []
    index.search(data.queries[:100], TOP)
    taken = seconds(lambda: answer.append(index.search(data.queries, TOP)))
    return {"seconds": taken, "ids": answer[0][1]}


def search_graph(data: list[Data], flat: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Hnswlib at the first ef whose recall reaches the table's, for each k."""
    import hnswlib

    items = data[0].vectors
    print(f"hnswlib's graph of {len(items):,} …", flush=True)
    graph = hnswlib.Index(space="l2", dim=items.shape[1])
    graph.init_index(len(items), M=16, ef_construction=100, random_seed=1)
    graph.set_num_threads(THREADS)
    building = seconds(lambda: graph.add_items(items))
    measured = []
    for width in (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024):
        graph.set_ef(width)
        ids = graph.knn_query(data[0].queries, TOP)[0]
        times = [seconds(lambda: graph.knn_query(data[0].queries, TOP)) for _ in range(3)]
        measured.append((width, recall(ids, flat["ids"]), median(times)))
        print(f"  ef {width}: recall {measured[-1][1]:.4f} in {measured[-1][2]:.2f} s", flush=True)
        if measured[-1][1] >= max(row["recall"] for row in rows):
            break
    for row in rows:
        reaching = [entry for entry in measured if entry[1] >= row["recall"]]
        chosen = reaching[0] if reaching else measured[-1]
        row["graph"] = dict(
            zip(("ef", "recall", "seconds"), chosen, strict=True), building=building
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--no-hnsw", action="store_true")
    parser.add_argument("--avx2", action="store_true", help="play a processor without AVX-512")
    options = parser.parse_args()
    if options.avx2 and os.environ.get("NUMBA_CPU_NAME") != PLAYED["NUMBA_CPU_NAME"]:
        # Libraries read it when they are loaded: begin anew.
        words = [sys.executable, "-m", "benchmarks.search.run", *sys.argv[1:]]
        caches = os.environ.get("NUMBA_CACHE_DIR", str(Path(tempfile.gettempdir()) / "numba"))
        os.execve(
            sys.executable, words, os.environ | PLAYED | {"NUMBA_CACHE_DIR": f"{caches}-avx2"}
        )
    faiss.omp_set_num_threads(THREADS)
    results = []
    sets = [clustered(options.rows, options.queries, (1, 2, 3)), glove(options.queries, (1, 2, 3))]
    for data in filter(None, sets):
        flat = search_flat(data[0])
        rows = [measure(one, flat) for one in data]
        if not options.no_hnsw:
            search_graph(data, flat, rows)
        results += rows
    print(json.dumps(results, indent=1))
    complete = options.rows == 1_000_000 and options.queries == 10_000
    write_report(results, THREADS, options.avx2, complete)


if __name__ == "__main__":
    main()
