"""All methods on one table and its queries, k after k: rows, and examples for the report."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import ordered_buckets, topk_codes
from flowhash.data import LabelledItems
from flowhash.encoder import Encoder
from flowhash.evaluate.comparison.faiss_index import (
    FLAT_PAIRS,
    TIMED,
    TOP,
    flat_seconds,
    lists_seconds,
)
from flowhash.evaluate.comparison.intervals import with_intervals
from flowhash.evaluate.comparison.methods import (
    Classifier,
    Exhaustive,
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
)
from flowhash.evaluate.comparison.stopwatch import median_seconds
from flowhash.evaluate.results import METHODS, Buckets, Draws, Example, Row, method_order
from flowhash.networks import EmbeddingNetwork
from flowhash.quality import (
    Exact,
    LabelledTable,
    Measured,
    Queries,
    adjusted_information,
    exact_answers,
    expected_speed_up,
    measure,
    normalised_information,
    purity,
    scanned_variance,
)

TOPS = (1, 4, 16)
EXACT = 5_000  # queries that exhaustive search answers for recall@K, at most
LARGEST_CLASS = 5_000  # mAP@R ranks as many items a query; it is left out for larger classes
SHOWN = 8  # answers of each method in an example
COUNT = 8  # examples
IN_BUCKETS = ("flowhash", "vq", "th")  # methods whose buckets are drawn
IN_EXAMPLES = ("exhaustive", "vq", "classifier", "flowhash")  # methods whose answers are drawn

Draw = Callable[[NDArray[Any]], "NDArray[np.uint8] | None"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """A method after its evaluation.

    Attributes:
        row: its numbers.
        method: itself, fitted.
        index: its table.
        queries: what was asked, with the activations of its own k.
        found: what the queries found, one by one.
        draws: by quantity, its value in each draw of the queries; none before ``with_intervals``.
    """

    row: Row
    method: Method
    index: LabelledTable
    queries: Side
    found: Measured
    draws: Draws = field(default_factory=dict)


class Comparison:
    """One table and its queries, for several methods.

    What they share is computed once: what exhaustive search finds, and FAISS Flat's time.

    Args:
        table: its name: "train", "test" or "unseen".
        database: what is searched.
        queries: what is asked; None asks each item for the others.
        classes: how many there are.
        seed: of the training, for the rows.
    """

    def __init__(
        self, table: str, database: Side, queries: Side | None, classes: int, seed: int = 0
    ) -> None:
        self.table, self.database, self.seed, self.classes = table, database, seed, classes
        self.itself = queries is None
        self.queries = database if queries is None else queries
        self.flat = flat_seconds(database.embeddings, self.queries.embeddings)
        self.exact: Exact | None = None

    def of_network(self, database: Side, queries: Side | None) -> Comparison:
        """The same items and queries with the activations of another hash network.

        What methods share is not computed again.
        """
        other = copy.copy(self)
        other.database, other.queries = database, database if queries is None else queries
        return other

    def run(self, method: Method) -> Trial:
        """Fit a method, fill its table, put the queries to it."""
        method.fit(self.database, self.queries)
        index = self._filled(method)
        if self.exact is None:
            every = Exhaustive()
            self.exact = exact_answers(
                self._filled(every), self._blocks(every), max(TOPS), -(-len(self.queries) // EXACT)
            )
        found = measure(
            index, self._blocks(method), TOPS, probe=method.probe, exact=self.exact,
            average=int(index.sizes.max()) <= LARGEST_CLASS,
        )  # fmt: skip
        single = method.k == 1 and method.active == 1
        plain = method.probe is None
        assert found.recall is not None
        recall = found.recall
        row = Row(
            method.name, self.table, method.k, self.seed, found.speed_up,
            pr1=100 * found.precision[1], pr4=100 * found.precision[4],
            pr16=100 * found.precision[16],
            nmi=100 * normalised_information(index.counts) if single else None,
            scanned=found.scanned, seconds=self._seconds(index, method),
            flat=None if method.own_vectors else self.flat,
            passes=method.passes, buckets=index.buckets, items=len(index),
            queries=found.queries, suf1=found.speed_ups[1], suf4=found.speed_ups[4],
            suf16=found.speed_ups[16],
            ami=100 * adjusted_information(index.counts) if single else None,
            purity=100 * purity(index.counts) if single else None,
            recall1=100 * recall[1], recall4=100 * recall[4], recall16=100 * recall[16],
            map_r=None if found.average_precision is None else 100 * found.average_precision,
            expected=expected_speed_up(index.buckets, method.active) if plain else None,
            variance=scanned_variance(len(index), index.buckets, method.active) if plain else None,
            note=method.note,
        )  # fmt: skip
        return Trial(row, method, index, self.queries, found)

    def answers(self, trial: Trial, chosen: NDArray[np.int64], top: int) -> NDArray[np.int64]:
        """Positions of what a method returns for some queries [q, top], for pictures."""
        side = trial.queries.rows(chosen)
        order = ordered_buckets(trial.method.activations(side))
        spare = 1 if self.itself else 0
        found = trial.index.table.search(
            order, trial.method.embeddings(side), top=top + spare, probe=trial.method.probe,
            at_least=top + spare,
        )  # fmt: skip
        return (found.without(chosen) if self.itself else found).ids

    def _filled(self, method: Method) -> LabelledTable:
        first = self.database.rows(slice(0, 1))
        buckets, dim = method.activations(first).shape[1], method.embeddings(first).shape[1]
        index = LabelledTable(buckets, dim, method.active, self.classes)
        for part in self.database.blocks():
            codes = topk_codes(method.activations(part), method.active)
            index.add(codes, method.embeddings(part), part.labels)
        index.compact()
        return index

    def _blocks(self, method: Method) -> Iterator[Queries]:
        seen = 0
        for part in self.queries.blocks():
            own = np.arange(seen, seen + len(part)) if self.itself else None
            yield Queries(method.activations(part), method.embeddings(part), part.labels, own)
            seen += len(part)

    def _seconds(self, index: LabelledTable, method: Method) -> float:
        """Of one query in a batch: ordering its buckets and searching them for 16 items.

        What a network makes is there already; distances to centroids belong to the search.
        """
        side = self.queries.rows(slice(0, TIMED))
        if isinstance(method, Exhaustive):  # slow: as many as FAISS Flat gets
            side = side.rows(slice(0, max(1, FLAT_PAIRS // max(1, len(self.database)))))
        activations, probe = method.activations(side), method.probe or method.active
        embeddings = np.ascontiguousarray(method.embeddings(side))

        if isinstance(method, InvertedLists):
            assert method.centroids is not None
            seconds = lists_seconds(method.centroids, probe, self.database.embeddings, embeddings)
            if seconds is not None:
                return seconds

        def search() -> None:
            made = method.activations(side) if method.computes else activations
            order = ordered_buckets(made, first=probe)
            index.table.search(order, embeddings, top=TOP, probe=probe)

        return median_seconds(search) / len(side)


class EncodedSource(ABC):
    """Where encoded items and queries come from.

    A side has the activations of one hash network at a time, because each k has its own; and
    those of its start, where that is not random, and of the one with λ = 0, if it was trained.

    Attributes:
        other_length: what ``Side.other`` is, "raw" or "unit"; None where sides have none.
        scored_apart: whether the classifier has a network of its own, beside the base.
    """

    other_length: str | None = None
    scored_apart = False

    @abstractmethod
    def sides(self, active: int | None) -> tuple[Side, Side | None]:
        """What is searched, and what is asked, or None where that is the same.

        They have the activations of the hash network for k = ``active``, if that is given.
        """

    @abstractmethod
    def train(self) -> Side | None:
        """The training set, to fit centroids on; None where it is what is searched."""

    @abstractmethod
    def encoder(self, active: int | None) -> Encoder:
        """Base and hash network for k = ``active``; None gives that of any k."""


def passes_of(network: EmbeddingNetwork) -> int:
    """Forward passes that one item takes: none for vectors as they are, more for several views."""
    if network.passes_through:
        return 0
    return int(getattr(network.backbone, "passes", 1))


def run_all(
    table: str,
    source: EncodedSource,
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
    plain = Comparison(table, *source.sides(None), classes, seed)
    trials: list[Trial] = []

    def run(comparison: Comparison, method: Method, k: int | None) -> Trial:
        method.passes = _passes(method, source, k)
        trial = comparison.run(method)
        say(in_words(trial.row))
        if k not in (None, actives[0]):  # only the first k is pictured: let go of other tables
            trial = replace(trial, index=LabelledTable(1, 1, 1, 1))
        trials.append(trial)
        return trial

    length, train, known = source.other_length, source.train(), KnownCentroids()
    run(plain, Exhaustive(), None)
    if length is not None:
        run(plain, Exhaustive(length), None)
    for k in actives:
        comparison = plain.of_network(*source.sides(k))
        scanned = run(comparison, Learned(k), k).row.scanned
        for method in _rivals(source, comparison, train, k, scanned, buckets, known):
            run(comparison, method, k)
    trials.sort(key=lambda trial: (trial.row.k or 0, method_order(trial.row.method)))
    rows, draws = with_intervals([trial.row for trial in trials], [trial.found for trial in trials])
    return plain, [
        replace(trial, row=row, draws=draws[row.place])
        for trial, row in zip(trials, rows, strict=True)
    ]


def _rivals(
    source: EncodedSource,
    comparison: Comparison,
    train: Side | None,
    k: int,
    scanned: float,
    buckets: int,
    known: KnownCentroids,
) -> list[Method]:
    """What stands beside FlowHash at one k, where there is what it takes.

    The inverted lists open as much as FlowHash ``scanned``.
    """
    database, seed, encoder = comparison.database, comparison.seed, source.encoder(k)
    found: list[Method] = []
    if database.start is not None:
        found.append(Start(k))
    if database.free is not None:
        found.append(Unpenalised(k))
    if encoder.base is not None and encoder.hash.unit:
        found.append(LearnedAlone(k))
    # Where the hash network ranks, there being no base, Th would be FlowHash.
    if encoder.base is not None and k <= database.embeddings.shape[1]:
        found.append(TopDimensions(k))
    if len(database) >= buckets:
        found.append(VectorQuantisation(k, buckets, None, seed, known))
        found.append(InvertedLists(buckets, scanned, comparison.itself, k, seed, known))
        if source.other_length is not None:
            found.append(VectorQuantisation(k, buckets, None, seed, known, source.other_length))
    if train is not None and len(train) >= buckets:
        found.append(VectorQuantisation(k, buckets, train, seed, known))
    if database.scores is not None and k <= database.scores.shape[1]:
        found.append(Classifier(k))
    return found


def _passes(method: Method, source: EncodedSource, active: int | None) -> int:
    """Forward passes a query: of the base, of the hash network, or of both."""
    encoder = source.encoder(active)
    base = passes_of(encoder.base or encoder.hash)
    if isinstance(method, Classifier):
        return base + source.scored_apart
    once = encoder.base is None or encoder.networks.shared or encoder.networks.chained
    if not isinstance(method, Learned) or once:
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


def picture(item: NDArray[Any]) -> NDArray[np.uint8] | None:
    """An item as an image; vectors have none."""
    return np.asarray(item, np.uint8) if item.ndim == 3 else None


def some_buckets(trials: Sequence[Trial]) -> list[Buckets]:
    """The buckets of some methods at their smallest k."""
    found = []
    for trial in _smallest(trials, IN_BUCKETS):
        row = trial.row
        name = f"{METHODS[row.method]}, k = {row.k}, {row.table} table"
        found.append(Buckets(name, trial.index.counts))
    return found


def _smallest(trials: Sequence[Trial], methods: Sequence[str]) -> list[Trial]:
    """Of each method that is there, that of the smallest k."""
    ordered = sorted(trials, key=lambda trial: trial.row.k or 0, reverse=True)
    found = {trial.row.method: trial for trial in ordered}
    return [found[method] for method in methods if method in found]


def some_examples(
    comparison: Comparison,
    trials: Sequence[Trial],
    items: LabelledItems,
    queries: LabelledItems | None = None,
    draw: Draw = picture,
) -> list[Example]:
    """Some queries, drawn by chance and not picked, with what each method returned.

    Args:
        comparison: the table and its queries.
        trials: all methods; some of them are shown, at their smallest k.
        items: what the table holds.
        queries: what is asked; None where it is the items themselves.
        draw: makes an image of an item.
    """
    asked = items if queries is None else queries
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.choice(len(asked), min(COUNT, len(asked)), replace=False))
    top = min(SHOWN, len(items) - 1)
    answers = {
        METHODS[trial.row.method]: comparison.answers(trial, chosen, top)
        for trial in _smallest(trials, IN_EXAMPLES)
    }

    def shown(source: LabelledItems, position: int) -> tuple[int, NDArray[np.uint8] | None]:
        return int(source.labels[position]), draw(source.take(np.array([position]))[0])

    made = []
    for place, query in enumerate(chosen):
        returned = {
            name: [shown(items, item) for item in found[place]] for name, found in answers.items()
        }
        made.append(Example(*shown(asked, query), returned))
    return made
