"""The paper's experiments, from nothing to tables: train what is missing, search, write."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flowhash.data import LabelledItems, Splits, unseen_classes
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.evaluate.comparison.comparison import (
    EncodedSource,
    Say,
    run_all,
    some_buckets,
    some_examples,
)
from flowhash.evaluate.comparison.intervals import over_seeds
from flowhash.evaluate.comparison.methods import Side
from flowhash.evaluate.reproduction.experiment_plan import make_plan
from flowhash.evaluate.reproduction.trained_networks import Trainings
from flowhash.evaluate.results import Outcome
from flowhash.networks import EmbeddingNetwork

UNSEEN_SHARE = 0.2
ONE_BASE_WORDS = (
    "All seeds share the base of seed 0: they differ in the last layer's start and the batches of "
    "stage 2 (and in where k-means starts), not in stage 1, and what depends on the base alone has "
    "no deviation. Where unseen classes are searched, each seed has other ones, and a base of its "
    "own."
)
ONE_RIVAL_WORDS = (
    "The classifier and λ = 0 are trained with seed 0 only. Their rows have no deviation and "
    "intervals over the queries alone; a difference of FlowHash to them has the variance of "
    "FlowHash's seeds in it twice, once for their training, which is taken to vary as much."
)


def reproduce(
    splits: Splits,
    data: str,
    loss: str,
    folder: str | Path,
    *,
    preset: str = "cpu",
    seeds: int = 1,
    one_base: bool = False,
    unseen: bool | None = None,
    device: str = "auto",
    quiet: bool = False,
    say: Say = lambda words: None,
) -> Outcome:
    """Train and evaluate an experiment of the paper, for every k and table it has.

    Called again with the same folder it goes on where it was interrupted: networks are trained
    once, and what they make of the data is kept.

    Args:
        splits: the data set that ``data`` names.
        data: "cifar100" or "imagenet32".
        loss: "triplet" or "npairs".
        folder: for networks and their outputs.
        preset: "paper", "method" or "cpu".
        seeds: how many trainings, with seeds 0, 1, …
        one_base: train stage 1, the classifier and λ = 0 with seed 0 only; the other seeds are of
            FlowHash's stage 2.
        unseen: whether to train on four fifths of the classes too and search the others; by
            default with the preset cpu only, where that is short.
        device: "auto", "cpu" or "cuda".
        quiet: no progress on the terminal.
        say: is told what happens, line by line.
    """
    if splits.test is None:
        raise InputError(f"{splits.train.source} has no test split; expected one to search")
    if seeds < 1:
        raise InputError(f"seeds is {seeds}; expected one or more")
    if one_base and preset == "cpu":
        raise InputError(
            "one_base is for the presets paper and method; cpu has one trunk for every loss and "
            "trains last layers on it in seconds: leave one_base out"
        )
    outcome = Outcome(class_names=splits.train.class_names)
    first: Trainings | None = None
    searches_unseen = preset == "cpu" if unseen is None else unseen
    for seed in range(seeds):
        plan = make_plan(data, loss, preset, seed, splits.train.classes)
        outcome.kind, outcome.words = plan.kind, plan.words
        place = Path(folder) / (f"seed-{seed}-on-0" if first else f"seed-{seed}")
        trainings = Trainings(plan, splits, place, device, quiet, first)
        if one_base:
            first = first or trainings
        _Run(trainings, seed, outcome, say).seen()
        if searches_unseen:
            kept = unseen_classes(splits, UNSEEN_SHARE, seed, not quiet)
            plan = make_plan(data, loss, preset, seed, kept.train.classes, unseen=True)
            outcome.words = plan.words
            trainings = Trainings(plan, kept, place / "unseen", device, quiet)
            _Run(trainings, seed, outcome, say).unseen()
    if one_base and seeds > 1:
        outcome.words += (ONE_BASE_WORDS, *[ONE_RIVAL_WORDS] * (plan.classifier is not None))
    outcome.rows = over_seeds(outcome.rows, outcome.draws)
    return outcome


class _Run:
    """One seed of one loss."""

    def __init__(self, trainings: Trainings, seed: int, outcome: Outcome, say: Say) -> None:
        self.trainings, self.seed, self.outcome, self.say = trainings, seed, outcome, say
        self.experiment = trainings.plan.experiment
        assert trainings.splits.test is not None
        self.test = trainings.splits.test

    def seen(self) -> None:
        """The tables of the paper: classes that training knows."""
        every = {"train": (self.trainings.splits.train, self.test), "test": (self.test, None)}
        tables = {table: every[table] for table in self.experiment.items}
        self._search(tables, f"seed {self.seed}")
        if self.seed == 0:
            self.outcome.curves = dict(self.trainings.curves())

    def unseen(self) -> None:
        """Classes that training has not seen, searched among themselves."""
        self._search({"unseen": (self.test, None)}, f"seed {self.seed}, unseen classes")

    def _search(
        self, tables: Mapping[str, tuple[LabelledItems, LabelledItems | None]], name: str
    ) -> None:
        """Train what is missing, then search each table: its items, and what is asked or None."""
        for k in self.experiment.active:
            self.trainings.encoder(k)
        self.trainings.tuned_classifier()
        for k in self.experiment.active:
            self.trainings.free(k)
        for table, (items, queries) in tables.items():
            self._compare(table, items, queries)
        for training, value in self.trainings.seconds().items():
            self.outcome.seconds[f"{name}: {training}"] = value

    def _compare(self, table: str, items: LabelledItems, queries: LabelledItems | None) -> None:
        began = time.perf_counter()
        self.say(f"search the {table} table, seed {self.seed}")
        sides = _TrainedSource(self.trainings, items, table, queries)
        comparison, trials = run_all(
            table, sides, self.experiment.active, self.experiment.buckets, items.classes,
            self.seed, self.say,
        )  # fmt: skip
        self.outcome.rows += [trial.row for trial in trials]
        self.outcome.draws |= {trial.row.place: trial.draws for trial in trials}
        if table == "test" and self.seed == 0:
            self.outcome.buckets = some_buckets(trials)
            self.outcome.examples = some_examples(comparison, trials, items)
        self.outcome.evaluation += time.perf_counter() - began


class _TrainedSource(EncodedSource):
    """Encoded items and queries, with the activations of one hash network at a time."""

    def __init__(
        self, trainings: Trainings, items: LabelledItems, name: str, queries: LabelledItems | None
    ) -> None:
        self.trainings, self.items, self.name, self.asked = trainings, items, name, queries
        self.other_length = "raw" if trainings.base().unit else "unit"
        self.scored_apart = trainings.tuned_classifier() is not None

    def sides(self, active: int | None) -> tuple[Side, Side | None]:
        asked = None if self.asked is None else self._side(self.asked, "test", active)
        return self._side(self.items, self.name, active), asked

    def train(self) -> Side | None:
        if self.items is self.trainings.splits.train:
            return None
        items = self.trainings.splits.train
        return Side(self.trainings.encoded(items, "train", self.trainings.base()), items.labels)

    def encoder(self, active: int | None) -> Encoder:
        return self.trainings.encoder(active or self.trainings.plan.experiment.active[0])

    def _side(self, items: LabelledItems, name: str, active: int | None) -> Side:
        def made(network: EmbeddingNetwork | None) -> NDArray[np.float32] | None:
            return None if network is None else self.trainings.encoded(items, name, network)

        trainings = self.trainings
        side = Side(
            np.asarray(made(trainings.base())), items.labels,
            scores=trainings.scores(items, name), other=made(trainings.other_length()),
        )  # fmt: skip
        if active is None:
            return side
        return replace(
            side,
            activations=made(trainings.encoder(active).hash),
            start=made(trainings.start(active)),
            free=made(trainings.free(active)),
        )
