"""Evaluate an encoder on a data set: the same methods and metrics as for the paper's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data import LabelledItems, Splits
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.evaluate.compare import TOPS
from flowhash.evaluate.lineup import Say, run_all
from flowhash.evaluate.outcome import Outcome
from flowhash.evaluate.pictures import picture, some_buckets, some_examples
from flowhash.evaluate.sides import Side
from flowhash.extras import require

Draw = Callable[[NDArray[Any]], "NDArray[np.uint8] | None"]


def evaluate(
    encoder: Encoder,
    splits: Splits,
    *,
    seed: int = 0,
    device: str = "auto",
    draw: Draw = picture,
    say: Say = lambda words: None,
) -> Outcome:
    """Search the training set with the test items, and the test items among themselves.

    The rivals are exhaustive search, Th, VQ, inverted lists and a classifier: logistic regression
    on the base embeddings of the training set.

    Args:
        encoder: what is evaluated.
        splits: the data set; without a test split the validation split is searched.
        seed: of k-means.
        device: "auto", "cpu" or "cuda".
        draw: makes an image of an item, for the report.
        say: is told what happens, line by line.

    Raises:
        InputError: the data does not fit the encoder, or has too few items.
    """
    asked = splits.validation if splits.test is None else splits.test
    if min(len(asked), len(splits.train)) <= max(TOPS):
        raise InputError(
            f"{asked.source} has {len(splits.train)} items to search and {len(asked)} to ask; "
            f"expected more than {max(TOPS)} of each"
        )
    began = time.perf_counter()
    sides = _encoded(encoder, splits.train, asked, device)
    outcome = Outcome(class_names=splits.train.class_names)
    if splits.test is None:
        outcome.words = ("There is no test split: the test table holds validation items.",)
    places = {"train": (splits.train, asked), "test": (asked, None)}
    for table, (items, queries) in places.items():
        say(f"search the {table} table")
        source = _Encoded(encoder, sides[table], None if queries is None else sides["test"],
                          None if table == "train" else sides["train"])  # fmt: skip
        comparison, trials = run_all(
            table, source, (encoder.active,), encoder.buckets, items.classes, seed, say
        )
        outcome.rows += [trial.row for trial in trials]
        if table == "test":
            outcome.buckets = some_buckets(trials)
            outcome.examples = some_examples(comparison, trials, items, None, draw)
    outcome.evaluation = time.perf_counter() - began
    return outcome


def _encoded(
    encoder: Encoder, train: LabelledItems, asked: LabelledItems, device: str
) -> dict[str, Side]:
    """Both splits, with the scores of a classifier that is fitted on one of them."""
    found = {
        name: encoder.encode(items, device=device, progress=True)
        for name, items in (("train", train), ("test", asked))
    }
    linear = require("sklearn.linear_model", "evaluate")
    model = linear.LogisticRegression(max_iter=200)
    model.fit(found["train"].embeddings, train.labels)
    sides = {}
    for name, items in (("train", train), ("test", asked)):
        scores = _scores(model, found[name].embeddings)
        sides[name] = Side(found[name].embeddings, items.labels, found[name].activations, scores)
    return sides


def _scores(model: Any, embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    scores = np.asarray(model.decision_function(embeddings), np.float32)
    # Of two classes scikit-learn scores the second only.
    return np.column_stack([-scores, scores]) if scores.ndim == 1 else scores


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

    def passes(self, active: int) -> int:
        return 1 if self.encoder.base is None or self.encoder.networks.shared else 2

    def alone(self, active: int) -> bool:
        return self.encoder.base is not None and self.encoder.hash.unit
