"""Bulk search on Ray against the table in one process, in the same run.

    python -m benchmarks.engines.bulk_search [--rows 200000] [--queries 200000] [--repeats 5]

Both answer the same queries, k = 1, on the same stored table: the table with two threads, Ray with
two workers of one thread each. Ray writes its answers to parquet files, which counts; the start of
Ray and of its workers does not. Every answer is compared.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measurement import seconds
from flowhash.bulk import RayRunner, read_answers, search
from flowhash.table import HashTable, Hits

DIM, BUCKETS, TOP, WORKERS = 64, 256, 10, 2


@dataclass(frozen=True)
class Measured:
    """What was measured; rates are queries a second, of the median repeat.

    Attributes:
        rows: items of the table.
        queries: how many were asked.
        alone: the rate of the table in one process.
        bulk: the rate of Ray, files written.
        ratio: the median of bulk / alone, repeat by repeat.
        exact: whether every answer was the same.
    """

    rows: int
    queries: int
    alone: float
    bulk: float
    ratio: float
    exact: bool


def build(folder: Path, rows: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """A table of clustered vectors, and queries like them in a file."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((BUCKETS, DIM), dtype=np.float32) * 2
    codes = random.integers(BUCKETS, size=rows + queries).astype(np.int32)
    points = random.standard_normal((rows + queries, DIM), dtype=np.float32) + centres[codes]
    with HashTable.create(folder / "table", buckets=BUCKETS, dim=DIM) as table:
        table.add(codes[:rows, None], points[:rows])
    order, asked = codes[rows:, None], points[rows:]
    np.savez(folder / "queries.npz", buckets=order, embeddings=asked)
    return order, asked


def same(one: Hits, other: Hits) -> bool:
    """Whether two answers are equal, number by number."""
    names = ("ids", "distances", "counts", "scanned")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def measure(rows: int = 200_000, queries: int = 200_000, repeats: int = 5) -> Measured:
    """Search in turns, in one process and on Ray, and print the ratio."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        order, asked = build(folder, rows, queries)
        out = folder / "answers"
        alone, bulk = [], []
        with (
            HashTable.open(folder / "table") as table,
            RayRunner("local", WORKERS) as runner,
        ):

            def in_one_process() -> Hits:
                return table.search(order, asked, TOP, threads=WORKERS)

            def on_ray() -> None:
                search(folder / "table", folder / "queries.npz", out, runner, top=TOP)

            expected = in_one_process()  # both once before they are timed: kernels are loaded
            on_ray()
            exact = same(read_answers(out).hits, expected)
            for _ in range(repeats):
                shutil.rmtree(out)
                alone.append(queries / seconds(in_one_process))
                bulk.append(queries / seconds(on_ray))
            exact = exact and same(read_answers(out).hits, expected)
    ratio = median([two / one for one, two in zip(alone, bulk, strict=True)])
    found = Measured(rows, queries, median(alone), median(bulk), ratio, exact)
    print(
        f"bulk search, {queries:,} queries on {rows:,} items, k = 1: {found.bulk:,.0f}/s with "
        f"{WORKERS} Ray workers, {found.alone:,.0f}/s in one process with {WORKERS} threads: "
        f"{ratio:.2f}×, {'every answer the same' if exact else 'WRONG ANSWERS'} "
        f"(load average {os.getloadavg()[0]:.1f})",
        flush=True,
    )
    return found


def main() -> None:
    """Measure, and fail if an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if not measure(options.rows, options.queries, options.repeats).exact:
        raise SystemExit("an answer is not that of the table")


if __name__ == "__main__":
    main()
