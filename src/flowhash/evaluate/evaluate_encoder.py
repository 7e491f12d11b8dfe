"""Evaluate an encoder on a data set: the same methods and metrics as for the paper's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from flowhash.data import LabelledItems, Splits
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.evaluate.comparison.comparison import (
    TOPS,
    Draw,
    EncodedSource,
    Say,
    picture,
    run_all,
    some_buckets,
    some_examples,
)
from flowhash.evaluate.comparison.methods import Side, fit_classifier
from flowhash.evaluate.comparison.recall_curves import recall_curves
from flowhash.evaluate.results import Outcome


def evaluate(
    encoder: Encoder | Sequence[Encoder],
    splits: Splits,
    *,
    seed: int = 0,
    device: str = "auto",
    draw: Draw = picture,
    say: Say = lambda words: None,
    progress: bool = True,
) -> Outcome:
    """Search the training set with the test items, and the test items among themselves.

    The rivals are exhaustive search, Th, VQ, inverted lists and a classifier, which is fitted on
    the base embeddings of the training set. Of the first encoder there are curves of recall
    against items scanned, with the recalls of a calibration, beside inverted lists and HNSW.

    Args:
        encoder: what is evaluated; or several of one base and d, one for each k.
        splits: the data set; without a test split the validation split is searched.
        seed: of k-means, and of the queries of the curves.
        device: "auto", "cpu" or "cuda".
        draw: makes an image of an item, for the report.
        say: is told what happens, line by line.
        progress: show a bar, if the error stream is a terminal.

    Raises:
        InputError: the data does not fit the encoder, or has too few items; or the encoders do not
            rank by the same embedding.
    """
    encoders = (encoder,) if isinstance(encoder, Encoder) else tuple(encoder)
    _check_alike(encoders)
    buckets = encoders[0].buckets
    asked = splits.validation if splits.test is None else splits.test
    if len(splits.train) < max(TOPS) or len(asked) < 1:
        raise InputError(
            f"{asked.source} has {len(splits.train)} items to search and {len(asked)} to ask; "
            f"expected at least {max(TOPS)} to search, and one to ask: give more data"
        )
    began = time.perf_counter()
    last = "validation" if splits.test is None else "test"
    sides = _encoded(encoders, {"train": splits.train, last: asked}, device, progress)
    outcome = Outcome(class_names=splits.train.class_names)
    if splits.test is None:
        outcome.words = (
            "There is no test split. The items that are asked are those on which the checkpoint "
            "was chosen, so that the numbers flatter FlowHash a little.",
        )
    if len(asked) < buckets:
        outcome.words += (
            f"k-means and inverted lists are left out for the {last} table: it has {len(asked)} "
            f"items for {buckets} centroids.",
        )
    places: dict[str, tuple[LabelledItems, LabelledItems | None]] = {
        "train": (splits.train, asked),
        last: (asked, None),
    }
    if len(asked) <= max(TOPS):
        del places[last]
        outcome.words += (
            f"The {last} items are not searched among themselves: there are {len(asked)}, and "
            f"Pr@{max(TOPS)} takes more.",
        )
    pictured = list(places)[-1]
    for table, (items, queries) in places.items():
        say(f"search the {table} table")
        train = None if table == "train" else sides["train"]
        source = _KeptSource(
            encoders, sides[table], None if queries is None else sides[last], train
        )
        actives = [one.active for one in encoders]
        comparison, trials = run_all(table, source, actives, buckets, items.classes, seed, say)
        outcome.rows += [trial.row for trial in trials]
        say(f"recall against items scanned, {table} table")
        outcome.recall_curves.append(recall_curves(comparison, trials, seed))
        if table == pictured:
            outcome.buckets = some_buckets(trials)
            outcome.examples = some_examples(comparison, trials, items, queries, draw)
    outcome.evaluation = time.perf_counter() - began
    return outcome


def _check_alike(encoders: Sequence[Encoder]) -> None:
    if not encoders:
        raise InputError("there is no encoder; give at least one")
    shapes = {(one.dim, one.buckets) for one in encoders}
    actives = [one.active for one in encoders]
    if len(shapes) > 1 or len(set(actives)) < len(actives):
        raise InputError(
            f"the encoders have (dim, d) {sorted(shapes)} and k {actives}; expected one dim and d, "
            "and every k once"
        )


Sides = dict[int, Side]  # by k: the same items, with the activations of one hash network each


def _encoded(
    encoders: Sequence[Encoder], splits: Mapping[str, LabelledItems], device: str, progress: bool
) -> dict[str, Sides]:
    """Splits, with the scores of a classifier that is fitted on the first of them."""
    sides: dict[str, Sides] = {}
    classifier = None
    for name, items in splits.items():
        found = [one.encode(items, device=device, progress=progress) for one in encoders]
        embeddings = found[0].embeddings
        if not all(np.allclose(one.embeddings, embeddings, 1e-4, 1e-5) for one in found):
            raise InputError(
                "the encoders make different embeddings; expected hash networks of one base, as "
                "train(base=...) makes them"
            )
        if classifier is None:
            classifier = fit_classifier(embeddings, items.labels, items.classes)
        scores = classifier.scores(embeddings)
        sides[name] = {
            encoder.active: Side(embeddings, items.labels, one.activations, scores)
            for encoder, one in zip(encoders, found, strict=True)
        }
    return sides


class _KeptSource(EncodedSource):
    """Sides that were encoded before."""

    def __init__(
        self, encoders: Sequence[Encoder], items: Sides, asked: Sides | None, train: Sides | None
    ) -> None:
        self.encoders = {encoder.active: encoder for encoder in encoders}
        self.first = encoders[0].active
        self.items, self.asked, self.training = items, asked, train

    def sides(self, active: int | None) -> tuple[Side, Side | None]:
        k = active or self.first
        return self.items[k], None if self.asked is None else self.asked[k]

    def train(self) -> Side | None:
        return None if self.training is None else self.training[self.first]

    def encoder(self, active: int | None) -> Encoder:
        return self.encoders[active or self.first]
