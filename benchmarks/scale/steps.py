"""What the scale benchmark runs in fresh processes, each for its own peak memory.

    python -m benchmarks.scale.steps build|compact|search FOLDER ITEMS BUCKETS ACTIVE SKEW

Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measurement import peak_memory
from benchmarks.scale.data import DIM, Crowd
from flowhash import HashTable

TOP, THREADS = 16, 2
PART = 500_000  # items of one add


def drop_pages(folder: Path) -> None:
    """Have the system forget what it holds of the files, if nobody has them mapped."""
    os.sync()
    for file in folder.iterdir():
        handle = os.open(file, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def build(folder: Path, crowd: Crowd) -> dict[str, Any]:
    """Add everything in parts; the time of making the data does not count."""
    seconds = 0.0
    spare = folder.with_name(folder.name + "-spare")
    make_kernels_table(spare, crowd.active)  # so that no kernel is compiled or loaded below
    shutil.rmtree(spare)
    with HashTable.create(
        folder, buckets=crowd.buckets, dim=DIM, active=crowd.active, dtype="float16"
    ) as table:
        for start in range(0, crowd.items, PART):
            codes, vectors = crowd.part(start, PART)
            began = time.perf_counter()
            table.add(codes, vectors)
            seconds += time.perf_counter() - began
            del codes, vectors
        segments = table.stats().segments
    return {"seconds": seconds, "segments": segments}


def compact(folder: Path, crowd: Crowd) -> dict[str, Any]:
    """Merge everything into one segment."""
    spare = folder.with_name(folder.name + "-spare")
    make_kernels_table(spare, crowd.active)
    shutil.rmtree(spare)
    with HashTable.open(folder, "r+") as table:
        began = time.perf_counter()
        table.compact()
        seconds = time.perf_counter() - began
        size = sum(file.stat().st_size for file in folder.iterdir())
        return {"seconds": seconds, "bytes": size, "suf": table.stats().suf}


def search(folder: Path, crowd: Crowd) -> dict[str, Any]:
    """Open and search with nothing in memory; the kernels are loaded by another table first."""
    warm = folder.with_name(f"kernels-{crowd.active}")
    small = Crowd(1000, 16, crowd.active, 1.5)
    for _ in range(2):
        with HashTable.open(warm) as table:
            table.search(*small.queries(200), TOP, threads=THREADS)
            table.search(*small.queries(1), TOP)
    codes, vectors = crowd.queries(10_000)
    drop_pages(folder)
    began = time.perf_counter()
    table = HashTable.open(folder)
    opened = time.perf_counter()
    hits = table.search(codes, vectors, TOP, threads=THREADS)
    cold = time.perf_counter()
    table.search(codes, vectors, TOP, threads=THREADS)
    warm_end = time.perf_counter()
    peak = peak_memory()
    again = []
    for _ in range(9):
        began_again = time.perf_counter()
        with HashTable.open(folder):
            again.append(time.perf_counter() - began_again)
    return {
        "open_cold": opened - began, "open": median(again), "cold": cold - opened,
        "warm": warm_end - cold, "scanned": float(hits.scanned.mean()), "peak": peak,
        "queries": len(codes),
    }  # fmt: skip


def make_kernels_table(folder: Path, active: int) -> None:
    """A small table, in the same way as a large one: whoever has made it has all kernels loaded."""
    crowd = Crowd(1000, 16, active, 1.5)
    with HashTable.create(folder, buckets=16, dim=DIM, active=active, dtype="float16") as table:
        for start in (0, 500):
            table.add(*crowd.part(start, 500))
        table.compact()


def main() -> None:
    """Run one step."""
    step, folder = sys.argv[1], Path(sys.argv[2])
    crowd = Crowd(int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6]))
    found = {"build": build, "compact": compact, "search": search}[step](folder, crowd)
    found.setdefault("peak", peak_memory())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
