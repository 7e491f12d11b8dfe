"""A server's parts: the table, the encoder, the threads, and who may use them."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from flowhash.engines import BrowsedEngine
from flowhash.errors import DamagedFileError, ForbiddenError, InputError, StorageError
from flowhash.serve.errors import LOG, RequestError, new_number, only_reads
from flowhash.serve.metrics import Metrics
from flowhash.serve.options import ServeOptions
from flowhash.serve.request_body import number_rows
from flowhash.serve.request_guard import Outbox, RequestGuard
from flowhash.serve.search_executor import QueryBatcher, QueryEncoder, SearchExecutor, SearchQuery
from flowhash.serve.table_health import TableHealth
from flowhash.serve.waiting_line import WaitingLine, WorkerPool
from flowhash.table import (
    MOST_SORTED,
    HashTable,
    Item,
    check_vectors,
    expect_many_searches,
    open_buckets,
    state_of,
)

if TYPE_CHECKING:
    from flowhash.encoder import Encoder

READERS = 4  # threads for what is neither a search nor a write nor an image
LARGEST_BATCH = 64  # queries of a batch; more gain nothing, and all wait until the last is done
REFRESH = 1.0  # seconds
NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")

Result = TypeVar("Result")


class Service:
    """What the routes work with.

    Attributes:
        lines: where requests wait for their turn; what would wait too long is refused there.

    Searches run in two threads: one for those that take well under a millisecond, one for images,
    for searches that open many buckets and for long answers, so that the latter never hold up the
    former. Writes run one after another in a thread of their own.

    Args:
        table: open; whoever opened it closes it.

    Raises:
        InputError: the table is of another encoder.
    """

    def __init__(
        self, table: BrowsedEngine, encoder: Encoder | None, options: ServeOptions
    ) -> None:
        self.table = table
        self.options = options
        self.query_encoder: QueryEncoder | None = None
        if encoder is not None:
            from flowhash.encoder import check_table

            check_table(encoder, table)
            self.query_encoder = QueryEncoder(encoder, options.threads)
        self.outbox = Outbox(options.max_answer)
        self.health = TableHealth(table)
        self.metrics = Metrics(lambda: self.count() or 0, lambda: self.outbox.held)
        self.guard = RequestGuard(
            options, table.writable, self.metrics, self.outbox, self.health, self.expected_wait
        )
        self.stats = table.stats  # which every table keeps until it changes
        # Other engines know of no damage that they could tell.
        self.noting = (self.health.met,) if isinstance(table, HashTable) else ()
        self.executor = SearchExecutor(
            table, self.query_encoder, self.metrics, options.threads, self.outbox, self.health
        )
        limits = (min(options.max_batch, LARGEST_BATCH), options.timeout, options.max_wait)
        self._light = QueryBatcher(self.executor.batch, *limits, "flowhash-search")
        self._heavy = QueryBatcher(self.executor.batch, *limits, "flowhash-wide")
        self._readers = WorkerPool(READERS, "flowhash-read", options.max_wait)
        # What reads many payloads does so one by one: together they would fill the memory.
        self._browser = WorkerPool(1, "flowhash-browse", options.max_wait)
        # Images have one thread of their own: a small file may take half a second to decode.
        self._decoder = WorkerPool(1, "flowhash-decode", options.max_wait)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="flowhash-write")
        self._writing = asyncio.Lock()
        self.lines = {
            "search": self._light.line,
            "wide": self._heavy.line,
            "read": self._readers.line,
            "browse": self._browser.line,
            "decode": self._decoder.line,
            "write": WaitingLine(options.max_wait),
        }
        self.metrics.watch({name: line.expected for name, line in self.lines.items()})
        self.document = b""  # the OpenAPI document, once it was asked for
        self.warm = False
        self.closing = False
        self.broken = False
        self.number = ""  # what the log has the reason under, while it is broken

    @property
    def takes_images(self) -> bool:
        """Whether the encoder takes images."""
        return self.query_encoder is not None and self.query_encoder.images

    def count(self) -> int | None:
        """How many items there are; None in a table that somebody closed."""
        try:
            return len(self.table)
        except StorageError:
            return None

    @property
    def id_words(self) -> str:
        """What the ids of the table are, in words."""
        return "whole numbers" if self.table.id_kind == "int64" else "strings"

    def id_of(self, text: str) -> int | str:
        """A text as an id of the table; what is no number stays a text, which no item has then."""
        if self.table.id_kind != "int64" or NUMBER.fullmatch(text) is None:
            return text
        number = int(text)
        return number if -(1 << 63) <= number < 1 << 63 else text

    def item(self, item: int | str) -> Item:
        """A stored item.

        Raises:
            RequestError: 404 where there is none, 503 where it is damaged.
        """
        try:
            return self.table[item]
        except KeyError as error:
            raise self.no_item(item) from error
        except DamagedFileError as error:  # it cannot be read as a whole; others are served
            self.health.note_item(item, error)
            raise RequestError(
                503,
                f"the item {item!r:.200} is damaged and cannot be shown; delete or add it again, "
                "or restore the table from a copy. The server's log has the reason",
                "damaged",
            ) from error

    def no_item(self, item: int | str) -> RequestError:
        """There is no item with this id."""
        words = self.id_words
        return RequestError(404, f"there is no item {item!r:.200}; ids of this table are {words}")

    def encodable(self, vectors: list[list[float]]) -> NDArray[np.float32]:
        """Vectors that the encoder takes [n, numbers].

        Raises:
            RequestError: 422 where there is no encoder, it takes images, or the numbers do not fit.
        """
        if self.query_encoder is None:
            raise RequestError(
                422,
                "this server has no encoder, so that it cannot search by a vector or add one; send "
                "embedding and buckets (to add: code), or an id",
                "no_encoder",
            )
        if self.takes_images:
            raise RequestError(
                422,
                "this server's encoder takes images; send one as multipart/form-data",
                "no_vectors",
            )
        return number_rows(vectors, self.query_encoder.inputs, "vector")

    def activations_of(self, embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
        """The activations of stored items [n, d], of their embeddings [n, dim].

        Raises:
            RequestError: 422 where there is no encoder, or it takes something else.
        """
        maker = self.query_encoder
        if maker is None:
            raise RequestError(
                422,
                "this server has no encoder, so that it cannot tell how many buckets a recall of a "
                "stored item takes; leave recall out, or send embedding and activations",
                "no_encoder",
            )
        if not maker.encoder.takes_embeddings:
            raise RequestError(
                422,
                f"this server's encoder takes {maker.encoder.preprocessing.kind}, and of a stored "
                "item only the embedding is kept; leave recall out, or send the item itself",
            )
        return maker.activations_of(embeddings)

    def image_size(self) -> tuple[int, int]:
        """Height and width of images that the encoder takes.

        Raises:
            RequestError: 422 where it takes none.
        """
        if self.query_encoder is None or not self.takes_images:
            raise RequestError(
                422,
                "this server's encoder takes vectors, or there is none; send JSON with a vector, "
                "an id, or embedding and buckets",
                "no_images",
            )
        size = self.query_encoder.encoder.preprocessing.size
        assert size is not None
        return size

    def check_batch(self, count: int, name: str) -> None:
        """Refuse more than ``max_batch``."""
        most = self.options.max_batch
        if count > most:
            raise RequestError(
                422, f"{count} {name} at once; expected at most {most}. Send parts", "too_many"
            )

    def readable(self) -> int:
        """How many payloads of the table fill an answer, by their mean; at least one."""
        size = self.options.max_answer
        if not isinstance(self.table, HashTable):
            return size
        segments = [part.segment for part in state_of(self.table).parts]
        rows = sum(segment.rows for segment in segments)
        stored = sum(len(segment.payloads.content) for segment in segments)
        return max(1, size * rows // max(1, stored))

    def check_count(self, count: int) -> None:
        """Refuse to read more payloads at once than an answer can hold: they are in memory.

        Raises:
            RequestError: 413, with how many would do.
        """
        most = self.readable()
        if min(count, len(self.table)) > most:
            raise RequestError(
                413,
                f"count is {count}, and the payloads of {most} items fill an answer of "
                f"{self.options.max_answer} bytes, the most this server sends; ask for at most "
                f"{most}",
                "answer_too_large",
            )

    def check_reachable(self) -> None:
        """Refuse work on an engine whose server is lost: it would wait in vain, and hold up others.

        Raises:
            RequestError: 503, until :meth:`keep_fresh` has reached it again.
        """
        if self.broken and not isinstance(self.table, HashTable):
            raise RequestError(
                503,
                "the server that keeps the table does not answer; try again in a moment. The log "
                f"of this one has the reason under {self.number}",
                "storage",
                {"Retry-After": "1"},
            )

    def expected_wait(self) -> float:
        """Seconds until what comes now would have its turn in the slowest line."""
        return max(line.expected() for line in self.lines.values())

    async def search(self, query: SearchQuery) -> bytes:
        """The answer to a query, together with others that came at the same time.

        Raises:
            RequestError: 503 while the table's server is lost or where it would wait too long, 504
                when it takes too long.
        """
        self.check_reachable()
        encoded = query.order is None and self.takes_images
        slow = encoded or query.compare or query.is_long() or query.is_wide(self.table)
        return await (self._heavy if slow else self._light).ask(query)

    async def read(self, work: Callable[[], Result], alone: bool = False) -> Result:
        """Run something that reads in a thread; what reads many payloads does so ``alone``.

        Raises:
            RequestError: 503 while the table's server is lost or where it would wait too long, 504
                when it takes too long.
        """
        self.check_reachable()
        pool = self._browser if alone else self._readers
        pool.line.check()
        return await self._within(self.deadline(), pool, work)

    async def damaged(self) -> tuple[int, int]:
        """How many places, and how many items' payloads, are known to be damaged still.

        What is known is read again in a thread, now and then; where others keep the threads busy,
        the figures are those from before: whoever asks for the health is not to wait for them.
        """
        if self.health.stale:
            soon = asyncio.get_running_loop().time() + REFRESH
            with contextlib.suppress(RequestError):
                await self._within(soon, self._readers, self.health.look_again)
        return self.health.counts()

    async def decode(self, deadline: float, work: Callable[[], Result]) -> Result:
        """Decode an image, after those of others.

        Raises:
            RequestError: 504 when it is not done by ``deadline``.
        """
        return await self._within(deadline, self._decoder, work)

    def deadline(self) -> float:
        """When something that begins now is given up, by the event loop's clock."""
        return asyncio.get_running_loop().time() + self.options.timeout

    async def _within(
        self, deadline: float, pool: WorkerPool, work: Callable[[], Result]
    ) -> Result:
        job = pool.submit(work)
        try:
            return await asyncio.wait_for(job, deadline - asyncio.get_running_loop().time())
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise RequestError(
                504, f"it took longer than {self.options.timeout:g} s; ask for less, or try again"
            ) from error

    async def write(self, work: Callable[[], Result]) -> Result:
        """Run something that writes, alone. Once begun it is waited for, however long it takes.

        Raises:
            RequestError: 403 where the table's server refuses changes, 503 while it is lost or
                where it would wait too long, 504 when others wrote too long; nothing was changed
                then.
        """
        self.check_reachable()
        line = self.lines["write"]
        line.check()
        line.ahead += 1
        try:
            await asyncio.wait_for(self._writing.acquire(), self.options.timeout)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise RequestError(
                504,
                f"others were writing for {self.options.timeout:g} s; nothing was changed. Try "
                "again, and send many items in one request",
            ) from error
        finally:
            line.ahead -= 1
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            return await loop.run_in_executor(self._writer, work)
        except ForbiddenError as error:
            LOG.warning("a change was refused: %s", error)
            raise only_reads() from error
        finally:
            line.took(loop.time() - begun)
            self._writing.release()

    def warm_up(self) -> None:
        """Search a little in every way, and add a little elsewhere, so that nobody waits later.

        Raises:
            StorageError: the table cannot be read; what is damaged in it is only noted.
        """
        if self.warm:
            return
        self.warm = True
        expect_many_searches()
        uncounted = Metrics(lambda: 0)
        executor = SearchExecutor(
            self.table, self.query_encoder, uncounted, self.options.threads, health=self.health
        )
        ones = np.ones((2, self.table.buckets))  # somebody may calibrate the table later
        open_buckets(ones.astype(np.float32), ones[0].astype(np.int64), 1.0, 0.0)
        for query in self._trial_queries():
            for answer in executor.batch([query]):
                if isinstance(answer, DamagedFileError):
                    self.health.met(None, answer)
        if isinstance(self.table, HashTable):
            _try_searches(self.table)
            if self.guard.writable:
                _try_changes(self.table)

    def _trial_queries(self) -> Iterator[SearchQuery]:
        table, random = self.table, np.random.default_rng(0)
        inputs = None if self.query_encoder is None else self.query_encoder.inputs
        for count in (1, 40):  # a few queries and a batch take different kernels
            embeddings = random.normal(size=(count, table.dim)).astype(np.float32)
            order = np.tile(np.arange(table.buckets, dtype=np.int32), (count, 1))
            for probe, at_least in ((None, None), (None, 1), (table.buckets, None)):
                yield SearchQuery(embeddings, order, 10, probe, at_least, True)
            yield SearchQuery(embeddings[:1], order[:1], 10, None, None, True, compare=True)
            if self.takes_images:
                rows = random.integers(0, 256, (min(count, 2), *self.image_size(), 3), np.uint8)
                yield SearchQuery(rows, None, 10, None, None, False)
            elif inputs is not None:
                rows = random.normal(size=(count, inputs)).astype(np.float32)
                yield SearchQuery(rows, None, 10, None, None, False)

    async def keep_fresh(self) -> None:
        """Look for what others have written or permitted, about once a second, for ever."""
        while True:
            await asyncio.sleep(REFRESH)
            try:
                await self._readers.submit(self._refresh)
                self.guard.see(self.table.writable)
                if self.broken:
                    LOG.warning("the table can be read again")
                self.broken = False
            except Exception as error:  # whatever it is, the next look may succeed
                if not self.broken:
                    known = isinstance(error, (InputError, StorageError))
                    self.number = new_number()
                    LOG.error(
                        "the table cannot be read anew, number %s: %s",
                        self.number,
                        error,
                        exc_info=None if known else error,
                    )
                self.broken = True

    def _refresh(self) -> None:
        """See what others have written; codes of another encoder are none for this server's."""
        self.table.refresh()
        if self.query_encoder is not None:
            check_vectors(self.table.encoder, self.query_encoder.encoder.fingerprint)

    def close(self) -> None:
        """Wait for what is in work."""
        self.closing = True
        self._light.close()
        self._heavy.close()
        for pool in (self._readers, self._browser, self._decoder):
            pool.close()
        self._writer.shutdown(wait=True)


def service_of(request: Request) -> Service:
    """The service behind a request."""
    service: Service = request.scope["app"].state.service
    return service


def _try_searches(table: HashTable) -> None:
    """Search in a table like this one, for few neighbours and for many: kernels of their own."""
    dim, random = table.dim, np.random.default_rng(0)
    with HashTable.create(buckets=1, dim=dim, metric=table.metric, dtype=table.dtype) as small:
        small.add([[0]], random.normal(size=(1, dim)))
        for top in (1, MOST_SORTED + 1):
            small.search([[0]], random.normal(size=(1, dim)), top=top)


def _try_changes(table: HashTable) -> None:
    """Add, replace, delete and merge in a small table like this one, in a folder that goes away."""
    try:
        with TemporaryDirectory(prefix="flowhash-", ignore_cleanup_errors=True) as folder:
            _change(table, f"{folder}/table")
    except OSError:  # nothing can be written there; what writes files is compiled later then
        _change(table, None)


def _change(table: HashTable, path: str | None) -> None:
    numbers = table.id_kind == "int64"
    with HashTable.create(
        path, buckets=table.buckets, dim=table.dim, active=table.active, metric=table.metric,
        dtype=table.dtype, ids=table.id_kind,
    ) as small:  # fmt: skip
        codes = np.arange(table.active)[None].repeat(3, 0)
        embeddings = np.eye(3, table.dim, dtype=np.float32) + 1
        ids = [2, 0, 0] if numbers else ["c", "a", "a"]
        payloads = [{"row": row} for row in range(3)]
        small.add(codes, embeddings, None if numbers else ids, payloads)
        small.add(codes, embeddings, ids, payloads)
        small.delete(ids[:1])
        small.compact()
