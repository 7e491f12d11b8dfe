"""Queries and what each method returned for them, for the report's grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data import LabelledItems
from flowhash.evaluate.comparison.comparison import Comparison, Trial
from flowhash.evaluate.results import METHODS, Buckets, Example

SHOWN = 8  # answers of each method
COUNT = 8  # queries
IN_BUCKETS = ("flowhash", "vq", "th")  # methods whose buckets are drawn
IN_EXAMPLES = ("exhaustive", "vq", "classifier", "flowhash")  # methods whose answers are drawn

Draw = Callable[[NDArray[Any]], "NDArray[np.uint8] | None"]


def picture(item: NDArray[Any]) -> NDArray[np.uint8] | None:
    """An item as an image; vectors have none."""
    return np.asarray(item, np.uint8) if item.ndim == 3 else None


def some_buckets(trials: Sequence[Trial]) -> list[Buckets]:
    """The buckets of some methods at their smallest k."""
    found = []
    for method in IN_BUCKETS:
        mine = [trial for trial in trials if trial.row.method == method]
        if mine:
            trial = min(mine, key=lambda trial: trial.row.k or 0)
            row = trial.row
            name = f"{METHODS[method]}, k = {row.k}, {row.table} table"
            found.append(Buckets(name, trial.index.counts))
    return found


def some_examples(
    comparison: Comparison,
    trials: Sequence[Trial],
    items: LabelledItems,
    queries: LabelledItems | None = None,
    draw: Draw = picture,
    count: int = COUNT,
    seed: int = 0,
) -> list[Example]:
    """Some queries, drawn by chance and not picked, with what each method returned.

    Args:
        comparison: the table and its queries.
        trials: all methods; some of them are shown, at their smallest k.
        items: what the table holds.
        queries: what is asked; None where it is the items themselves.
        draw: makes an image of an item.
        count: how many queries.
        seed: of the chance.
    """
    asked = items if queries is None else queries
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(len(asked), min(count, len(asked)), replace=False))
    top = min(SHOWN, len(items) - 1)
    answers = {}
    for method in IN_EXAMPLES:
        mine = [trial for trial in trials if trial.row.method == method]
        if mine:
            trial = min(mine, key=lambda trial: trial.row.k or 0)
            answers[METHODS[method]] = comparison.answers(trial, chosen, top)
    made = []
    for place, query in enumerate(chosen):
        shown = {
            name: [(int(items.labels[item]), draw(_taken(items, item))) for item in found[place]]
            for name, found in answers.items()
        }
        made.append(Example(int(asked.labels[query]), draw(_taken(asked, query)), shown))
    return made


def _taken(items: LabelledItems, position: int) -> NDArray[Any]:
    taken: NDArray[Any] = items.take(np.array([position]))[0]
    return taken
