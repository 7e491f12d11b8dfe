"""Put methods through the same table and the same metrics, and make rows of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import ordered_buckets, topk_codes
from flowhash.errors import MissingExtraError
from flowhash.evaluate.methods import Exhaustive, Method
from flowhash.evaluate.results import Row
from flowhash.evaluate.sides import Side
from flowhash.extras import require
from flowhash.quality import (
    Exact,
    LabelledTable,
    Queries,
    adjusted_information,
    exact_answers,
    expected_speed_up,
    measure,
    normalised_information,
    purity,
)
from flowhash.threads import available_threads

TOPS = (1, 4, 16)
BLOCK = 50_000  # items that are added at once
EXACT = 5_000  # queries that exhaustive search answers for recall@K, at most
TIMED = 10_000  # queries of a timing, at most
PAIRS = 2_000_000_000  # pairs of query and item that a timing of FAISS Flat compares, at most
TURNS = 3


@dataclass(frozen=True)
class Trial:
    """A method after its evaluation.

    Attributes:
        row: its numbers.
        index: its table.
        method: itself, fitted.
    """

    row: Row
    index: LabelledTable
    method: Method


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

    def run(self, method: Method) -> Trial:
        """Fit a method, fill its table, put the queries to it."""
        method.fit(self.database, self.queries)
        index = self._filled(method)
        if self.exact is None:
            self.exact = self._answers()
        found = measure(
            index, self._blocks(method), TOPS, probe=method.probe, exact=self.exact, average=True
        )
        single = method.k == 1 and method.active == 1
        recall = found.recall or {}
        row = Row(
            method.name, self.table, method.k, self.seed, found.speed_up,
            pr1=100 * found.precision[1], pr4=100 * found.precision[4],
            pr16=100 * found.precision[16],
            nmi=100 * normalised_information(index.counts) if single else None,
            scanned=found.scanned, seconds=self._seconds(index, method), flat=self.flat,
            passes=method.passes, buckets=index.buckets, items=len(index),
            queries=found.queries, suf1=found.speed_ups[1], suf4=found.speed_ups[4],
            suf16=found.speed_ups[16],
            ami=100 * adjusted_information(index.counts) if single else None,
            purity=100 * purity(index.counts) if single else None,
            recall1=100 * recall[1], recall4=100 * recall[4], recall16=100 * recall[16],
            map_r=None if found.average_precision is None else 100 * found.average_precision,
            expected=expected_speed_up(index.buckets, method.active), note=method.note,
        )  # fmt: skip
        return Trial(row, index, method)

    def answers(self, trial: Trial, chosen: NDArray[np.int64], top: int) -> NDArray[np.int64]:
        """Positions of what a method returns for some queries [q, top], for pictures."""
        side = self.queries.rows(chosen)
        order = ordered_buckets(trial.method.activations(side))
        spare = 1 if self.itself else 0
        found = trial.index.table.search(
            order, trial.method.embeddings(side), top=top + spare, probe=trial.method.probe,
            at_least=top + spare,
        )  # fmt: skip
        rows = [[i for i in ids if not (self.itself and i == own)][:top]
                for ids, own in zip(found.ids.tolist(), chosen.tolist(), strict=True)]  # fmt: skip
        return np.array(rows, np.int64)

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
        """Of one query in a batch: ordering its buckets and searching them for 16 items."""
        side = self.queries.rows(slice(0, TIMED))
        if isinstance(method, Exhaustive):  # slow: as many as FAISS Flat gets
            side = side.rows(slice(0, max(1, PAIRS // max(1, len(self.database)))))
        activations, probe = method.activations(side), method.probe or method.active
        embeddings = np.ascontiguousarray(method.embeddings(side))

        def search() -> None:
            order = ordered_buckets(activations, first=probe)
            index.table.search(order, embeddings, top=max(TOPS), probe=probe)

        return _median_seconds(search) / len(side)


def flat_seconds(database: NDArray[np.float32], queries: NDArray[np.float32]) -> float | None:
    """FAISS Flat's time for one query in a batch, on as many threads; None without FAISS."""
    try:
        faiss = require("faiss", "evaluate")
    except MissingExtraError:
        return None
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(available_threads())
    try:
        index = faiss.IndexFlatL2(database.shape[1])
        index.add(np.ascontiguousarray(database, np.float32))
        count = max(1, min(TIMED, PAIRS // max(1, len(database))))
        asked = np.ascontiguousarray(queries[:count], np.float32)
        return _median_seconds(lambda: index.search(asked, max(TOPS))) / len(asked)
    finally:
        faiss.omp_set_num_threads(threads)


def _median_seconds(work: Callable[[], object]) -> float:
    work()  # compile, warm the caches
    seconds = []
    for _ in range(TURNS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))
