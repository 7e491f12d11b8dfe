"""The paper's experiments, from nothing to tables: train what is missing, search, write."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flowhash.data import LabelledItems, Splits, unseen_classes
from flowhash.errors import InputError
from flowhash.evaluate.encoding import passes_of
from flowhash.evaluate.lineup import Say, run_all
from flowhash.evaluate.outcome import Outcome
from flowhash.evaluate.pictures import some_buckets, some_examples
from flowhash.evaluate.plan import make_plan
from flowhash.evaluate.sides import Side
from flowhash.evaluate.trainings import Trainings

UNSEEN_SHARE = 0.2


def reproduce(
    splits: Splits,
    data: str,
    loss: str,
    folder: str | Path,
    *,
    preset: str = "cpu",
    seeds: int = 1,
    unseen: bool = True,
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
        preset: "paper" or "cpu".
        seeds: how many trainings, with seeds 0, 1, …
        unseen: whether to train on four fifths of the classes too and search the others.
        device: "auto", "cpu" or "cuda".
        quiet: no progress on the terminal.
        say: is told what happens, line by line.
    """
    if splits.test is None:
        raise InputError(f"{splits.train.source} has no test split; expected one to search")
    if seeds < 1:
        raise InputError(f"seeds is {seeds}; expected one or more")
    outcome = Outcome(class_names=splits.train.class_names)
    for seed in range(seeds):
        plan = make_plan(data, loss, preset, seed, splits.train.classes)
        outcome.words = plan.words
        place = Path(folder) / f"seed-{seed}"
        run = _Run(Trainings(plan, splits, place, device, quiet), seed, outcome, say)
        run.seen()
        if unseen:
            kept = unseen_classes(splits, UNSEEN_SHARE, seed)
            plan = make_plan(data, loss, preset, seed, kept.train.classes, unseen=True)
            outcome.words = plan.words
            trainings = Trainings(plan, kept, place / "unseen", device, quiet)
            _Run(trainings, seed, outcome, say).unseen()
    return outcome


class _Run:
    """One seed of one loss."""

    def __init__(self, trainings: Trainings, seed: int, outcome: Outcome, say: Say) -> None:
        self.trainings, self.seed, self.outcome, self.say = trainings, seed, outcome, say
        self.experiment = trainings.plan.experiment

    def seen(self) -> None:
        """The tables of the paper: classes that training knows."""
        splits = self.trainings.splits
        assert splits.test is not None
        self._train()
        queries = splits.test
        for table in self.experiment.items:
            items = {"train": splits.train, "test": queries}[table]
            self._compare(table, items, table, None if table == "test" else queries)
        if self.seed == 0:
            self.outcome.curves = dict(self.trainings.curves())
        for name, value in self.trainings.seconds().items():
            self.outcome.seconds[f"seed {self.seed}: {name}"] = value

    def unseen(self) -> None:
        """Classes that training has not seen, searched among themselves."""
        assert self.trainings.splits.test is not None
        self._train()
        self._compare("unseen", self.trainings.splits.test, "unseen", None)
        for name, value in self.trainings.seconds().items():
            self.outcome.seconds[f"seed {self.seed}, unseen classes: {name}"] = value

    def _train(self) -> None:
        self.trainings.base()
        for k in self.experiment.active:
            self.trainings.encoder(k)

    def _compare(
        self, table: str, items: LabelledItems, name: str, queries: LabelledItems | None
    ) -> None:
        began = time.perf_counter()
        self.say(f"search the {table} table, seed {self.seed}")
        sides = _Sides(self.trainings, items, name, queries)
        comparison, trials = run_all(
            table, sides, self.experiment.active, self.experiment.buckets, items.classes,
            self.seed, self.say,
        )  # fmt: skip
        self.outcome.rows += [trial.row for trial in trials]
        if table == "test" and self.seed == 0:
            self.outcome.buckets = some_buckets(trials)
            self.outcome.examples = some_examples(comparison, trials, items)
        self.outcome.evaluation += time.perf_counter() - began


class _Sides:
    """Encoded items and queries, with the activations of one hash network at a time."""

    def __init__(
        self, trainings: Trainings, items: LabelledItems, name: str, queries: LabelledItems | None
    ) -> None:
        self.trainings, self.items, self.name, self.asked = trainings, items, name, queries
        self.classifier = trainings.classifier()

    def database(self, active: int | None) -> Side:
        return self._side(self.items, self.name, active)

    def queries(self, active: int | None) -> Side | None:
        return None if self.asked is None else self._side(self.asked, "test", active)

    def train(self) -> Side | None:
        if self.items is self.trainings.splits.train:
            return None
        items = self.trainings.splits.train
        return Side(self.trainings.encoded(items, "train", self.trainings.base()), items.labels)

    def passes(self) -> int:
        return passes_of(self.trainings.base())

    def shared(self, active: int) -> bool:
        encoder = self.trainings.encoder(active)
        return encoder.base is None or encoder.networks.shared

    def ranked(self) -> bool:
        return True

    def alone(self, active: int) -> bool:
        encoder = self.trainings.encoder(active)
        return encoder.base is not None and encoder.hash.unit

    def _side(self, items: LabelledItems, name: str, active: int | None) -> Side:
        embeddings = self.trainings.encoded(items, name, self.trainings.base())
        activations: NDArray[np.float32] | None = None
        start: NDArray[np.float32] | None = None
        if active is not None:
            network = self.trainings.encoder(active).hash
            activations = self.trainings.encoded(items, name, network)
            started = self.trainings.start(active)
            if started is not None:
                start = self.trainings.encoded(items, name, started)
        scores = self.classifier.scores(embeddings)
        return Side(np.asarray(embeddings), items.labels, activations, scores, start)
