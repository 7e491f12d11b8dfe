"""Claim: evaluating 50,000 queries against 1.2 million items takes under a minute and 4 GB.

    python -m benchmarks.evaluation.run [--items 1200000] [--queries 50000]

Synthetic clusters, dim 64, d = 512, k = 1, 1,000 classes; items arrive in blocks and are let go.
All metrics are measured: Pr@1/4/16, SUF, NMI, AMI, purity, mAP@R, and recall@K against exhaustive
search for a sample of the queries. Writes docs/results/evaluation.md.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.measurement import RESULTS, machine
from flowhash.codes import topk_codes
from flowhash.quality import (
    LabelledTable,
    Queries,
    adjusted_information,
    exact_answers,
    measure,
    normalised_information,
    purity,
)

DIM, BUCKETS, CLASSES = 64, 512, 1000
BLOCK = 50_000
PAGE = """\
# Evaluation, measured

Written by `python -m benchmarks.evaluation.run`; do not edit by hand. Machine: {machine}.

{queries:,} queries against {items:,} synthetic items, dim {dim}, d = {buckets}, k = 1,
{classes:,} classes; two threads. Items and queries are made block by block; making them is not
counted. Recall is against exhaustive search for {sample:,} of the queries, evenly spaced.

| part | seconds |
|---|---:|
| fill the table | {fill:.1f} |
| Pr@1/4/16, SUF, mAP@R, recall@K of all queries | {search:.1f} |
| exhaustive search of the sample | {exact:.1f} |
| NMI, AMI, purity | {groups:.1f} |
| **together** (bar: 60) | **{total:.1f}** |

Peak memory of the process: **{memory:.2f} GB** (bar: 4).

Pr@1 {pr1:.4f}, Pr@4 {pr4:.4f}, Pr@16 {pr16:.4f}, SUF {suf:.1f}, NMI {nmi:.4f}, AMI {ami:.4f},
purity {purity:.4f}, mAP@R {map:.4f}, recall@16 {recall:.4f}.
"""


class Clusters:
    """Items of classes: a middle each, noise around it, and buckets that follow it mostly."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.middles = rng.normal(size=(CLASSES, DIM)).astype(np.float32)
        self.directions = rng.normal(size=(DIM, BUCKETS)).astype(np.float32)

    def block(self, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Activations, embeddings and labels of ``count`` items."""
        rng = np.random.default_rng([1, seed])
        labels = rng.integers(0, CLASSES, count)
        noise = 0.7 * rng.standard_normal((count, DIM), np.float32)
        embeddings = self.middles[labels] + noise
        return embeddings @ self.directions, embeddings, labels


def main() -> None:
    """Measure, print, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_200_000)
    parser.add_argument("--queries", type=int, default=50_000)
    parser.add_argument("--sample", type=int, default=2_000)
    options = parser.parse_args()
    clusters, spent = Clusters(), {"fill": 0.0, "search": 0.0}
    warm_up(clusters)
    index = LabelledTable(BUCKETS, DIM, 1, CLASSES)
    for number, start in enumerate(range(0, options.items, BLOCK)):
        activations, embeddings, labels = clusters.block(min(BLOCK, options.items - start), number)
        began = time.perf_counter()
        index.add(topk_codes(activations, 1), embeddings, labels)
        spent["fill"] += time.perf_counter() - began
    began = time.perf_counter()
    index.compact()
    spent["fill"] += time.perf_counter() - began

    making = 0.0

    def queries() -> Iterator[Queries]:
        nonlocal making
        for number, start in enumerate(range(0, options.queries, BLOCK)):
            began = time.perf_counter()
            count = min(BLOCK, options.queries - start)
            made = clusters.block(count, 10_000 + number)
            making += time.perf_counter() - began
            yield Queries(*made)

    began = time.perf_counter()
    exact = exact_answers(index, queries(), 16, -(-options.queries // options.sample))
    spent["exact"] = time.perf_counter() - began - making
    making, began = 0.0, time.perf_counter()
    found = measure(index, queries(), exact=exact, average=True)
    spent["search"] = time.perf_counter() - began - making
    began = time.perf_counter()
    nmi, ami, pure = (
        normalised_information(index.counts), adjusted_information(index.counts),
        purity(index.counts),
    )  # fmt: skip
    spent["groups"] = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    assert found.recall is not None
    assert found.average_precision is not None
    page = PAGE.format(
        machine=machine(), queries=options.queries, items=options.items, dim=DIM, buckets=BUCKETS,
        classes=CLASSES, sample=len(exact.ids), total=sum(spent.values()), memory=peak,
        pr1=found.precision[1], pr4=found.precision[4], pr16=found.precision[16],
        suf=found.speed_up, nmi=nmi, ami=ami, purity=pure, map=found.average_precision,
        recall=found.recall[16], **spent,
    )  # fmt: skip
    print(page)
    (RESULTS / "evaluation.md").write_text(page)


def warm_up(clusters: Clusters) -> None:
    """Compile all kernels."""
    activations, embeddings, labels = clusters.block(5000, 99)
    index = LabelledTable(BUCKETS, DIM, 1, CLASSES)
    index.add(topk_codes(activations, 1), embeddings, labels)
    index.compact()
    queries = [Queries(activations, embeddings, labels)]
    measure(index, queries, exact=exact_answers(index, queries, 16, 10), average=True)


if __name__ == "__main__":
    main()
