"""All methods on one table, k after k: the line-up that every table of results shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from flowhash.evaluate.comparison.comparison import Comparison, Trial
from flowhash.evaluate.comparison.intervals import with_intervals
from flowhash.evaluate.comparison.methods import (
    Classifier,
    Exhaustive,
    ExhaustiveOther,
    InvertedLists,
    KnownCentroids,
    Learned,
    LearnedAlone,
    Method,
    Side,
    Start,
    TopDimensions,
    Unpenalised,
    VectorQuantisation,
    VectorQuantisationOther,
)
from flowhash.evaluate.results import METHODS, Row
from flowhash.quality import (
    LabelledTable,
)

Say = Callable[[str], None]


class Source(Protocol):
    """Where encoded items and queries come from.

    A side has the activations of one hash network at a time, because each k has its own; and
    those of its start, where that is not random, and of the one with λ = 0, if it was trained.
    """

    def database(self, active: int | None) -> Side:
        """What is searched, with the activations of the hash network for k = ``active``."""

    def queries(self, active: int | None) -> Side | None:
        """What is asked; None where it is the database itself."""

    def train(self) -> Side | None:
        """The training set, to fit centroids on; None where it is what is searched."""

    def passes(self) -> int:
        """Forward passes of an embedding: none for vectors as they are, two for mirror images."""

    def shared(self, active: int) -> bool:
        """Whether the hash network for k = ``active`` shares the base's backbone."""

    def ranked(self) -> bool:
        """Whether a base network ranks; where the hash network does, Th would be FlowHash."""

    def alone(self, active: int) -> bool:
        """Whether its outputs are of length one, so that they can rank as well."""

    def other_length(self) -> str | None:
        """What ``Side.other`` is, "raw" or "unit"; None where sides have none."""

    def scored_apart(self) -> bool:
        """Whether the classifier has a network of its own, beside the base."""


def run_all(
    table: str,
    source: Source,
    actives: Sequence[int],
    buckets: int,
    classes: int,
    seed: int = 0,
    say: Say = lambda words: None,
) -> tuple[Comparison, list[Trial]]:
    """Put every method through one table.

    Args:
        table: its name, for the rows.
        source: of items and queries.
        actives: the values of k.
        buckets: d, also the number of centroids.
        classes: how many there are.
        seed: of the training, and of k-means.
        say: is told each row in words.

    Returns:
        The comparison, and the trials in the order of the table.
    """
    comparison = Comparison(table, source.database(None), source.queries(None), classes, seed)
    trials: list[Trial] = []
    for k, method in _methods(source, comparison, trials, actives, buckets, seed):
        if k is not None:
            comparison.database = source.database(k)
            asked = source.queries(k)
            comparison.queries = comparison.database if asked is None else asked
        method.passes = _passes(method, source, k)
        trial = comparison.run(method)
        if k not in (None, actives[0]):  # only the first k is pictured: let go of other tables
            trial = replace(trial, index=LabelledTable(1, 1, 1, 1))
        trials.append(trial)
        say(in_words(trial.row))
    places = list(METHODS)
    trials.sort(key=lambda trial: (trial.row.k or 0, places.index(trial.row.method)))
    return comparison, with_intervals(trials)


def _methods(
    source: Source,
    comparison: Comparison,
    trials: list[Trial],
    actives: Sequence[int],
    buckets: int,
    seed: int,
) -> Iterator[tuple[int | None, Method]]:
    """FlowHash comes first of each k: the inverted lists open as much as it did."""
    yield None, Exhaustive()
    train, known = source.train(), KnownCentroids()
    length = source.other_length()
    if length is not None:
        yield None, ExhaustiveOther(length)
    for k in actives:
        yield k, Learned(k)
        scanned = trials[-1].row.scanned
        if comparison.database.start is not None:
            yield k, Start(k)
        if comparison.database.free is not None:
            yield k, Unpenalised(k)
        if source.alone(k):
            yield k, LearnedAlone(k)
        if source.ranked() and k <= comparison.database.embeddings.shape[1]:
            yield k, TopDimensions(k)
        if len(comparison.database) >= buckets:
            yield k, VectorQuantisation(k, buckets, None, seed, known)
            yield k, InvertedLists(buckets, scanned, comparison.itself, k, seed, known)
            if length is not None:
                yield k, VectorQuantisationOther(k, buckets, length, seed, known)
        if train is not None and len(train) >= buckets:
            yield k, VectorQuantisation(k, buckets, train, seed, known)
        scores = comparison.database.scores
        if scores is not None and k <= scores.shape[1]:
            yield k, Classifier(k)


def _passes(method: Method, source: Source, active: int | None) -> int:
    """Forward passes a query: of the base, of the hash network, or of both."""
    base = source.passes()
    if isinstance(method, Classifier):
        return base + source.scored_apart()
    if active is None or not isinstance(method, Learned) or source.shared(active):
        return base
    return 1 if isinstance(method, LearnedAlone) else base + 1


def in_words(row: Row) -> str:
    """A row as one line of progress."""
    k = "" if row.k is None else f" k = {row.k}"
    nmi = "" if row.nmi is None else f", NMI {row.nmi:.2f}"
    return (
        f"  {METHODS[row.method]}{k}: SUF {row.suf:.2f}, Pr@1 {row.pr1:.2f}, Pr@4 {row.pr4:.2f}, "
        f"Pr@16 {row.pr16:.2f}{nmi}"
    )
