"""Claims: it fits in minutes and 3 GB, calibrates a million in 30 s; second homes take a tenth.

    python -m benchmarks.vectors.fit [glove] [million] [calibrate] [memory] [--items N]

``glove``: 390,000 × 50 in 2,048 buckets. ``million``: 1M × 128 in 2,048, Gaussian clusters.
``calibrate``: a table of 1M × 128 in 1,024 and in 2,048 buckets, by 1,000 queries. ``memory``: a
table of 1M × 64 with second homes for 40 % of the items, and without. All by default; ``--items``
takes fewer of them, to try it out. Each is a process of its own that does nothing else; compiling
comes before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.balanced.run import clusters
from benchmarks.vectors.data import CALIBRATED, glove
from benchmarks.vectors.page import keep

HEAD = """
import json, resource, sys, time
import numpy as np
path, metric, buckets = sys.argv[1], sys.argv[2], int(sys.argv[3])
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
"""
FIT = (
    HEAD
    + """
from flowhash import FlowHasher
little = np.random.default_rng(0).standard_normal((3_000, 16), np.float32)
FlowHasher(buckets=64, metric=metric, random_state=0).fit(little)
before, X = peak(), np.load(path)
wall, cpu = time.perf_counter(), time.process_time()
made = FlowHasher(buckets=buckets, metric=metric, random_state=0).fit(X)
print(json.dumps({"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu,
                  "before": before, "peak": peak(), "data": X.nbytes,
                  "copies": made.trials_[-1]["copies"]}))
"""
)
TABLE = (
    HEAD
    + """
from flowhash import HashTable
def distances(some, centres):
    lengths = np.square(some).sum(axis=1)[:, None]
    return lengths - 2 * some @ centres.T + np.square(centres).sum(axis=1)
def filled(items, buckets, homes, active=1):
    table = HashTable.create(buckets=buckets, dim=items.shape[1], active=active)
    table.add(homes, items)
    table.compact()
    return table
def homes_of(items, centres):
    parts = (items[start : start + 8_192] for start in range(0, len(items), 8_192))
    # Copies: a part of an array would keep all of it in memory.
    orders = (np.argpartition(distances(part, centres), 1) for part in parts)
    return np.concatenate([order[:, :2].astype(np.int32) for order in orders])
def sample(items, buckets):
    return items[np.random.default_rng(1).choice(len(items), buckets, replace=False)]
"""
)
CALIBRATE = (
    TABLE
    + """
for size in (200, 0):  # a small one compiles
    X, queries = np.split(np.load(path), (-int(sys.argv[4]),))
    X = X[: 10_000 if size else None]
    centres = sample(X, size or buckets)
    table = filled(X, len(centres), homes_of(X, centres)[:, :1])
    activations = -distances(queries, centres)
    start = time.perf_counter()
    table.calibrate(activations, queries)
    taken = time.perf_counter() - start
print(json.dumps({"seconds": taken, "peak": peak(), "rows": len(table)}))
"""
)
MEMORY = (
    TABLE
    + """
X = np.load(path)
homes = homes_of(X, sample(X, buckets))
single = np.random.default_rng(2).permutation(len(X))[int(0.4 * len(X)):]
without = filled(X, buckets, homes[:, :1]).stats().bytes
homes[single, 1] = -1
table = filled(X, buckets, homes, 2)
print(json.dumps({"ratio": table.stats().bytes / without, "bytes": without,
                  "second": table.bucket_loads().sum() / len(X) - 1}))
"""
)


def alone(
    code: str, data: NDArray[np.float32], buckets: int, *more: int, metric: str = "euclidean"
) -> dict[str, Any]:
    """What a process of its own prints of this data."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npy"
        np.save(path, data)
        words = [sys.executable, "-c", code, str(path), metric, str(buckets), *map(str, more)]
        found: dict[str, Any] = json.loads(subprocess.check_output(words, text=True))
    shape = {"rows": len(data), "dim": data.shape[1], "buckets": buckets}
    print(found := shape | found, flush=True)
    return found


def fit_glove(items: int | None) -> list[dict[str, Any]]:
    """The bar of 6 minutes and 3 GB."""
    return [
        alone(FIT, data.items, _buckets(len(data.items)), metric="cosine")
        for data in glove((), items)
    ]


def fit_million(items: int | None) -> list[dict[str, Any]]:
    """The bar of 20 minutes."""
    data = clusters(items or 1_000_000, 128, 2_000)
    return [alone(FIT, data, _buckets(len(data)))]


def calibrate(items: int | None) -> list[dict[str, Any]]:
    """The bar of 30 seconds."""
    data = clusters((items or 1_000_000) + CALIBRATED, 128, 2_000)
    sizes = (1_024, 2_048) if items is None else (_buckets(items),)
    return [alone(CALIBRATE, data, buckets, CALIBRATED) for buckets in sizes]


def memory(items: int | None) -> list[dict[str, Any]]:
    """The bar of a tenth more."""
    data = clusters(items or 1_000_000, 64, 2_000)
    return [alone(MEMORY, data, _buckets(len(data)))]


def _buckets(items: int) -> int:
    """2,048, or what suits fewer items."""
    return min(2_048, max(16, items // 128))


PARTS = {"glove": fit_glove, "million": fit_million, "calibrate": calibrate, "memory": memory}


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar=" | ".join(PARTS))
    parser.add_argument("--items", type=int, help="so many at the most, to try it out")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"{', '.join(unknown)}: expected {', '.join(PARTS)}")
    for part in given.parts or PARTS:
        keep(f"fit/{part}", {"runs": PARTS[part](given.items)})


if __name__ == "__main__":
    main()
