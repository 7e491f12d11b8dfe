"""From queries to answers: encode, search the table, write JSON. All of it runs in a thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.engines import BrowsedEngine
from flowhash.errors import DamagedFileError, InputError
from flowhash.serve.damage import Damage
from flowhash.serve.faces import described
from flowhash.serve.finding import REPEATS, Found, Query, find, find_everywhere
from flowhash.serve.metrics import Metrics
from flowhash.serve.options import MAX_ANSWER
from flowhash.serve.outbox import Draft, Outbox
from flowhash.serve.problems import ProblemError, problem_of
from flowhash.serve.writing import as_json

if TYPE_CHECKING:
    from flowhash.serve.embedding import Embedder

BARE = {"label": None, "name": None, "picture": None, "payload": None, "buckets": None}
PIECE = 1 << 17  # bytes of hits, about, that are in memory before they are written
LINE = 256  # bytes of a hit without its payload, about


class Searching:
    """Answers queries from a table.

    Args:
        table: that is searched.
        embedder: makes embeddings of vectors or images; None where there is no encoder.
        metrics: count what was done.
        threads: of a search; None lets the table choose, but one thread for batches that are over
            in a millisecond: the other cores have requests to read.
        outbox: counts the bytes of answers.
        damage: notes what cannot be read.
    """

    def __init__(
        self,
        table: BrowsedEngine,
        embedder: Embedder | None,
        metrics: Metrics,
        threads: int | None,
        outbox: Outbox | None = None,
        damage: Damage | None = None,
    ) -> None:
        self._table = table
        self._embedder = embedder
        self._metrics = metrics
        self._threads = threads
        self._outbox = outbox or Outbox(MAX_ANSWER)
        self._damage = damage or Damage(table)

    def batch(self, queries: Sequence[Query]) -> list[bytes | BaseException]:
        """The answers to queries of one group, as JSON; one that fails never fails the others."""
        try:
            return self._together(queries)
        except (InputError, DamagedFileError) as error:
            if len(queries) == 1:
                return [problem_of(error) if isinstance(error, InputError) else error]
        # One of them cannot be searched, such as a vector of zeros by cosine, or one that opens a
        # damaged bucket: each by itself.
        return [answer for query in queries for answer in self.batch([query])]

    def _together(self, queries: Sequence[Query]) -> list[bytes | BaseException]:
        repeats = 1
        if queries[0].compare:  # alone, and beside the same kernel with every bucket open
            repeats = REPEATS
        prepared = self._gathered(queries)
        order, embeddings = self._prepared(prepared)
        found = find(self._table, prepared, order, embeddings, self._threads, repeats)
        self._metrics.searched(len(embeddings), int(found.hits.scanned.sum()))
        beside = None
        if queries[0].compare:
            beside = find_everywhere(self._table, prepared, embeddings, self._threads)
        answers: list[bytes | BaseException] = []
        start = 0
        for query in queries:
            try:
                answers.append(self._written(query, found, start, beside))
            except ProblemError as error:  # too large; without what it has led through
                answers.append(error.with_traceback(None))
            start += len(query)
        return answers

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

    def _written(
        self, query: Query, found: Found, start: int, beside: dict[str, Any] | None
    ) -> bytes:
        """The answer to a query whose rows begin at ``start``.

        Raises:
            ProblemError: 413 if it is too large, 503 if those of others leave no room for it.
        """
        hits = found.hits
        place = 0 if found.codes is None else int(hits.counts[:start].sum())
        lost: list[int | str] = []
        draft = Draft(self._outbox)
        try:
            shown = as_json({
                "items": len(self._table), "milliseconds": round(found.milliseconds, 4),
            })  # fmt: skip
            draft.add(shown[:-1] + b',"answers":[')
            for row in range(start, start + len(query)):
                draft.add(b'{"hits":[' if row == start else b',{"hits":[')
                comma = b""
                for piece in self._pieces(query, found, row, place, lost):
                    draft.add(comma + piece)
                    comma = b","
                place += int(hits.counts[row])
                rest = as_json({
                    "opened": found.opened[row], "scanned": int(hits.scanned[row]),
                    "query_picture": query.picture,
                })  # fmt: skip
                draft.add(b"]," + rest[1:])
            draft.add(b"]," + as_json({"exhaustive": beside, "damaged": lost})[1:])
            return draft.whole()
        finally:
            draft.drop()

    def _pieces(
        self, query: Query, found: Found, row: int, place: int, lost: list[int | str]
    ) -> Iterator[bytes]:
        """The hits of a row as JSON, some at a time: never all of their payloads in memory.

        Args:
            query: that is answered.
            found: by its batch.
            row: of the batch.
            place: of the row's first hit among all of the batch.
            lost: is given the ids of hits whose payload cannot be shown.
        """
        count = int(found.hits.counts[row])
        ids = found.hits.ids[row, :count].tolist()
        distances = list(found.hits.distances[row, :count])
        chosen: Sequence[int] = range(count)
        if query.without is not None:
            chosen = [hit for hit in chosen if ids[hit] != query.without][: query.top]
        lines: list[dict[str, Any]] = []
        weight = 0
        for hit in chosen:
            item = ids[hit]
            line = {"id": item, "distance": distances[hit]}
            if found.codes is None:
                line.update(BARE)
            else:
                size, payload = self._payload(found, place + hit, item, lost)
                line.update(described(item, payload), buckets=found.codes[place + hit])
                weight += size
            lines.append(line)
            weight += LINE
            if weight > PIECE:
                yield self._lines(lines, lost)
                lines, weight = [], 0
        if lines:
            yield self._lines(lines, lost)

    def _payload(
        self, found: Found, place: int, item: int | str, lost: list[int | str]
    ) -> tuple[int, dict[str, Any] | None]:
        try:
            return found.payload_at(place)
        except DamagedFileError as error:  # the hit itself is sound
            self._damage.note_item(item, error)
            lost.append(item)
            return 0, None

    def _lines(self, lines: list[dict[str, Any]], lost: list[int | str]) -> bytes:
        """Hits as JSON, without brackets."""
        try:
            return as_json(lines)[1:-1]
        except (RecursionError, ValueError) as error:
            if len(lines) > 1:
                return b",".join(self._lines([line], lost) for line in lines)
            (line,) = lines
            if line["payload"] is None:
                raise
            self._damage.note_item(line["id"], error)
            lost.append(line["id"])
            return self._lines([{**line, "payload": None}], lost)
