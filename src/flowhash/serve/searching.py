"""From queries to answers: encode, search the table, write JSON. All of it runs in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.engines import BrowsedEngine
from flowhash.errors import InputError
from flowhash.serve.faces import described
from flowhash.serve.finding import REPEATS, Found, Query, find, find_everywhere
from flowhash.serve.metrics import Metrics
from flowhash.serve.problems import problem_of
from flowhash.serve.writing import as_json

if TYPE_CHECKING:
    from flowhash.serve.embedding import Embedder

BARE = {"label": None, "name": None, "picture": None, "payload": None, "buckets": None}


class Searching:
    """Answers queries from a table.

    Args:
        table: that is searched.
        embedder: makes embeddings of vectors or images; None where there is no encoder.
        metrics: count what was done.
        threads: of a search; None lets the table choose, but one thread for batches that are over
            in a millisecond: the other cores have requests to read.
    """

    def __init__(
        self,
        table: BrowsedEngine,
        embedder: Embedder | None,
        metrics: Metrics,
        threads: int | None,
    ) -> None:
        self._table = table
        self._embedder = embedder
        self._metrics = metrics
        self._threads = threads

    def batch(self, queries: Sequence[Query]) -> list[bytes | BaseException]:
        """The answers to queries of one group, as JSON; one that fails never fails the others."""
        try:
            answers: list[bytes | BaseException] = list(self._together(queries))
            return answers
        except InputError as error:
            if len(queries) == 1:
                return [problem_of(error)]
        # One of them cannot be searched, such as a vector of zeros by cosine: each by itself.
        return [answer for query in queries for answer in self.batch([query])]

    def _compared(self, query: Query) -> bytes:
        """The answer to one query, beside that of the same kernel with every bucket open."""
        order, embeddings = self._prepared(query)
        found = find(self._table, query, order, embeddings, self._threads, REPEATS)
        self._metrics.searched(1, int(found.hits.scanned.sum()))
        beside = find_everywhere(self._table, query, embeddings, self._threads)
        return self._written(self._shown(query, found, 0), found.milliseconds, beside)

    def _together(self, queries: Sequence[Query]) -> list[bytes]:
        if queries[0].compare:
            return [self._compared(query) for query in queries]
        prepared = self._gathered(queries)
        order, embeddings = self._prepared(prepared)
        found = find(self._table, prepared, order, embeddings, self._threads)
        self._metrics.searched(len(embeddings), int(found.hits.scanned.sum()))
        written, start = [], 0
        for query in queries:
            shown = self._shown(query, found, start)
            written.append(self._written(shown, found.milliseconds, None))
            start += len(query)
        return written

    def _gathered(self, queries: Sequence[Query]) -> Query:
        """Queries of one group as one."""
        first = queries[0]
        if len(queries) == 1:
            return first
        rows = np.concatenate([query.rows for query in queries])
        orders = [query.order for query in queries if query.order is not None]
        order = np.concatenate(orders) if orders else None
        return Query(rows, order, first.wanted, first.probe, first.at_least, first.payloads)

    def _prepared(self, query: Query) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The buckets to open and the embeddings."""
        if query.order is not None:
            return query.order, query.rows
        assert self._embedder is not None  # or the query would not have been accepted
        made = self._embedder(query.rows)
        first = None if query.at_least is not None else query.probe or self._table.active
        return made.ordered_buckets(first), made.embeddings

    def _shown(self, query: Query, found: Found, start: int) -> list[dict[str, Any]]:
        """The answers to a query whose rows begin at ``start``."""
        hits = found.hits
        place = 0 if found.codes is None else int(hits.counts[:start].sum())
        shown = []
        for row in range(start, start + len(query)):
            count = int(hits.counts[row])
            ids, distances = hits.ids[row, :count].tolist(), list(hits.distances[row, :count])
            if found.codes is None or hits.payloads is None:
                lines = [
                    {"id": item, "distance": distance, **BARE}
                    for item, distance in zip(ids, distances, strict=True)
                ]
            else:
                codes = found.codes[place : place + count]
                lines = [
                    {"id": item, "distance": distance, **described(item, payload), "buckets": code}
                    for item, distance, payload, code in zip(
                        ids, distances, hits.payloads[row], codes, strict=True
                    )
                ]
                place += count
            if query.without is not None:
                lines = [line for line in lines if line["id"] != query.without][: query.top]
            shown.append({
                "hits": lines, "opened": found.opened[row], "scanned": int(hits.scanned[row]),
                "query_picture": query.picture,
            })  # fmt: skip
        return shown

    def _written(
        self, shown: list[dict[str, Any]], milliseconds: float, beside: dict[str, Any] | None
    ) -> bytes:
        return as_json({
            "items": len(self._table),
            "milliseconds": round(milliseconds, 4),
            "answers": shown,
            "exhaustive": beside,
        })  # fmt: skip
