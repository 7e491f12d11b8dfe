"""Claim: for classes that training never saw, whitened groups keep up with k-means on the table.

    python -m benchmarks.buckets.unseen DATA --out RUN [--steps 2000] [--splits 5]

DATA is a folder that holds CIFAR-100's official archive, packed or not. For each split a trunk is
trained on 80 classes, which it shares with nothing; the other 20 are new. RUN keeps trunks and
features: the same command goes on where it was interrupted. Writes docs/results/unseen.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as students

from benchmarks.buckets.run import means_scores
from benchmarks.measurement import RESULTS, machine
from flowhash.data import Splits, cifar100, unseen_classes
from flowhash.encoder import Encoder
from flowhash.evaluate.reproduction.experiment_plan import make_plan
from flowhash.evaluate.reproduction.trained_networks import Trainings
from flowhash.learn import adapt_encoder, train, vector_settings
from flowhash.networks import EmbeddingNetwork, build_backbone
from flowhash.quality import LabelledTable, Queries, measure

TOPS = (1, 4, 16)
BUCKETS = 1_024
PROBES = {"new": (8, 16), "all": (4, 8)}  # buckets that queries of FlowHash open, by table
LISTS = {"new": (64, 128, 256, 512), "all": (128, 256, 512, 1_024)}  # of the rival
OPENED = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # of its lists
WIDTH = 16
PAGE = """\
# Classes that training never saw, measured

Written by the command below; do not edit by hand. Machine: {machine}.

<!-- not run: half an hour of training -->
```sh
python -m benchmarks.buckets.unseen DATA --out RUN --steps {steps} --splits {splits}
```

CIFAR-100, {splits} splits: 80 classes, drawn by chance, are learned from, the other 20 are new. A
trunk is trained for each split by cross-entropy on the 80 alone: the residual network of the
preset `cpu` with half its width and {steps:,} steps, so precision is far below that of the other
pages. Features are the mean over an image and its mirror image. On them a last layer learns codes
of {buckets:,} groups of the 80 classes (`groups="auto"`, the loss `codes`); this is not the
paper's method. Tables hold test images only. Each image is searched among the others of its table.

- *FlowHash, default*: ranks by the trunk's embedding, opens buckets by class first.
- *FlowHash, inductive*: `rank="whitened", class_order=0`. It has seen nothing of the new classes.
  Its last layer starts at Fisher's discriminant in the whitened vectors, that of the default at the
  means of the groups, so that a part of what is between these two rows is the start.
- *FlowHash, adapted*: the same, then `adapt`: its buckets are fitted to the items of the table,
  without labels. That is k-means from the trained buckets in the whitened metric, in which the
  probabilities of the 80 trained classes count too (`class_weight=0.6`), with four items a bucket
  at least, on average. Their likelihoods come from the trained buckets of the table's items. New
  classes are to be compared with IVF; old ones also with *FlowHash, default*, at about its scan.
- *FlowHash, adapted without classes*: the same with `class_weight=0`.
- *IVF*: k-means by FAISS on the table in the trunk's embedding, best of 5 starts; of {lists} lists
  the number that is most precise at FlowHash's scan, between the two probes on either side of it.
  That choice is made on the very queries it is shown with. Where one list is more than
  FlowHash scans, it is the scan of one list, as its SUF says. *IVF, whitened* is the same in
  FlowHash's whitened embedding, which a user of k-means does not have: what is left of the
  difference is the buckets' own.

Rows are means over the splits. Behind a row of IVF stand FlowHash's lead over it and its 95 %
interval, over the splits (Student's t of paired differences).

How many groups, the weight of the class in the order, the metric's shrinkage and the probes were
tried on a split that is none of these (seed 100, a trunk of whole width and 1,500 steps), the
weight of the classes in `adapt` and its items a bucket on the same split (a trunk as here); its 20
new classes are among the 100 all the same.

{tables}"""
TITLES = {
    ("new", "new"): "New classes among themselves: 2,000 images of 20 classes",
    ("all", "new"): "Queries of new classes, old and new ones in one table of 10,000 images",
    ("all", "old"): "Queries of old classes in the same table",
}


@dataclass(frozen=True, eq=False)
class Items:
    """Test images of one split: features, vectors to rank by, classes, which of them are new."""

    features: NDArray[np.float32]
    embeddings: NDArray[np.float32]
    labels: NDArray[np.int64]
    new: NDArray[np.bool_]

    def of(self, chosen: NDArray[np.bool_]) -> Items:
        """Some of them."""
        arrays = (self.features, self.embeddings, self.labels, self.new)
        return Items(*(array[chosen] for array in arrays))


class Search:
    """A table of items in one bucket each, and how well some of them are found in it."""

    def __init__(
        self,
        scores: NDArray[np.float32],
        embeddings: NDArray[np.float32],
        labels: NDArray[np.int64],
        asked: NDArray[np.bool_],
    ) -> None:
        codes = scores.argmax(axis=1)[:, None].astype(np.int32)
        self.index = LabelledTable(scores.shape[1], embeddings.shape[1], 1, int(labels.max()) + 1)
        self.index.add(codes, embeddings, labels)
        own = np.flatnonzero(asked)
        self.queries = Queries(scores[asked], embeddings[asked], labels[asked], own)
        self.found: dict[int, list[float]] = {}

    def figures(self, probe: int) -> list[float]:
        """SUF and precisions, in percent, where so many buckets are opened."""
        if probe not in self.found:
            found = measure(self.index, [self.queries], TOPS, probe=probe)
            precise = [100 * found.precision[top] for top in TOPS]
            self.found[probe] = [found.speed_up, *precise]
        return self.found[probe]


def rival(searches: list[Search], speed_up: float) -> list[float]:
    """The most precise of several IVF at that scan, between its probes."""
    best: list[float] = []
    for search in searches:
        before: list[float] = []
        for probe in OPENED:
            now = search.figures(probe)
            if now[0] <= speed_up:
                break
            before = now
        if not before:  # one list is more than that already
            continue
        share = np.log(before[0] / speed_up) / np.log(before[0] / now[0])
        between = [a + share * (b - a) for a, b in zip(before[1:], now[1:], strict=True)]
        if not best or between[0] > best[1]:
            best = [speed_up, *between]
    return best or searches[-1].figures(1)


def trained(
    splits: Splits, seed: int, folder: Path, steps: int
) -> tuple[Splits, EmbeddingNetwork, Items]:
    """Features to learn from, the last layer of the trunk, and all test images."""
    kept = unseen_classes(splits, 0.2, seed, progress=False)
    plan = make_plan("cifar100", "triplet", "cpu", seed, kept.train.classes, unseen=True)
    assert plan.trunk is not None
    assert plan.trunk.base is not None
    stage = replace(plan.trunk.base, steps=steps)
    narrow = {"name": "residual", "width": WIDTH}
    plan = replace(plan, trunk=replace(plan.trunk, base=stage, backbone=narrow))
    runs = Trainings(plan, kept, folder, "cpu")
    base, features, test = runs.base(), runs.features(), splits.test
    assert test is not None
    names = np.array(test.class_names)[test.labels]
    items = Items(
        runs.encodings.features(test, "all-test", base), runs.encoded(test, "every-test", base),
        test.labels, ~np.isin(names, kept.train.class_names),
    )  # fmt: skip
    plain = build_backbone({"name": "linear", "inputs": base.backbone.features})
    last = EmbeddingNetwork(plain, base.outputs, base.unit)
    last.head.load_state_dict(base.head.state_dict())
    return features, last, items


def compared(
    features: Splits, base: EmbeddingNetwork, test: Items, seed: int
) -> dict[tuple[str, str, int, str], list[float]]:
    """Figures by table, queries, probe and row."""
    settings = vector_settings(features.train.labels, BUCKETS, seed=seed)
    later = replace(settings, rank="whitened", class_order=0.0)
    encoders = {
        "FlowHash, default": train(features, settings, None, base=base, quiet=True),
        "FlowHash, inductive": train(features, later, None, base=base, quiet=True),
    }
    found = {}
    for table, items in (("new", test.of(test.new)), ("all", test)):
        made = encoders["FlowHash, inductive"].encode(items.features, 5_000, "cpu")
        start = encoders["FlowHash, inductive"], made.embeddings, made.codes
        here: dict[str, Encoder] = {
            **encoders,
            "FlowHash, adapted": adapt_encoder(*start, seed=seed),
            "FlowHash, adapted without classes": adapt_encoder(*start, class_weight=0, seed=seed),
        }
        spaces = {"IVF": items.embeddings, "IVF, whitened": made.embeddings}
        centres = {
            name: [means_scores(rows, rows, lists) for lists in LISTS[table]]
            for name, rows in spaces.items()
        }
        for who, asked in (("new", items.new), ("old", ~items.new)):
            if not asked.any():
                continue
            search: Callable[..., Search] = Search
            rivals = {
                name: [search(each, spaces[name], items.labels, asked) for each in scores]
                for name, scores in centres.items()
            }
            for name, rows in spaces.items():
                everything = np.zeros((len(rows), 1), np.float32)
                figures = search(everything, rows, items.labels, asked).figures(1)
                found[table, who, 0, name.replace("IVF", "exhaustive")] = figures
            for name, encoder in here.items():
                coded = encoder.encode(items.features, 5_000, "cpu")
                ours = search(coded.activations, coded.embeddings, items.labels, asked)
                for probe in (1, *PROBES[table]) if who == "old" else PROBES[table]:
                    found[table, who, probe, name] = ours.figures(probe)
                    for other, several in rivals.items():
                        row = f"{other}, as {name.split(', ')[1]}"
                        speed_up = found[table, who, probe, name][0]
                        found[table, who, probe, row] = rival(several, speed_up)
    return found


def tables_of(found: list[dict[tuple[str, str, int, str], list[float]]]) -> str:
    """The page's tables: means over the splits, and leads with their intervals."""
    parts = []
    for (table, who), title in TITLES.items():
        lines = [
            f"## {title}\n",
            "| opened | method | SUF | Pr@1 | Pr@4 | Pr@16 | lead in Pr@1 | lead in Pr@16 |",
            "|---:|---|---:|---:|---:|---:|---:|---:|",
        ]
        for key in found[0]:
            if key[:2] != (table, who):
                continue
            values = np.array([each[key] for each in found])
            leads = ["", ""]
            if ", as " in key[3]:
                ours = (*key[:3], "FlowHash, " + key[3].rsplit("as ", 1)[1])
                apart = np.array([each[ours] for each in found]) - values
                leads = [interval(apart[:, column]) for column in (1, 3)]
            name = key[3].split(", as ")[0] + (" at that scan" if ", as " in key[3] else "")
            name = f"**{name}**" if name.startswith("FlowHash") else name
            cells = [f"{value:.{digits}f}" for value, digits in zip(
                values.mean(axis=0), (1, 2, 2, 2), strict=True
            )]  # fmt: skip
            lines.append("| " + " | ".join([str(key[2] or ""), name, *cells, *leads]) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def interval(values: NDArray[np.float64]) -> str:
    """The mean, with its 95 % interval where there are several."""
    if len(values) < 2:
        return f"{values[0]:+.2f}"
    half = students.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.2f} ({values.mean() - half:+.2f} to {values.mean() + half:+.2f})"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--splits", type=int, default=5)
    given = parser.parse_args()
    splits = cifar100(given.data)
    found: list[Any] = []
    for seed in range(given.splits):
        folder = given.out / f"split-{seed}"
        found.append(compared(*trained(splits, seed, folder, given.steps), seed))
        for key, values in found[-1].items():
            print(seed, *key, *(f"{value:.2f}" for value in values), flush=True)
    page = PAGE.format(
        machine=machine(), steps=given.steps, splits=given.splits, buckets=BUCKETS,
        lists=", ".join(map(str, sorted({*LISTS["new"], *LISTS["all"]}))),
        tables=tables_of(found),
    )  # fmt: skip
    (RESULTS / "unseen.md").write_text(page)


if __name__ == "__main__":
    faiss.omp_set_num_threads(2)
    main()
