"""One table and its queries, put to one method after another."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import ordered_buckets, topk_codes
from flowhash.evaluate.comparison.methods import (
    Exhaustive,
    InvertedLists,
    Method,
    Side,
)
from flowhash.evaluate.comparison.search_clock import (
    PAIRS,
    TIMED,
    TOP,
    flat_seconds,
    lists_seconds,
)
from flowhash.evaluate.results import Draws, Row
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
from flowhash.stopwatch import median_seconds

TOPS = (1, 4, 16)
BLOCK = 50_000  # items that are added at once
EXACT = 5_000  # queries that exhaustive search answers for recall@K, at most
LARGEST_CLASS = 5_000  # mAP@R ranks as many items a query; it is left out for larger classes


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
            self.exact = self._answers()
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
        for start in range(0, len(self.database), BLOCK):
            part = self.database.rows(slice(start, start + BLOCK))
            codes = topk_codes(method.activations(part), method.active)
            index.add(codes, method.embeddings(part), part.labels)
        index.compact()
        return index

    def _blocks(self, method: Method) -> Iterator[Queries]:
        for start in range(0, len(self.queries), BLOCK):
            part = self.queries.rows(slice(start, start + BLOCK))
            own = np.arange(start, start + len(part)) if self.itself else None
            activations, embeddings = method.activations(part), method.embeddings(part)
            yield Queries(activations, embeddings, part.labels, own)

    def _answers(self) -> Exact:
        every = Exhaustive()
        return exact_answers(
            self._filled(every), self._blocks(every), max(TOPS), -(-len(self.queries) // EXACT)
        )

    def _seconds(self, index: LabelledTable, method: Method) -> float:
        """Of one query in a batch: ordering its buckets and searching them for 16 items.

        What a network makes is there already; distances to centroids belong to the search.
        """
        side = self.queries.rows(slice(0, TIMED))
        if isinstance(method, Exhaustive):  # slow: as many as FAISS Flat gets
            side = side.rows(slice(0, max(1, PAIRS // max(1, len(self.database)))))
        activations, probe = method.activations(side), method.probe or method.active
        embeddings = np.ascontiguousarray(method.embeddings(side))

        if isinstance(method, InvertedLists):
            seconds = lists_seconds(method, self.database.embeddings, embeddings)
            if seconds is not None:
                return seconds

        def search() -> None:
            made = method.activations(side) if method.computes else activations
            order = ordered_buckets(made, first=probe)
            index.table.search(order, embeddings, top=TOP, probe=probe)

        return median_seconds(search) / len(side)
