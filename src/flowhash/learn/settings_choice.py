"""Settings for vectors that nobody gave: a few are tried, and a validation part chooses.

First the layers: none, or one hidden layer. Then the buckets: one a class, or more of them, down to
some 32 items each. Of the numbers of buckets whose precision cannot be told from the best one, the
largest is taken, because it scans least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data import LabelledItems, Splits, shuffled_ranks
from flowhash.learn.presets import HIDDEN, bucket_counts
from flowhash.learn.settings import Settings
from flowhash.learn.train_encoder import train
from flowhash.quality import LabelledTable, Queries, measure

TRIED = 20_000  # items to learn from in a trial, at most
ASKED = 5_000  # queries of a trial, at most
FEWEST = 40  # queries; with fewer nothing is tried
TOP = 16  # precision among as many, and of the nearest one

Make = Callable[[int, tuple[int, ...]], Settings]


@dataclass(frozen=True, eq=False)
class Trial:
    """Settings, and what searches came to that they made.

    Attributes:
        buckets: d.
        hidden: sizes of layers before the last one.
        precision: Pr@1 and Pr@16 of validation items among those that were learned from.
        speed_up: SUF.
        right: the mean of both precisions, of each query [q].
    """

    buckets: int
    hidden: tuple[int, ...]
    precision: dict[int, float]
    speed_up: float
    right: NDArray[np.float64]

    def __str__(self) -> str:
        layers = f"hidden layer of {self.hidden[0]}" if self.hidden else "no hidden layer"
        precise = ", ".join(f"Pr@{top} {100 * value:.1f}" for top, value in self.precision.items())
        return f"{self.buckets} buckets, {layers}: {precise}, SUF {self.speed_up:.1f}"

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        precise = {f"pr{top}": value for top, value in self.precision.items()}
        return {
            "buckets": self.buckets, "hidden": list(self.hidden), **precise, "suf": self.speed_up,
        }  # fmt: skip


def choose_settings(
    splits: Splits,
    make: Make,
    buckets: int | None = None,
    hidden: tuple[int, ...] | None = None,
    *,
    items: int | None = None,
    device: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Settings, list[Trial]]:
    """The settings that do best on ``splits.validation``, and all trials, the chosen one last.

    Args:
        splits: of vectors.
        make: settings from a number of buckets and sizes of hidden layers.
        buckets: d, where it is given.
        hidden: sizes of layers before the last one, where they are given.
        items: that the final training will have, if more than ``splits.train`` has.
        device: "auto", "cpu" or "cuda".
        say: hears a line a trial.
    """
    train_on, asked = _some(splits.train, TRIED), _some(splits.validation, ASKED)
    classes = len(np.unique(splits.train.labels))
    counts = bucket_counts(items or len(splits.train), classes) if buckets is None else [buckets]
    layers = [(), HIDDEN] if hidden is None else [hidden]
    if len(counts) == len(layers) == 1 or len(asked) < FEWEST or len(train_on) <= TOP:
        return make(counts[0], layers[0]), []
    some = replace(splits, train=train_on, validation=asked)

    def tried(count: int, sizes: tuple[int, ...]) -> Trial:
        trial = _try(some, make(count, sizes), count, sizes, device)
        say(str(trial))
        return trial

    trials = [tried(counts[0], sizes) for sizes in layers]
    best = max(trials, key=lambda trial: float(trial.right.mean()))
    finer = [best, *(tried(count, best.hidden) for count in counts[1:])]
    chosen = largest_speed_up(finer)
    trials = [trial for trial in [*trials, *finer[1:]] if trial is not chosen]
    return make(chosen.buckets, chosen.hidden), [*trials, chosen]


def largest_speed_up(trials: list[Trial]) -> Trial:
    """Of trials whose precision is within one standard error of the best one's, the quickest.

    The error is that of the difference over the same queries, one more of which counts as
    different: a single query decides nothing.
    """
    best = max(trials, key=lambda trial: float(trial.right.mean()))
    behind = [best.right - trial.right for trial in trials]
    errors = [np.sqrt(len(each) * each.var() + 1) / len(each) for each in behind]
    near = [
        trial
        for trial, each, error in zip(trials, behind, errors, strict=True)
        if each.mean() <= error
    ]
    return max(near, key=lambda trial: trial.speed_up)


def _some(data: LabelledItems, most: int) -> LabelledItems:
    """At most so many items, of each class its share and one at least."""
    if len(data) <= most:
        return data
    _, classes, sizes = np.unique(data.labels, return_inverse=True, return_counts=True)
    places = shuffled_ranks(classes, np.random.default_rng(0)) / sizes[classes]
    return data.subset(np.sort(np.argsort(places, kind="stable")[:most]))


def _try(
    splits: Splits, settings: Settings, buckets: int, hidden: tuple[int, ...], device: str
) -> Trial:
    """Learn from the training split, and put the validation split to a table of it."""
    alone = replace(splits, validation=splits.validation.subset(np.zeros(0, np.int64)))
    encoder = train(alone, settings, None, device=device, quiet=True)
    stored = encoder.encode(splits.train, device=device)
    asked = encoder.encode(splits.validation, device=device)
    index = LabelledTable(encoder.buckets, encoder.dim, encoder.active, splits.train.classes)
    index.add(stored.codes, stored.embeddings, splits.train.labels)
    queries = Queries(asked.activations, asked.embeddings, splits.validation.labels)
    found = measure(index, [queries], (1, TOP))
    right = sum(found.right[top] / top for top in (1, TOP)) / 2
    return Trial(
        buckets, hidden, dict(found.precision), found.speed_up, np.asarray(right, np.float64)
    )
