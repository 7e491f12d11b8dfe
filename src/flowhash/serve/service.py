"""A server's parts: the table, the encoder, the threads, and who may use them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from flowhash.engines import BrowsedEngine
from flowhash.errors import ForbiddenError, StorageError
from flowhash.serve.damage import Damage
from flowhash.serve.errors import LOG, ProblemError, new_number, only_reads
from flowhash.serve.metrics import Metrics
from flowhash.serve.options import ServeOptions
from flowhash.serve.outbox import Outbox
from flowhash.serve.query_batcher import Batcher
from flowhash.serve.request_guard import Gate
from flowhash.serve.search_executor import Query, Searching, is_long, is_wide
from flowhash.table import CachedStats, HashTable

if TYPE_CHECKING:
    from flowhash.encoder import Encoder
    from flowhash.serve.query_encoder import Embedder

READERS = 4  # threads for what is neither a search nor a write nor an image
REFRESH = 1.0  # seconds

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Service:
    """What the routes work with.

    Searches run in two threads: one for those that take well under a millisecond, one for images,
    for searches that open many buckets and for long answers, so that the latter never hold up the
    former. Writes run one after another in a thread of their own.

    Args:
        table: open; whoever opened it closes it.
        encoder: None where there is none.
        options: of the server.

    Raises:
        InputError: the table is of another encoder.
    """

    def __init__(
        self, table: BrowsedEngine, encoder: Encoder | None, options: ServeOptions
    ) -> None:
        self.table = table
        self.options = options
        self.embedder: Embedder | None = None
        if encoder is not None:
            from flowhash.encoder import check_table
            from flowhash.serve.query_encoder import Embedder

            check_table(encoder, table)
            self.embedder = Embedder(encoder, options.threads)
        self.outbox = Outbox(options.max_answer)
        self.damage = Damage(table)
        self.metrics = Metrics(self.count, lambda: self.outbox.held)
        self.gate = Gate(options, table.writable)
        # Other engines keep their figures themselves.
        self.stats = CachedStats(table) if isinstance(table, HashTable) else table.stats
        self.searching = Searching(
            table, self.embedder, self.metrics, options.threads, self.outbox, self.damage
        )
        self._light = Batcher(
            self.searching.batch, options.max_batch, options.timeout, "flowhash-search"
        )
        self._heavy = Batcher(
            self.searching.batch, options.max_batch, options.timeout, "flowhash-wide"
        )
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="flowhash-read")
        # What reads many payloads does so alone: together they would fill the memory.
        self._browser = ThreadPoolExecutor(1, thread_name_prefix="flowhash-browse")
        # Images have one thread of their own: a small file may take half a second to decode.
        self._decoder = ThreadPoolExecutor(1, thread_name_prefix="flowhash-decode")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="flowhash-write")
        self._writing = asyncio.Lock()
        self.warm = False
        self.closing = False
        self.broken = False
        self.number = ""  # what the log has the reason under, while it is broken

    @property
    def takes_images(self) -> bool:
        """Whether the encoder takes images."""
        return self.embedder is not None and self.embedder.encoder.preprocessing.kind == "images"

    @property
    def open(self) -> bool:
        """Whether the table can be read; nobody may have closed it."""
        try:
            return len(self.table) >= 0
        except StorageError:
            return False

    def count(self) -> int:
        """How many items there are; 0 in a table that was closed."""
        return len(self.table) if self.open else 0

    def check_reachable(self) -> None:
        """Refuse work on an engine whose server is lost: it would wait in vain, and hold up others.

        Raises:
            ProblemError: 503, until :meth:`keep_fresh` has reached it again.
        """
        if self.broken and not isinstance(self.table, HashTable):
            raise ProblemError(
                503,
                "the server that keeps the table does not answer; try again in a moment. The log "
                f"of this one has the reason under {self.number}",
                "storage",
                {"Retry-After": "1"},
            )

    async def search(self, query: Query) -> bytes:
        """The answer to a query, together with others that came at the same time.

        Raises:
            ProblemError: 503 while the table's server is lost, 504 when it takes too long.
        """
        self.check_reachable()
        encoded = query.order is None and self.takes_images
        slow = encoded or query.compare or is_long(query) or is_wide(query, self.table)
        return await (self._heavy if slow else self._light).ask(query)

    async def read(
        self, work: Callable[Given, Result], *given: Given.args, **named: Given.kwargs
    ) -> Result:
        """Run something that reads in a thread.

        Raises:
            ProblemError: 503 while the table's server is lost, 504 when it takes too long.
        """
        self.check_reachable()
        return await self._within(self.deadline(), self._readers, lambda: work(*given, **named))

    async def damaged(self) -> tuple[int, int]:
        """How many places, and how many items' payloads, are known to be damaged still.

        What is known is read again in a thread, now and then; where others keep the threads busy,
        the figures are those from before: whoever asks for the health is not to wait for them.
        """
        if self.damage.stale:
            soon = asyncio.get_running_loop().time() + REFRESH
            with contextlib.suppress(ProblemError):
                await self._within(soon, self._readers, self.damage.look_again)
        return self.damage.counts()

    async def browse(
        self, work: Callable[Given, Result], *given: Given.args, **named: Given.kwargs
    ) -> Result:
        """Run something that reads many payloads, after those of others.

        Raises:
            ProblemError: 503 while the table's server is lost, 504 when it takes too long.
        """
        self.check_reachable()
        return await self._within(self.deadline(), self._browser, lambda: work(*given, **named))

    async def decode(
        self,
        deadline: float,
        work: Callable[Given, Result],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> Result:
        """Decode an image, after those of others.

        Raises:
            ProblemError: 504 when it is not done by ``deadline``.
        """
        return await self._within(deadline, self._decoder, lambda: work(*given, **named))

    def deadline(self) -> float:
        """When something that begins now is given up, by the event loop's clock."""
        return asyncio.get_running_loop().time() + self.options.timeout

    async def _within(
        self, deadline: float, pool: ThreadPoolExecutor, work: Callable[[], Result]
    ) -> Result:
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(pool, work)
        try:
            return await asyncio.wait_for(job, deadline - loop.time())
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise ProblemError(
                504, f"it took longer than {self.options.timeout:g} s; ask for less, or try again"
            ) from error

    async def write(
        self, work: Callable[Given, Result], *given: Given.args, **named: Given.kwargs
    ) -> Result:
        """Run something that writes, alone. Once begun it is waited for, however long it takes.

        Raises:
            ProblemError: 403 where the table's server refuses changes, 503 while it is lost, 504
                when others wrote too long; nothing was changed then.
        """
        self.check_reachable()
        try:
            await asyncio.wait_for(self._writing.acquire(), self.options.timeout)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise ProblemError(
                504,
                f"others were writing for {self.options.timeout:g} s; nothing was changed. Try "
                "again, and send many items in one request",
            ) from error
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._writer, lambda: work(*given, **named))
        except ForbiddenError as error:
            LOG.warning("a change was refused: %s", error)
            raise only_reads() from error
        finally:
            self._writing.release()

    async def keep_fresh(self) -> None:
        """Look for what others have written or permitted, about once a second, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(REFRESH)
            try:
                await loop.run_in_executor(self._readers, self.table.refresh)
                self.gate.see(self.table.writable)
                if self.broken:
                    LOG.warning("the table can be read again")
                self.broken = False
            except Exception as error:  # whatever it is, the next look may succeed
                if not self.broken:
                    known = isinstance(error, StorageError)
                    self.number = new_number()
                    LOG.error(
                        "the table cannot be read anew, number %s: %s",
                        self.number,
                        error,
                        exc_info=None if known else error,
                    )
                self.broken = True

    def close(self) -> None:
        """Wait for what is in work."""
        self.closing = True
        self._light.close()
        self._heavy.close()
        self._readers.shutdown(wait=True)
        self._browser.shutdown(wait=True)
        self._decoder.shutdown(wait=True)
        self._writer.shutdown(wait=True)
