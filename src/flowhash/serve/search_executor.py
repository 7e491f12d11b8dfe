"""From a query to an answer: the table is asked, and what it found is put into words."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.engines import BrowsedEngine
from flowhash.errors import DamagedFileError, InputError
from flowhash.serve.damage import Damage
from flowhash.serve.errors import ProblemError, problem_of
from flowhash.serve.metrics import Metrics
from flowhash.serve.options import MAX_ANSWER
from flowhash.serve.outbox import Draft, Outbox
from flowhash.serve.schemas.responses import as_json, described
from flowhash.table import (
    ROW_BITS,
    ROW_MASK,
    SMALL_BATCH,
    HashTable,
    Hits,
    TableState,
    codes_at,
    search_state,
    state_of,
)

if TYPE_CHECKING:
    from flowhash.serve.query_encoder import Embedder

WIDE = 16  # times k buckets: a search that opens more waits in a line of its own
LONG = 256  # hits with payloads: an answer with more is written in that line, too
REPEATS = 3  # of a search whose time is compared; the fastest counts
NOWHERE = np.empty(0, np.int64)


PayloadAt = Callable[[int], tuple[int, "dict[str, Any] | None"]]


@dataclass(eq=False)
class Query:
    """What one request asks for.

    Attributes:
        rows: vectors or images to encode, or, with ``order``, embeddings [n, …].
        order: the buckets of each row in the order to open them [n, m]; None: the encoder's.
        top: hits of each row.
        probe: buckets to open; None: k.
        at_least: open more until so many items are found.
        payloads: whether to show what is stored with the hits.
        without: an id that is not to be among the hits.
        picture: the address of the query's own picture.
        compare: with what opening every bucket finds.
    """

    rows: NDArray[Any]
    order: NDArray[np.int32] | None
    top: int
    probe: int | None
    at_least: int | None
    payloads: bool
    without: int | str | None = None
    picture: str | None = None
    compare: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def group(self) -> Hashable:
        """Queries that one call of ``HashTable.search`` can answer; what is timed is alone."""
        if self.compare:
            return id(self)
        width = None if self.order is None else self.order.shape[1]
        return (self.wanted, self.probe, self.at_least, self.payloads, width, self.rows.shape[1:])

    @property
    def wanted(self) -> int:
        """Hits to search for: one more where one may have to be left out."""
        return self.top if self.without is None else self.top + 1


@dataclass(eq=False)
class Found:
    """What a batch found.

    Attributes:
        hits: of the table.
        codes: the buckets of all hits, one after the other, where they are to be shown.
        payload_at: reads the payload of one of these, with the bytes that it takes; payloads may
            be large, so that they are read one by one while the answer is written.
        opened: the buckets that each query opened.
        milliseconds: that the table took.
    """

    hits: Hits
    codes: list[list[int] | None] | None
    payload_at: PayloadAt
    opened: list[list[int]]
    milliseconds: float


def is_wide(query: Query, table: BrowsedEngine) -> bool:
    """Whether a search may open so many buckets that it takes long."""
    return query.at_least is not None or (query.probe or 0) > WIDE * table.active


def is_long(query: Query) -> bool:
    """Whether an answer may have so many payloads that writing it takes long."""
    return query.payloads and len(query) * query.top > LONG


def find(
    table: BrowsedEngine,
    query: Query,
    order: NDArray[np.int32],
    embeddings: NDArray[np.float32],
    threads: int | None,
    repeats: int = 1,
) -> Found:
    """Search the table.

    Args:
        table: that is searched.
        query: how it is searched.
        order: buckets to open [n, m].
        embeddings: [n, dim].
        threads: None lets the table choose, but one for what is over in a millisecond: the other
            cores have requests to read.
        repeats: how often, to measure; the fastest time is told.
    """
    state = state_of(table) if isinstance(table, HashTable) else None
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        hits, places = _hits(table, state, query, order, embeddings, threads)
        times.append((time.perf_counter() - start) * 1e3)
    codes = None
    payload_at: PayloadAt = _no_payload
    if query.payloads and state is not None:
        codes, payload_at = _stored(state, places)
    elif query.payloads:
        lines = zip(hits.ids.tolist(), hits.counts.tolist(), strict=True)
        codes = table.codes_of([item for line, count in lines for item in line[:count]])
        payload_at = _payloads_of(hits)
    opened = [
        line[:count] for line, count in zip(order.tolist(), hits.opened.tolist(), strict=True)
    ]
    return Found(hits, codes, payload_at, opened, min(times))


def _no_payload(place: int) -> tuple[int, dict[str, Any] | None]:
    return 0, None


def _payloads_of(hits: Hits) -> PayloadAt:
    """Payloads that came with the hits; an engine reads them all at once."""
    payloads = [payload for line in hits.payloads or () for payload in line]
    return lambda place: (0, payloads[place])


def _stored(
    state: TableState, places: NDArray[np.int64]
) -> tuple[list[list[int] | None], PayloadAt]:
    """The buckets of hits, and their payloads as they are stored; both of the state searched.

    Args:
        state: that was searched.
        places: of the hits in it, -1 where there is none [q, top].
    """
    found = places[places >= 0]
    parts, rows = found >> ROW_BITS, found & ROW_MASK
    codes = codes_at(state, parts, rows)
    where = list(zip(parts.tolist(), rows.tolist(), strict=True))

    def payload_at(place: int) -> tuple[int, dict[str, Any] | None]:
        part, row = where[place]
        segment = state.parts[part].segment
        offsets = segment.payloads.offsets
        size = int(offsets[row + 1] - offsets[row]) if len(offsets) else 0
        return size, segment.payload_at(row)

    return codes, payload_at


def find_everywhere(
    table: BrowsedEngine, query: Query, embeddings: NDArray[np.float32], threads: int | None
) -> dict[str, Any]:
    """What opening every bucket finds for one query, and how long that takes, for an answer."""
    order = np.arange(table.buckets, dtype=np.int32)[None]
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        hits = table.search(order, embeddings, query.wanted, probe=table.buckets, threads=threads)
        times.append((time.perf_counter() - start) * 1e3)
    count = int(hits.counts[0])
    pairs = zip(hits.ids[0, :count].tolist(), hits.distances[0, :count], strict=True)
    kept = [pair for pair in pairs if query.without is None or pair[0] != query.without]
    kept = kept[: query.top]
    answer = {"ids": [pair[0] for pair in kept], "distances": [pair[1] for pair in kept]}
    return {
        "milliseconds": round(min(times), 4),
        "scanned": int(hits.scanned[0]),
        "answers": [answer],
    }


def _hits(
    table: BrowsedEngine,
    state: TableState | None,
    query: Query,
    order: NDArray[np.int32],
    embeddings: NDArray[np.float32],
    threads: int | None,
) -> tuple[Hits, NDArray[np.int64]]:
    """The hits, and their places in the state of a table of ours; other engines have neither."""
    wide = is_wide(query, table)
    threads = threads or (None if wide else 1)
    if not isinstance(table, HashTable) or state is None:
        hits = table.search(
            order, embeddings, query.wanted, probe=query.probe, at_least=query.at_least,
            threads=threads, payloads=query.payloads,
        )  # fmt: skip
        return hits, NOWHERE

    def search(part: slice) -> tuple[Hits, NDArray[np.int64]]:
        return search_state(
            table, state, order[part], embeddings[part], query.wanted, probe=query.probe,
            at_least=query.at_least, threads=threads,
        )  # fmt: skip

    # The table's code for a few queries takes half the time of that for batches, unless many
    # queries of a batch open the same bucket.
    step = max(1, SMALL_BATCH // (query.probe or table.active))
    apart = len(order) * (query.probe or table.active) <= table.buckets
    if wide or not apart or len(order) <= step or len(state.parts) != 1:
        return search(slice(None))
    found = [search(slice(start, start + step)) for start in range(0, len(order), step)]
    parts = [hits for hits, _ in found]
    return Hits(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.distances for part in parts]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.scanned for part in parts]),
        np.concatenate([part.opened for part in parts]),
    ), np.concatenate([places for _, places in found])


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
