"""Settings for vectors that nobody gave: a few are tried, and a validation part chooses.

First the layers: none, or one hidden layer. Then the buckets: one a class, or more of them, down to
some 32 items each. Of the numbers of buckets whose precision cannot be told from the best one, the
largest is taken, because it scans least.

For classes that come later a fifth of the classes is held out instead, and searched among
themselves: what ranks, the buckets, and a term of neighbours in the loss, all at the same scan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data import LabelledItems, Splits, shuffled_ranks, unseen_classes
from flowhash.errors import InputError
from flowhash.learn.presets import HIDDEN, bucket_counts
from flowhash.learn.settings import Settings
from flowhash.learn.train_encoder import train
from flowhash.quality import LabelledTable, Queries, measure

TRIED = 10_000  # items to learn from in a trial, at most
TRIAL_STEPS = 800  # of a trial, at most: what is compared need not be finished
ASKED = 5_000  # queries of a trial, at most
FEWEST = 40  # queries; with fewer nothing is tried
TOP = 16  # precision among as many, and of the nearest one
NEW = 0.2  # of the classes, to choose on for classes that come later; two at least
LEAST_CLASSES = 5  # of which so many can be held out
SCANNED = 1 / 32  # of the items of those classes, by each query; twice ``TOP`` items at least
NEIGHBOURS = 0.3  # weight of the term of neighbours that is tried for them

RANKED = {"base": "what is given", "whitened": "the whitened metric", "hash": "the outputs"}

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
        rank: what ranks, as settings call it, where it was a question.
        neighbours: weight of the term of neighbours, likewise.
    """

    buckets: int
    hidden: tuple[int, ...]
    precision: dict[int, float]
    speed_up: float
    right: NDArray[np.float64]
    rank: str | None = None
    neighbours: float | None = None

    def __str__(self) -> str:
        layers = f"hidden layer of {self.hidden[0]}" if self.hidden else "no hidden layer"
        layers += "" if self.rank is None else f", ranked by {RANKED[self.rank]}"
        layers += f", neighbours {self.neighbours:g}" if self.neighbours else ""
        precise = ", ".join(f"Pr@{top} {100 * value:.1f}" for top, value in self.precision.items())
        return f"{self.buckets} buckets, {layers}: {precise}, SUF {self.speed_up:.1f}"

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        precise = {f"pr{top}": value for top, value in self.precision.items()}
        new = {"rank": self.rank, "neighbours": self.neighbours}
        return {
            "buckets": self.buckets, "hidden": list(self.hidden),
            **({} if self.rank is None else new), **precise, "suf": self.speed_up,
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


def choose_for_new_classes(
    splits: Splits,
    make: Make,
    buckets: int | None = None,
    hidden: tuple[int, ...] = (),
    *,
    ranks: tuple[str, ...] = ("base", "whitened"),
    seed: int = 0,
    device: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Settings, list[Trial]]:
    """The settings that do best on classes that were held out, and all trials, the chosen one last.

    A fifth of the classes of ``splits.train`` is not learned from; their items are searched among
    themselves, in buckets that were learned for the others, at the same scan for all trials. First
    what ranks is tried, in the most buckets; then fewer buckets, down to one a class; then the term
    of neighbours. What comes later has to be better by more than a standard error.

    Args:
        splits: of vectors; the training split is used only.
        make: settings from a number of buckets and sizes of hidden layers, with the loss "codes".
        buckets: d, where it is given.
        hidden: sizes of layers before the last one.
        ranks: what may rank, as settings call it.
        seed: of the classes that are held out.
        device: "auto", "cpu" or "cuda".
        say: hears a line a trial.

    Raises:
        InputError: there are too few classes, or too few items of those held out.
    """
    data = splits.train
    count = len(np.unique(data.labels))
    if count < LEAST_CLASSES:
        raise InputError(
            f"{data.source} has {count} classes; expected {LEAST_CLASSES} or more to choose "
            "settings for new ones on, a fifth of which is held out: leave it out, and choose "
            "rank and class_order yourself"
        )
    kept = unseen_classes(
        replace(splits, validation=data.subset(np.zeros(0, np.int64)), test=data),
        max(NEW, 2 / data.classes), seed, progress=False,
    )  # fmt: skip
    assert kept.test is not None
    some = replace(kept, train=_some(kept.train, TRIED), test=_some(kept.test, ASKED))
    assert some.test is not None
    if len(some.test) < FEWEST:
        raise InputError(
            f"the classes of {data.source} that are held out to choose settings for new ones have "
            f"{len(some.test)} items; expected {FEWEST} or more: leave it out, and choose rank and "
            "class_order yourself"
        )
    counts = bucket_counts(len(data), count) if buckets is None else [buckets]

    def tried(count: int, rank: str, neighbours: float) -> Trial:
        settings = for_new_classes(make(count, hidden), rank, neighbours)
        trial = _try_new_classes(some, settings, count, hidden, device)
        say(str(trial))
        return trial

    trials = [tried(counts[-1], rank, 0.0) for rank in ranks]
    best = _first_of_the_best(trials)
    fewer = [tried(count, str(best.rank), 0.0) for count in counts[-2::-1]]
    best = _first_of_the_best([best, *fewer])
    near = tried(best.buckets, str(best.rank), NEIGHBOURS)
    best = _first_of_the_best([best, near])
    settings = for_new_classes(make(best.buckets, hidden), str(best.rank), best.neighbours or 0.0)
    others = [trial for trial in [*trials, *fewer, near] if trial is not best]
    return settings, [*others, best]


def for_new_classes(settings: Settings, rank: str, neighbours: float) -> Settings:
    """The same settings with what suits classes that come later; a class order that is given stays.

    Args:
        settings: with the loss "codes".
        rank: what ranks, as settings call it.
        neighbours: weight of the term of neighbours in the loss.
    """
    options = dict(settings.hash.loss_options) | ({"neighbours": neighbours} if neighbours else {})
    order = 0.0 if settings.class_order is None else settings.class_order
    stage = replace(settings.hash, loss_options=options)
    return replace(settings, hash=stage, rank=rank, class_order=order)


def _first_of_the_best(trials: list[Trial]) -> Trial:
    """The first one, unless a later one leads the best before it by more than an error."""
    best = trials[0]
    for trial in trials[1:]:
        lead = trial.right - best.right
        if lead.mean() > _error(lead):
            best = trial
    return best


def _error(behind: NDArray[np.float64]) -> float:
    """The standard error of a mean difference, one more query counting as different."""
    return float(np.sqrt(len(behind) * behind.var() + 1) / len(behind))


def largest_speed_up(trials: list[Trial]) -> Trial:
    """Of trials whose precision is within one standard error of the best one's, the quickest.

    The error is that of the difference over the same queries, one more of which counts as
    different: a single query decides nothing.
    """
    best = max(trials, key=lambda trial: float(trial.right.mean()))
    behind = [best.right - trial.right for trial in trials]
    near = [
        trial for trial, each in zip(trials, behind, strict=True) if each.mean() <= _error(each)
    ]
    return max(near, key=lambda trial: trial.speed_up)


def _some(data: LabelledItems, most: int) -> LabelledItems:
    """At most so many items, of each class its share and one at least."""
    if len(data) <= most:
        return data
    _, classes, sizes = np.unique(data.labels, return_inverse=True, return_counts=True)
    places = shuffled_ranks(classes, np.random.default_rng(0)) / sizes[classes]
    return data.subset(np.sort(np.argsort(places, kind="stable")[:most]))


def _shorter(settings: Settings) -> Settings:
    """The same with the steps of a trial."""
    steps = min(settings.hash.steps, TRIAL_STEPS)
    return replace(settings, hash=replace(settings.hash, steps=steps))


def _try(
    splits: Splits, settings: Settings, buckets: int, hidden: tuple[int, ...], device: str
) -> Trial:
    """Learn from the training split, and put the validation split to a table of it."""
    alone = replace(splits, validation=splits.validation.subset(np.zeros(0, np.int64)))
    encoder = train(alone, _shorter(settings), None, device=device, quiet=True)
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


def _try_new_classes(
    splits: Splits, settings: Settings, buckets: int, hidden: tuple[int, ...], device: str
) -> Trial:
    """Learn from the training split, and search the test split, of other classes, in itself."""
    data = splits.test
    assert data is not None
    encoder = train(replace(splits, test=None), _shorter(settings), None, device=device, quiet=True)
    made = encoder.encode(data, device=device)
    index = LabelledTable(encoder.buckets, encoder.dim, encoder.active, data.classes)
    index.add(made.codes, made.embeddings, data.labels)
    queries = Queries(made.activations, made.embeddings, data.labels, np.arange(len(data)))
    scanned = min(max(2 * TOP, SCANNED * len(data)), len(data) - 1)
    right = right_at_scan(index, queries, scanned)
    precision = {top: float(each.mean()) for top, each in right.items()}
    both = (right[1] + right[TOP]) / 2
    neighbours = float(settings.hash.loss_options.get("neighbours", 0))
    return Trial(buckets, hidden, precision, len(data) / scanned, both, settings.rank, neighbours)


def right_at_scan(
    index: LabelledTable, queries: Queries, scanned: float
) -> dict[int, NDArray[np.float64]]:
    """Precision at 1 and 16 of each query [q], where they scan so many items on average.

    Between two numbers of buckets to open, some of the queries open the larger one, and which is
    left to chance: so it lies on the line between both, and on that from nothing where a single
    bucket is too much already.

    Args:
        index: what is searched.
        queries: which are items of it.
        scanned: one or more, and fewer than there are items.
    """
    before, least, probe = {top: np.zeros(len(queries)) for top in (1, TOP)}, 0.0, index.active
    while True:
        found = measure(index, [queries], (1, TOP), probe=probe)
        now = {top: found.right[top] / top for top in (1, TOP)}
        if found.scanned >= scanned or probe == index.buckets:
            break
        before, least = now, found.scanned
        probe = min(index.buckets, probe + max(1, probe // 4))
    share = (scanned - least) / (found.scanned - least)
    return {top: (1 - share) * before[top] + share * now[top] for top in (1, TOP)}
