"""Claim: at equal recall FlowHash is quicker than FAISS's IVFFlat; other peers stand beside them.

    python -m benchmarks.vectors.timing [NAME=PATH …] [--lists 2048] [--alone 300] [--repeats 5]
        [--peers IVFFlat]

On the vectors that run.py takes, and on a million in Gaussian clusters. FlowHash's time has
everything in it: checks, the routing, the scan. Peers get the least effort that finds as much of
the same test queries; of their settings the quickest is taken, each time. All in one process, turn
by turn. Needs the extra ``bench-search``; ScaNN is measured where it is installed. Of some
``--peers`` alone, which takes minutes instead of a quarter of an hour, nothing is kept.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import faiss
import numpy as np
import torch
from threadpoolctl import threadpool_limits

from benchmarks.measurement import in_turns
from benchmarks.vectors.data import (
    TARGETS,
    TOP,
    Vectors,
    add_options,
    all_lists,
    found_of,
    nearest,
    vectors_of,
)
from benchmarks.vectors.page import keep
from benchmarks.vectors.peers import PEERS, Queries, Way, all_peers
from benchmarks.vectors.run import fitted
from flowhash import FlowHasher
from flowhash.encoder import search_encoded
from flowhash.serve.search_executor import QueryEncoder
from flowhash.table import open_buckets

PROFILED = 0.95
TRIED = 1_000  # queries of a batch that choose the setting of a peer


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


def over(way: Way, pieces: Sequence[Queries]) -> Callable[[], object]:
    """All calls of one turn."""
    return lambda: [way(piece) for piece in pieces]


def quickest(ways: Sequence[tuple[str, Way]], pieces: Sequence[Queries]) -> tuple[str, Way]:
    """The setting that takes the least time for a part: tried twice after a warm-up."""
    some = [piece[:TRIED] for piece in pieces[: max(1, len(pieces) // 5)]]
    turns = in_turns([over(way, some) for _, way in ways], 2)
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
    data: Vectors, threads: Sequence[int], alone: int, repeats: int, wanted: Sequence[str] | None
) -> Iterator[dict[str, Any]]:
    """The figures of one data set, as far as they are known after each number of lists."""
    truth = nearest(data)
    peers = list(all_peers(data, truth, all_lists(data, truth, 0), wanted))
    print(data.name, {peer.name: round(peer.seconds, 1) for peer in peers}, flush=True)
    rows: list[dict[str, Any]] = []
    profiles: list[dict[str, Any]] = []
    calls = {"batch": [data.test], "one": np.split(data.test[:alone], len(data.test[:alone]))}
    for lists in data.lists:
        hasher = fitted(data, lists, 0)
        name = {"lists": lists, "second": float(hasher.trials_[-1]["copies"])}
        for target in TARGETS:
            hits = hasher.search(data.test, TOP, recall=target)
            reached = float(found_of(hits.ids, truth).mean())
            ways = {peer.name: list(peer.at(reached)) for peer in peers}
            for count in threads:
                with on_cores(count):
                    own = ours(hasher, target, count)
                    row: dict[str, Any] = {**name, "asked": target, "threads": count}
                    row |= {"reached": reached, "opened": float(hits.opened.mean())}
                    for kind, pieces in calls.items():
                        others = {
                            peer.name: ways[peer.name] for peer in peers if kind in peer.kinds
                        }
                        row[kind] = compared(own, others, pieces, repeats)
                        if target == PROFILED:
                            found = stages(hasher, target, count, pieces, repeats)
                            about = {**name, "threads": count, "kind": kind}
                            profiles.append({**about, "stages": found})
                    rows.append(row)
                    print(row, flush=True)
        yield {
            "name": data.name, "items": len(data.items), "dim": data.items.shape[1],
            "test": len(data.test), "alone": alone, "repeats": repeats, "rows": rows,
            "profiles": profiles, "profiled": PROFILED,
            "built": {peer.name: peer.seconds for peer in peers},
        }  # fmt: skip


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser, [2_048], ("glove", "clusters", "fashion", "files"))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--alone", type=int, default=300, help="queries asked one a call")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", nargs="+", choices=PEERS, help="some, to try it out")
    given = parser.parse_args()
    for data in vectors_of(given):
        for figures in section(data, given.threads, given.alone, given.repeats, given.peers):
            if given.peers is None:
                keep(f"timing/{data.name}", figures)


if __name__ == "__main__":
    main()
