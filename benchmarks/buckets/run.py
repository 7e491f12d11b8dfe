"""Claim: with more buckets than classes, each is used, and finds more than k-means' at that number.

    python -m benchmarks.buckets.run DATA --out RUN [--steps 5000] [--seeds 3]

DATA is a folder that holds CIFAR-100's official archive, packed or not. The trunk is stage 1 of
`flowhash reproduce cifar100 --preset cpu`, trained once and held still; heads learn from its
features. RUN keeps the trunk and its features: the same command goes on where it was interrupted.
Writes docs/results/buckets.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measurement import RESULTS, machine
from flowhash.codes import ordered_buckets
from flowhash.data import Splits, cifar100
from flowhash.evaluate.reproduction.experiment_plan import make_plan
from flowhash.evaluate.reproduction.trained_networks import Trainings
from flowhash.learn import hash_start, train, vector_settings
from flowhash.networks import EmbeddingNetwork, build_backbone, run_networks
from flowhash.quality import search_quality

TOPS = (1, 4, 16)
SIZES = ((256, 1), (512, 1), (512, 2))  # d and k
CLASS_WEIGHTS = {256: 4.0, 512: 8.0}  # of the loss, chosen on the validation split
STARTS = 5  # of k-means, of which the best counts
PAGE = """\
# More buckets than classes, measured

Written by the command below; do not edit by hand. Machine: {machine}.

<!-- not run: half an hour of training -->
```sh
python -m benchmarks.buckets.run DATA --out RUN --steps {steps} --seeds {seeds}
```

CIFAR-100. The trunk is the residual network of `flowhash reproduce --preset cpu`, trained by
cross-entropy on 45,000 images in {steps:,} steps (the published tables: 10,000), one seed, and held
still; features are the mean over an image and its mirror image. This is not the paper's method, but
a last layer that learns codes of groups finer than classes (`groups="auto"`, the loss `codes` with
a weight of the class of {weights}, chosen on the validation split),
from the features of the training images and an augmented copy. It starts at the trunk's own
classifier, each class's groups turned towards their means. {seeds} seeds of that layer: means,
and the standard deviation behind ±. Everything ranks by the trunk's embedding at length one. Each
item is searched among the others of its table: the 10,000 test images, or the 45,000 that were
trained on, which are easier for all methods.

*Start, zero steps*: that start alone, before anything is learned, and without the order of buckets
by class. *Classifier*: the trunk's own, whose classes are the buckets. *VQ*: k-means of FAISS on
the items of the table, or on the training images, the best of {starts} starts. An item is in k
buckets, and a query opens k. *Used* are
buckets that hold an item of the table, *variation* is the standard deviation of what they hold over
its mean. *Second bucket*: bits that an item's second bucket adds to what its first one says; a copy
of the first grouping would add none. All classes were learned; new ones: [unseen](unseen.md).

{tables}
"""
TABLE = """\
## {name}

| d | k | method | SUF | Pr@1 | Pr@4 | Pr@16 | used | variation | second bucket |
|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|
{rows}

"""


@dataclass(frozen=True, eq=False)
class Side:
    """Items that are searched among each other.

    Attributes:
        features: of the trunk [n, f].
        embeddings: to rank by [n, m].
        classes: scores of the trunk's own classifier [n, classes].
        labels: [n].
    """

    features: NDArray[np.float32]
    embeddings: NDArray[np.float32]
    classes: NDArray[np.float32]
    labels: NDArray[np.int64]

    def measured(self, scores: NDArray[np.float32], active: int) -> list[float]:
        """SUF, Pr@K, buckets used, variation and the bits of the second bucket."""
        found = search_quality(scores, self.embeddings, self.labels, active, TOPS)
        loads = found.loads
        bits = float("nan")
        if active == 2:
            first, second = ordered_buckets(scores, 2).T.astype(np.int64)
            bits = entropy(first * scores.shape[1] + second) - entropy(first)
        return [
            found.speed_up, *(100 * found.precision[top] for top in TOPS),
            100 * float((loads > 0).mean()), float(loads.std() / loads.mean()), bits,
        ]  # fmt: skip


def entropy(labels: NDArray[np.int64]) -> float:
    """Of a label drawn among these, in bits."""
    share = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(-(share * np.log2(share)).sum())


def means_scores(
    fitted: NDArray[np.float32], asked: NDArray[np.float32], count: int
) -> NDArray[np.float32]:
    """Of the nearest of so many means, for each asked row."""
    means = faiss.Kmeans(
        fitted.shape[1], count, niter=25, nredo=STARTS, seed=0, max_points_per_centroid=1_000,
        min_points_per_centroid=1,
    )  # fmt: skip
    means.train(fitted)
    centres = means.centroids
    return np.asarray(asked @ centres.T - np.square(centres).sum(axis=1) / 2)


def flow_scores(
    features: Splits,
    base: EmbeddingNetwork,
    directions: NDArray[np.float32],
    sides: dict[str, Side],
    sizes: tuple[int, int, int],
    trained: bool = True,
) -> dict[str, NDArray[np.float32]]:
    """What a head of d buckets, k and a seed makes of each side, or its start; see `sizes`."""
    buckets, active, seed = sizes
    settings = vector_settings(features.train.labels, buckets, active=active, seed=seed)
    weight = {"class_weight": CLASS_WEIGHTS[buckets]}
    settings = replace(settings, hash=replace(settings.hash, loss_options=weight))
    plain = build_backbone({"name": "linear", "inputs": base.backbone.features})
    last = EmbeddingNetwork(plain, base.outputs, base.unit)
    last.head.load_state_dict(base.head.state_dict())
    if trained:
        network = train(features, settings, None, base=last, directions=directions, quiet=True).hash
    else:
        network = hash_start(features, settings, last, directions, "cpu")
    blocks = [side.features for side in sides.values()]
    found = run_networks([network], blocks, torch.device("cpu"))
    return {name: made for name, [made] in zip(sides, found, strict=True)}


def rows_of(
    sides: dict[str, Side],
    features: Splits,
    base: EmbeddingNetwork,
    directions: NDArray[np.float32],
    seeds: int,
) -> Iterator[Any]:
    """Name of the side, d, k, method and figures [seeds, 7], for each row of the tables."""
    for name, side in sides.items():
        everything = np.zeros((len(side.labels), 1), np.float32)
        yield name, "", "", "exhaustive", [side.measured(everything, 1)]
        yield name, side.classes.shape[1], 1, "classifier", [side.measured(side.classes, 1)]
    for buckets, active in SIZES:
        for name, side in sides.items():
            fits = {"on the table": side.embeddings, "on train": sides["train"].embeddings}
            for where, fitted in fits.items():
                if where == "on train" and name == "train":
                    continue
                scores = means_scores(fitted, side.embeddings, buckets)
                row = f"VQ, fitted {where}"
                yield name, buckets, active, row, [side.measured(scores, active)]
        for row, trained in (("start, zero steps", False), ("**FlowHash**", True)):
            made = [
                flow_scores(features, base, directions, sides, (buckets, active, seed), trained)
                for seed in range(seeds)
            ]
            for name, side in sides.items():
                figures = [side.measured(each[name], active) for each in made]
                yield name, buckets, active, row, figures


def cells(figures: Any) -> list[str]:
    """Means, with the deviation where there are several seeds."""
    values = np.array(figures)
    made = []
    for column, digits in zip(values.T, (1, 2, 2, 2, 1, 2, 2), strict=True):
        text = "" if np.isnan(column).any() else f"{column.mean():.{digits}f}"
        if text and len(column) > 1:
            text += f" ± {column.std(ddof=1):.{digits}f}"
        made.append(text)
    return made


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    splits = cifar100(given.data)
    plan = make_plan("cifar100", "triplet", "cpu")
    assert plan.trunk is not None
    assert plan.trunk.base is not None
    stage = replace(plan.trunk.base, steps=given.steps)
    plan = replace(plan, trunk=replace(plan.trunk, base=stage))
    runs = Trainings(plan, splits, given.out / "seed-0", "cpu")
    base, features = runs.base(), runs.features()
    sides = {}
    assert splits.test is not None
    classifier = runs.classifier()
    for name, items in (("test", splits.test), ("train", splits.train)):
        made = runs.encodings.features(items, name, base)
        with torch.inference_mode():
            embeddings = base.finish(torch.from_numpy(np.array(made))).numpy()
        sides[name] = Side(made, embeddings, classifier.scores(embeddings), items.labels)
    tables: dict[str, list[str]] = {name: [] for name in sides}
    rows = rows_of(sides, features, base, classifier.weights, given.seeds)
    for name, buckets, active, method, figures in rows:
        line = " | ".join([str(buckets), str(active), method, *cells(figures)])
        print(name, line, flush=True)
        tables[name].append(f"| {line} |")
    titles = {"test": "10,000 test images", "train": "The 45,000 images that were trained on"}
    parts = [TABLE.format(name=titles[name], rows="\n".join(rows)) for name, rows in tables.items()]
    page = PAGE.format(
        machine=machine(), steps=given.steps, seeds=given.seeds, starts=STARTS,
        weights=", ".join(f"{weight:g} at d = {d}" for d, weight in CLASS_WEIGHTS.items()),
        tables="".join(parts).strip(),
    )  # fmt: skip
    (RESULTS / "buckets.md").write_text(page)


if __name__ == "__main__":
    main()
