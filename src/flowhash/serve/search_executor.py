"""From queries to answers: gathered, encoded, searched in the table together, and written."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.engines import BrowsedEngine
from flowhash.errors import DamagedFileError, InputError
from flowhash.serve.errors import RequestError, refused
from flowhash.serve.metrics import Metrics
from flowhash.serve.options import RequestLimits
from flowhash.serve.request_guard import Outbox
from flowhash.serve.schemas.responses import (
    ExhaustiveAnswer,
    Hit,
    QueryAnswer,
    Ranked,
    SearchAnswer,
    as_json,
)
from flowhash.serve.table_health import TableHealth
from flowhash.serve.waiting_line import WaitingLine
from flowhash.table import (
    ROW_BITS,
    ROW_MASK,
    SMALL_BATCH,
    HashTable,
    Hits,
    TableState,
    buckets_at,
    opened_for_recall,
    opened_in_state,
    search_state,
    state_of,
)

if TYPE_CHECKING:
    from flowhash.encoder import Encoded, Encoder

IMAGES_AT_ONCE = 64  # more would need more memory, and gain nothing
WIDE = 16  # times k buckets: a search that opens more waits in a line of its own
LONG = 256  # hits with payloads: an answer with more is written in that line, too
IN_ONE_GO = 256  # hits without payloads: an answer with more is written piece by piece
REPEATS = 3  # of a search whose time is compared; the fastest counts
PIECE = 1 << 17  # bytes of hits, about, that are in memory before they are written
LINE = 256  # bytes of a hit without its payload, about

Work = Callable[[Sequence["SearchQuery"]], Sequence[bytes | BaseException]]
Waiting = tuple["SearchQuery", "asyncio.Future[bytes]"]
Payload = dict[str, Any] | None
PayloadAt = Callable[[int, int], tuple[int, Payload]]  # of a hit, by row and column


class QueryEncoder:
    """Makes what ``Encoder.encode`` makes, of checked arrays, in many threads at once.

    torch is imported here only: a server without an encoder does not need it.

    ``Encoder.encode`` looks at every part of the networks before and after each batch, because they
    may be in training. A server's are not.

    Args:
        encoder: is moved to the GPU if there is one.
        threads: of torch, for one batch. None gives images all cores; for vectors a second thread
            costs more than it brings.
    """

    def __init__(self, encoder: Encoder, threads: int | None) -> None:
        import torch

        from flowhash.encoder import Encoded
        from flowhash.networks import device_of

        self._torch, self._encoded = torch, Encoded
        self.encoder = encoder
        self.inputs = encoder.input_dim  # looked at by every request, and not quick to find
        self._device = device_of("auto")
        self._networks = encoder.networks.to(self._device).eval()
        self.images = encoder.preprocessing.kind == "images"
        self._threads = threads or (torch.get_num_threads() if self.images else 1)
        self._local = threading.local()

    def __call__(self, items: NDArray[np.float32] | NDArray[np.uint8]) -> Encoded:
        """Embeddings and activations of vectors [n, dim] or images [n, height, width, 3]."""
        few = self.encoder.encode_few(items)
        if few is not None:
            return few
        self._tell_thread()
        torch, encoder = self._torch, self.encoder
        step = IMAGES_AT_ONCE if self.images else len(items)
        parts = []
        with torch.inference_mode():
            for start in range(0, len(items), step):
                ready = torch.from_numpy(encoder.preprocessing(items[start : start + step]))
                parts.append(self._networks.both(ready.to(self._device)))
            embeddings, activations = (
                _joined([np.ascontiguousarray(part.float().cpu().numpy()) for part in side])
                for side in zip(*parts, strict=True)
            )
        return self._encoded(embeddings, activations, encoder.active, encoder.fingerprint)

    def activations_of(self, embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
        """Those of stored items [n, d], where the encoder takes their embeddings [n, dim]."""
        if self.encoder.base is None:
            return embeddings
        if self.encoder.takes_embeddings and self.encoder.linear is not None:
            few = self.encoder.linear.activations_of(np.array(embeddings))
            if few is not None:
                return few
        self._tell_thread()
        with self._torch.inference_mode():
            ready = self._torch.from_numpy(np.array(embeddings))  # a copy: torch wants to write
            made = self._networks.hash(ready.to(self._device))
        return np.ascontiguousarray(made.float().cpu().numpy())

    def _tell_thread(self) -> None:
        if not hasattr(self._local, "told"):
            # Each thread has its own number. One that was not told has a team of helpers turn
            # idly for every small product, which took eighty times as long.
            self._torch.set_num_threads(self._threads)
            self._local.told = True


@dataclass(eq=False)
class SearchQuery:
    """What one request asks for.

    Attributes:
        rows: vectors or images to encode, or, with ``order``, embeddings [n, …].
        order: the buckets of each row in the order to open them [n, m], with ``recall`` its
            activations [n, d]; None: the encoder's.
        top: hits of each row.
        probe: buckets to open; None: k.
        at_least: open more until so many items are found.
        payloads: whether to show what is stored with the hits.
        recall: open as many buckets as this takes, in place of ``probe``.
        without: an id that is not to be among the hits.
        picture: the address of the query's own picture.
        compare: with what opening every bucket finds.
        encoder: the fingerprint of the encoder that its buckets are of; None is not compared.
    """

    rows: NDArray[Any]
    order: NDArray[Any] | None
    top: int
    probe: int | None
    at_least: int | None
    payloads: bool
    recall: float | None = None
    without: int | str | None = None
    picture: str | None = None
    compare: bool = False
    encoder: str | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def group(self) -> Hashable:
        """Queries that one call of ``HashTable.search`` can answer; what is timed is alone."""
        if self.compare:
            return id(self)
        width = None if self.order is None else self.order.shape[1]
        kind = (width, self.rows.shape[1:], self.encoder)
        # How many buckets a recall takes depends on top, not on what is left out.
        recall = None if self.recall is None else (self.recall, self.top)
        return (self.wanted, self.probe, self.at_least, self.payloads, recall, *kind)

    @property
    def wanted(self) -> int:
        """Hits to search for: one more where one may have to be left out."""
        return self.top if self.without is None else self.top + 1

    def is_wide(self, table: BrowsedEngine) -> bool:
        """Whether it may open so many buckets that it takes long."""
        opened: float = self.probe or 0
        if self.recall is not None:
            opened = _expected_opened(table, self.recall, self.top)
        return self.at_least is not None or opened > WIDE * table.active

    def is_long(self) -> bool:
        """Whether its answer may have so many payloads that writing it takes long."""
        return self.payloads and self.most_hits > LONG

    @property
    def most_hits(self) -> int:
        """That its answer may have."""
        return len(self.rows) * self.top


@dataclass(eq=False)
class BatchHits:
    """What a batch found.

    Attributes:
        hits: of the table, with their buckets where these and the payloads are to be shown.
        payload_at: reads the payload of a hit, by row and column, with the bytes that it takes;
            payloads may be large, so that they are read one by one while the answer is written.
        opened: the buckets that each query opened.
        counts: of the hits of each query.
        scanned: items, by each query.
        milliseconds: that the table took.
    """

    hits: Hits
    payload_at: PayloadAt
    opened: list[list[int]]
    counts: list[int]
    scanned: list[int]
    milliseconds: float


class SearchExecutor:
    """Answers queries from a table.

    Args:
        threads: of a search; None lets the table choose, but one thread for batches that are over
            in a millisecond: the other cores have requests to read.
    """

    def __init__(
        self,
        table: BrowsedEngine,
        encoder: QueryEncoder | None,
        metrics: Metrics,
        threads: int | None,
        outbox: Outbox | None = None,
        health: TableHealth | None = None,
    ) -> None:
        self._table = table
        self._encoder = encoder
        self._metrics = metrics
        self._threads = threads
        self._outbox = outbox or Outbox(RequestLimits.max_answer)
        self._health = health or TableHealth(table)

    def batch(self, queries: Sequence[SearchQuery]) -> list[bytes | BaseException]:
        """The answers to queries of one group, as JSON; one that fails never fails the others."""
        try:
            return self._together(queries)
        except (InputError, DamagedFileError) as error:
            if len(queries) == 1:
                return [refused(error) if isinstance(error, InputError) else error]
        # One of them cannot be searched, such as a vector of zeros by cosine, or one that opens a
        # damaged bucket: each by itself.
        return [answer for query in queries for answer in self.batch([query])]

    def _together(self, queries: Sequence[SearchQuery]) -> list[bytes | BaseException]:
        first = queries[0]  # how the table is searched is the same for all of them
        order, embeddings = self._prepared(queries)
        found = self._find(first, order, embeddings)
        self._metrics.searched(len(embeddings), sum(found.scanned))
        # What is compared is alone, and beside the same kernel with every bucket open.
        beside = self._find_everywhere(first, embeddings) if first.compare else None
        answers: list[bytes | BaseException] = []
        start = 0
        for query in queries:
            try:
                answers.append(self._outbox.collect(self._pieces(query, found, start, beside)))
            except RequestError as error:  # too large; without what it has led through
                answers.append(error.with_traceback(None))
            start += len(query)
        return answers

    def _prepared(self, queries: Sequence[SearchQuery]) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The buckets to open, or activations for a recall, and the embeddings."""
        rows = _joined([query.rows for query in queries])
        orders = [query.order for query in queries if query.order is not None]
        if orders:
            return _joined(orders), rows
        assert self._encoder is not None  # or the queries would not have been accepted
        made, first = self._encoder(rows), queries[0]
        if first.recall is not None:
            return made.activations, made.embeddings
        wanted = None if first.at_least is not None else first.probe or self._table.active
        return made.ordered_buckets(wanted), made.embeddings

    def _find(
        self, query: SearchQuery, asked: NDArray[Any], embeddings: NDArray[np.float32]
    ) -> BatchHits:
        """Search the table; hits, buckets and payloads are of one state of it."""
        table = self._table
        threads = self._threads or (None if query.is_wide(table) else 1)
        state = state_of(table) if isinstance(table, HashTable) else None
        refuse_other_codes(table.encoder if state is None else state.encoder, query.encoder)
        times = []
        for _ in range(REPEATS if query.compare else 1):
            start = time.perf_counter()
            order, probe, further = self._opening(query, state, asked)
            if isinstance(table, HashTable) and state is not None:
                hits, places = _search_state(
                    table, state, query, order, probe, further, embeddings, threads
                )
            else:
                hits = table.search(
                    order, embeddings, query.wanted, probe=probe, at_least=further,
                    threads=threads, payloads=query.payloads, buckets=query.payloads,
                )  # fmt: skip
            times.append((time.perf_counter() - start) * 1e3)
        payload_at = _payloads_of(hits)
        if query.payloads and state is not None:
            hits.buckets = buckets_at(state, places, table.active)
            payload_at = _payloads_in(state, places)
        lines = zip(order.tolist(), hits.opened.tolist(), strict=True)
        return BatchHits(
            hits, payload_at, [line[:count] for line, count in lines], hits.counts.tolist(),
            hits.scanned.tolist(), min(times),
        )  # fmt: skip

    def _opening(
        self, query: SearchQuery, state: TableState | None, asked: NDArray[Any]
    ) -> tuple[NDArray[np.int32], int | NDArray[np.int32] | None, int | None]:
        """The buckets of each row in order, how many of them are opened, and for how many items."""
        table, recall, further = self._table, query.recall, query.at_least
        if recall is None:
            return asked, query.probe, further
        if isinstance(table, HashTable) and state is not None:
            return opened_in_state(table, state, asked, recall, query.top, further)
        order, opened = opened_for_recall(
            table, asked, recall, query.top, None, None, further, warn=False
        )
        return order, opened, further

    def _find_everywhere(
        self, query: SearchQuery, embeddings: NDArray[np.float32]
    ) -> ExhaustiveAnswer:
        """What opening every bucket finds for one query, and how long that takes."""
        table = self._table
        order = np.arange(table.buckets, dtype=np.int32)[None]
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            hits = table.search(
                order, embeddings, query.wanted, probe=table.buckets, threads=self._threads
            )
            times.append((time.perf_counter() - start) * 1e3)
        others = hits
        if query.without is not None:
            others = hits.without(np.array([query.without], hits.ids.dtype))
        count = int(others.counts[0])
        ranked = Ranked(others.ids[0, :count].tolist(), list(others.distances[0, :count]))
        return ExhaustiveAnswer(round(min(times), 4), int(hits.scanned[0]), [ranked])

    def _pieces(
        self, query: SearchQuery, found: BatchHits, start: int, beside: ExhaustiveAnswer | None
    ) -> Iterable[bytes]:
        """The answer to a query whose rows begin at ``start``."""
        rows = range(start, start + len(query))
        answer = SearchAnswer(
            len(self._table), round(found.milliseconds, 4), [], query.recall, beside, damaged=[]
        )
        lines = [
            QueryAnswer([], found.opened[row], found.scanned[row], query.picture) for row in rows
        ]
        if query.payloads or query.most_hits > IN_ONE_GO:
            return self._written(query, found, rows, answer, lines)
        answer.answers = lines
        for row, line in zip(rows, lines, strict=True):
            line.hits = [
                Hit.of(item, None, None, distance)
                for _, item, distance in _ranked(query, found, row)
            ]
        return (as_json(answer),)

    def _written(
        self,
        query: SearchQuery,
        found: BatchHits,
        rows: Sequence[int],
        answer: SearchAnswer,
        lines: Sequence[QueryAnswer],
    ) -> Iterator[bytes]:
        """An answer that may be large, piece by piece: its hits are written, and let go."""
        head_of_all, tail_of_all = answer.json_around("answers")
        yield head_of_all
        for row, line in zip(rows, lines, strict=True):
            head, tail = line.json_around("hits")
            yield head if row == rows[0] else b"," + head
            for number, piece in enumerate(self._hits(query, found, row, answer.damaged)):
                yield b"," + piece if number else piece
            yield tail
        yield answer.json_around("answers")[1] if answer.damaged else tail_of_all

    def _hits(
        self, query: SearchQuery, found: BatchHits, row: int, lost: list[int | str]
    ) -> Iterator[bytes]:
        """The hits of a row as JSON, some at a time: never all of their payloads in memory.

        ``lost`` is given the ids of those whose payload cannot be shown.
        """
        buckets = None if found.hits.buckets is None else found.hits.buckets[row].tolist()
        lines: list[Hit] = []
        weight = 0
        for hit, item, distance in _ranked(query, found, row):
            code, payload = None, None
            weight += LINE
            if buckets is not None:
                code = [bucket for bucket in buckets[hit] if bucket >= 0]
                try:
                    size, payload = found.payload_at(row, hit)
                    weight += size
                except DamagedFileError as error:  # the hit itself is sound
                    self._health.note_item(item, error)
                    lost.append(item)
            lines.append(Hit.of(item, payload, code, distance))
            if weight > PIECE:
                yield self._lines(lines, lost)
                lines, weight = [], 0
        if lines:
            yield self._lines(lines, lost)

    def _lines(self, lines: list[Hit], lost: list[int | str]) -> bytes:
        """Hits as JSON, without brackets."""
        try:
            return as_json(lines)[1:-1]
        except (RecursionError, ValueError) as error:
            if len(lines) > 1:
                return b",".join(self._lines([line], lost) for line in lines)
            (line,) = lines
            if line.payload is None:
                raise
            self._health.note_item(line.id, error)
            lost.append(line.id)
            line.payload = None
            return self._lines([line], lost)


def refuse_other_codes(encoder: str | None, asked: str | None) -> None:
    """Refuse what is of another encoder than the items' codes, which were made anew meanwhile.

    Raises:
        RequestError: 503, with the code ``other_encoder``.
    """
    if None not in (encoder, asked) and encoder != asked:
        raise RequestError(
            503,
            "the items have codes of another encoder by now; try again, and start the server again "
            "with that encoder if this stays so",
            "other_encoder",
            {"Retry-After": "1"},
        )


def _search_state(
    table: HashTable,
    state: TableState,
    query: SearchQuery,
    order: NDArray[np.int32],
    probe: int | NDArray[np.int32] | None,
    further: int | None,
    embeddings: NDArray[np.float32],
    threads: int | None,
) -> tuple[Hits, NDArray[np.int64]]:
    """The hits, and their places in the state."""
    # The table's code for a few queries takes half the time of that for batches, unless many
    # queries of a batch open the same bucket.
    probes = np.full(len(order), table.active if probe is None else probe)
    most = int(probes.max())
    step = max(1, SMALL_BATCH // most)
    apart = len(order) * most <= table.buckets
    if query.is_wide(table) or not apart or len(state.parts) != 1:
        step = len(order)
    found = [
        search_state(
            table, state, order[start : start + step], embeddings[start : start + step],
            query.wanted, at_least=further, threads=threads,
            probe=probe if query.recall is None else probes[start : start + step],
        )
        for start in range(0, len(order), step)
    ]  # fmt: skip
    return Hits.concatenate([part for part, _ in found]), _joined([places for _, places in found])


def _expected_opened(table: BrowsedEngine, recall: float, top: int) -> float:
    """How many buckets a recall opens on average; many, where only the table's server knows."""
    if not isinstance(table, HashTable):
        return math.inf
    known = table.calibration
    try:
        return 0 if known is None else known.expected(recall, top)[1]
    except InputError:  # which the search will say
        return 0


def _ranked(query: SearchQuery, found: BatchHits, row: int) -> Iterable[tuple[int, int | str, Any]]:
    """Column, id and distance of the hits of a row that are shown."""
    count = found.counts[row]
    ids, distances = found.hits.ids[row, :count].tolist(), found.hits.distances[row, :count]
    lines = zip(range(count), ids, distances, strict=True)
    if query.without is None:
        return lines
    return [line for line in lines if line[1] != query.without][: query.top]


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One after the other, without a copy of a single one."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _payloads_of(hits: Hits) -> PayloadAt:
    """Payloads that came with the hits; an engine reads them all at once."""
    payloads = hits.payloads or ()
    return lambda row, hit: (0, payloads[row][hit])


def _payloads_in(state: TableState, places: NDArray[np.int64]) -> PayloadAt:
    """Payloads as they are stored, of the state that was searched."""

    def payload_at(row: int, hit: int) -> tuple[int, Payload]:
        place = int(places[row, hit])
        segment, there = state.parts[place >> ROW_BITS].segment, place & ROW_MASK
        offsets = segment.payloads.offsets
        size = int(offsets[there + 1] - offsets[there]) if len(offsets) else 0
        return size, segment.payload_at(there)

    return payload_at


class QueryBatcher:
    """One thread that answers concurrent queries together.

    While it works on one batch, the next gathers; whoever comes to an idle server is searched at
    once. There is no waiting for company, and no batch is larger than what has come meanwhile. The
    thread takes the next batch itself: the event loop may have a thousand requests to read before
    it would give one. Used from one event loop.

    Args:
        work: answers a batch, in the thread: bytes or an exception for each.
        most: rows in a batch, unless one query alone has more.
        timeout: seconds until a query is given up.
        max_wait: seconds that a query may expect to wait for its batch.
        name: of the thread.
    """

    def __init__(self, work: Work, most: int, timeout: float, max_wait: float, name: str) -> None:
        self.line = WaitingLine(max_wait)
        self._work = work
        self._most = most
        self._timeout = timeout
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._groups: OrderedDict[Hashable, deque[Waiting]] = OrderedDict()
        self._lock = threading.Lock()  # of what follows
        self._rows = 0
        self._running = False
        self._closed = False

    async def ask(self, query: SearchQuery) -> bytes:
        """The answer to one query.

        Raises:
            RequestError: 503 when it would wait too long, 504 when it took too long; or what the
                work made of the query.
        """
        self.line.check()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        with self._lock:
            self._groups.setdefault(query.group, deque()).append((query, future))
            self._waits(len(query))
            idle, self._running = not self._running, True
        if idle:  # begin after the other requests of this moment
            loop.call_soon(self._pool.submit, self._work_off, loop)
        timer = loop.call_later(self._timeout, self._expire, future)
        try:
            return await future
        finally:
            timer.cancel()

    def close(self) -> None:
        """Wait for the batch in work."""
        self._closed = True
        self._pool.shutdown(wait=True)

    def _expire(self, future: asyncio.Future[bytes]) -> None:
        if not future.done():
            future.set_exception(
                RequestError(
                    504,
                    f"the search took longer than {self._timeout:g} s; ask for less (top, probe, "
                    "at_least, fewer vectors), or try again when the server has less to do",
                )
            )

    def _waits(self, rows: int) -> None:
        """Count rows that wait; one that comes now goes with the next batch that is not full."""
        self._rows += rows
        self.line.ahead = self._rows // self._most + max(0, len(self._groups) - 1)

    def _work_off(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer batch after batch, in the thread, until nobody waits."""
        while True:
            with self._lock:
                batch = [] if self._closed else self._next()
                self._running = bool(batch)
            if not batch:
                return
            begun = time.perf_counter()
            answers = self._answers([query for query, _ in batch])
            rows = sum(len(query) for query, _ in batch)
            self.line.took(time.perf_counter() - begun, max(1.0, rows / self._most))
            if not loop.is_closed():  # or the server was forced to stop
                loop.call_soon_threadsafe(self._finish, batch, answers)

    def _answers(self, queries: Sequence[SearchQuery]) -> Sequence[bytes | BaseException]:
        try:
            return self._work(queries)
        except BaseException as error:
            return [error] * len(queries)

    def _next(self) -> list[Waiting]:
        """Queries of the group that waits longest; those that gave up are left out."""
        batch: list[Waiting] = []
        rows = 0
        while self._groups and not batch:
            group, waiting = self._groups.popitem(last=False)
            while waiting and (not batch or rows + len(waiting[0][0]) <= self._most):
                query, future = waiting.popleft()
                self._waits(-len(query))
                if not future.done():
                    batch.append((query, future))
                    rows += len(query)
            if waiting:
                self._groups[group] = waiting  # at the end: the other groups come first
        return batch

    def _finish(self, batch: list[Waiting], answers: Sequence[bytes | BaseException]) -> None:
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, bytes):
                future.set_result(answer)
            else:
                future.set_exception(answer)
