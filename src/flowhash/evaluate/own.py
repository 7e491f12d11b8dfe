"""Evaluate an encoder on a data set: the same methods and metrics as for the paper's."""

from __future__ import annotations

import time

from flowhash.data import LabelledItems, Splits
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.evaluate.classifier import fit_classifier
from flowhash.evaluate.compare import TOPS
from flowhash.evaluate.encoding import passes_of
from flowhash.evaluate.lineup import Say, run_all
from flowhash.evaluate.outcome import Outcome
from flowhash.evaluate.pictures import Draw, picture, some_buckets, some_examples
from flowhash.evaluate.sides import Side


def evaluate(
    encoder: Encoder,
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
    the base embeddings of the training set.

    Args:
        encoder: what is evaluated.
        splits: the data set; without a test split the validation split is searched.
        seed: of k-means.
        device: "auto", "cpu" or "cuda".
        draw: makes an image of an item, for the report.
        say: is told what happens, line by line.
        progress: show a bar, if the error stream is a terminal.

    Raises:
        InputError: the data does not fit the encoder, or has too few items.
    """
    asked = splits.validation if splits.test is None else splits.test
    if len(splits.train) < max(TOPS) or len(asked) < 1:
        raise InputError(
            f"{asked.source} has {len(splits.train)} items to search and {len(asked)} to ask; "
            f"expected at least {max(TOPS)} to search, and one to ask: give more data"
        )
    began = time.perf_counter()
    sides = _encoded(encoder, splits.train, asked, device, progress)
    outcome = Outcome(class_names=splits.train.class_names)
    last = "test"
    if splits.test is None:
        last = "validation"
        outcome.words = (
            "There is no test split. The items that are asked are those on which the checkpoint "
            "was chosen, so that the numbers flatter FlowHash a little.",
        )
    if len(asked) < encoder.buckets:
        outcome.words += (
            f"k-means and inverted lists are left out for the {last} table: it has {len(asked)} "
            f"items for {encoder.buckets} centroids.",
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
        source = _Encoded(
            encoder, sides["train" if table == "train" else "test"],
            None if queries is None else sides["test"],
            None if table == "train" else sides["train"],
        )  # fmt: skip
        comparison, trials = run_all(
            table, source, (encoder.active,), encoder.buckets, items.classes, seed, say
        )
        outcome.rows += [trial.row for trial in trials]
        if table == pictured:
            outcome.buckets = some_buckets(trials)
            outcome.examples = some_examples(comparison, trials, items, queries, draw)
    outcome.evaluation = time.perf_counter() - began
    return outcome


def _encoded(
    encoder: Encoder, train: LabelledItems, asked: LabelledItems, device: str, progress: bool
) -> dict[str, Side]:
    """Both splits, with the scores of a classifier that is fitted on one of them."""
    found = {
        name: encoder.encode(items, device=device, progress=progress)
        for name, items in (("train", train), ("test", asked))
    }
    classifier = fit_classifier(found["train"].embeddings, train.labels, train.classes)
    sides = {}
    for name, items in (("train", train), ("test", asked)):
        scores = classifier.scores(found[name].embeddings)
        sides[name] = Side(found[name].embeddings, items.labels, found[name].activations, scores)
    return sides


class _Encoded:
    """Sides that were encoded before."""

    def __init__(
        self, encoder: Encoder, items: Side, asked: Side | None, train: Side | None
    ) -> None:
        self.encoder, self.items, self.asked, self.training = encoder, items, asked, train

    def database(self, active: int | None) -> Side:
        return self.items

    def queries(self, active: int | None) -> Side | None:
        return self.asked

    def train(self) -> Side | None:
        return self.training

    def passes(self) -> int:
        return passes_of(self.encoder.base or self.encoder.hash)

    def shared(self, active: int) -> bool:
        return self.encoder.base is None or self.encoder.networks.shared

    def ranked(self) -> bool:
        return self.encoder.base is not None

    def alone(self, active: int) -> bool:
        return self.encoder.base is not None and self.encoder.hash.unit
