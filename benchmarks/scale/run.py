"""Claim: ten million items open at once and are searched as one million are.

    python -m benchmarks.scale.run [--items 10000000] [--small 1000000] [--folder FOLDER]

Builds float16 tables on disk, each step in a fresh process, and measures what docs/scale.md speaks
of, with the rates that its formulas need. Takes some
minutes, 4 GB of disk and of memory; nothing else should run meanwhile, and the page says so if
something did. Other sizes than these are printed, not written.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurement import ROOT, machine, seconds
from benchmarks.scale.data import Crowd
from benchmarks.scale.report import BATCHES, summary, write_report
from benchmarks.scale.steps import THREADS, TOP, make_kernels_table
from flowhash import HashTable

ALONE = 200  # queries asked one by one
SKEW = 2.57  # of trained codes, k = 1: docs/scale.md
LEAST = 3  # how often, where the least counts: other work can only make it longer


def step(name: str, folder: Path, crowd: Crowd) -> dict[str, Any]:
    """Run one step in a fresh process."""
    print(f"{name} {folder.name}: {crowd.items:,} items …", flush=True)
    words = [sys.executable, "-m", "benchmarks.scale.steps", name, str(folder.resolve())]
    words += [str(value) for value in asdict(crowd).values()]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def make(folder: Path, crowd: Crowd) -> dict[str, Any]:
    """Build and compact a table; open and search it cold."""
    found: dict[str, Any] = {**asdict(crowd), "build": step("build", folder, crowd)}
    found["compact"] = step("compact", folder, crowd)
    # The first run may compile, too.
    runs = [step("search", folder, crowd) for _ in range(LEAST)]
    found["search"] = {key: min(run[key] for run in runs) for key in runs[0]}
    return found


def skew(loads: NDArray[np.int64]) -> float:
    """Of k = 1, from the loads of buckets [d]: d Σ load² / n²; 1 if all are equal."""
    return len(loads) * float((loads.astype(float) ** 2).sum()) / float(loads.sum()) ** 2


class Warm:
    """A table that is searched over and over, and what its searches mean in the formulas' terms."""

    def __init__(self, folder: Path, crowd: Crowd, found: dict[str, Any]) -> None:
        self.crowd, self.found = crowd, found
        self.table, self.scanned = HashTable.open(folder), 0.0
        self.loads = self.table.bucket_loads()
        self.codes, self.vectors = crowd.queries(max(BATCHES))
        found["skew"] = skew(self.loads) if crowd.active == 1 else None
        found["batches"] = []

    def batch(self, size: int) -> float:
        """Seconds to search the first ``size`` queries."""
        queries = self.codes[:size], self.vectors[:size]
        began = time.perf_counter()
        hits = self.table.search(*queries, TOP, threads=THREADS)
        ended = time.perf_counter()
        self.scanned = float(hits.scanned.mean())
        return ended - began

    def describe(self, size: int, times: list[float]) -> dict[str, float]:
        """The last batch: rows read, rows compared with a query, and how long it took."""
        opened = self.codes[:size]
        return {
            "queries": size,
            "seconds": median(times),
            "scanned": self.scanned,
            "reads": int(self.loads[np.unique(opened)].sum()),
            "compared": float(self.loads[opened].sum(axis=1).mean()),
        }

    def alone(self) -> float:
        """Seconds of a call with one query: the least for each, the mean over them."""
        least = np.full(ALONE, np.inf)
        for _ in range(LEAST):
            for place in range(ALONE):
                code, vector = self.codes[place : place + 1], self.vectors[place : place + 1]
                began = time.perf_counter()
                self.table.search(code, vector, TOP)
                least[place] = min(least[place], time.perf_counter() - began)
        return float(least.mean())


def measure_warm(tables: dict[str, Warm], repeats: int) -> None:
    """Every batch on every table in turns."""
    for warm in tables.values():
        warm.batch(10_000)
    for size in BATCHES:
        # With k > 1 only a factor is wanted, and the largest batch takes long.
        taken = [warm for warm in tables.values() if warm.crowd.active == 1 or size < BATCHES[-1]]
        times: list[list[float]] = [[] for _ in taken]
        for _ in range(repeats):
            for warm, mine in zip(taken, times, strict=True):
                mine.append(warm.batch(size))
        for warm, mine in zip(taken, times, strict=True):
            warm.found["batches"].append(warm.describe(size, mine))
    for warm in tables.values():
        warm.found["alone"] = warm.alone()
        warm.found["alone_compared"] = float(warm.loads[warm.codes[:ALONE]].sum(axis=1).mean())


def main() -> None:
    """Measure, print, and write docs/results/scale.json and the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--small", type=int, default=1_000_000)
    parser.add_argument("--buckets", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for the tables; a temporary one by default")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    few = round(options.buckets * options.small / options.items)
    crowds = {
        "small": Crowd(options.small, few, 1, SKEW),
        "wide": Crowd(options.small, options.buckets, 1, SKEW),
        "pairs": Crowd(options.small, few, 2, SKEW),
        "large": Crowd(options.items, options.buckets, 1, SKEW),
    }
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        for active in (1, 2):
            make_kernels_table(folder / f"kernels-{active}", active)
        tables = {name: make(folder / name, crowd) for name, crowd in crowds.items()}
        warm = {name: Warm(folder / name, crowds[name], tables[name]) for name in crowds}
        measure_warm(warm, options.repeats)
        opening = median([seconds(lambda: HashTable.open(folder / "kernels-1")) for _ in range(20)])
    finally:
        shutil.rmtree(folder)
    result = {"machine": machine(), "load": load, "tables": tables, **summary(tables, opening)}
    write_report(result, options.items == 10_000_000 and options.small == 1_000_000)


if __name__ == "__main__":
    main()
