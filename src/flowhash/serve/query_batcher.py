"""Concurrent queries, searched together.

While a thread works on one batch, the next gathers; whoever comes to an idle server is searched at
once. There is no waiting for company, and no batch is larger than what has come meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from flowhash.serve.errors import RequestError


class Groupable(Protocol):
    """What can be searched together with others of the same group."""

    @property
    def group(self) -> Hashable:
        """Equal for what may share a batch."""
        ...

    def __len__(self) -> int: ...


Waiting = tuple[Groupable, "asyncio.Future[bytes]"]
Work = Callable[[Sequence[Any]], Sequence[bytes | BaseException]]


class QueryBatcher:
    """One thread that answers batches.

    Used from one event loop; all of its own state is touched there only.

    Args:
        work: answers a batch, in the thread: bytes or an exception for each.
        most: rows in a batch, unless one query alone has more.
        timeout: seconds until a query is given up.
        name: of the thread.
    """

    def __init__(self, work: Work, most: int, timeout: float, name: str) -> None:
        self._work = work
        self._most = most
        self._timeout = timeout
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._groups: OrderedDict[Hashable, deque[Waiting]] = OrderedDict()
        self._running = False

    async def ask(self, query: Groupable) -> bytes:
        """The answer to one query.

        Raises:
            RequestError: 504 when it took too long; or what the work made of the query.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        group = query.group
        waiting = self._groups.get(group)
        if waiting is None:
            waiting = self._groups[group] = deque()
        waiting.append((query, future))
        if not self._running:
            self._running = True
            loop.call_soon(self._start, loop)  # after the other requests of this moment
        timer = loop.call_later(self._timeout, self._expire, future)
        try:
            return await future
        finally:
            timer.cancel()

    def close(self) -> None:
        """Wait for the batch in work."""
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

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        batch = self._next()
        if not batch:
            self._running = False
            return
        job = loop.run_in_executor(self._pool, self._work, [query for query, _ in batch])
        job.add_done_callback(lambda done: self._finish(loop, batch, done))

    def _next(self) -> list[Waiting]:
        """Queries of the group that waits longest; those that gave up are left out."""
        batch: list[Waiting] = []
        rows = 0
        while self._groups and not batch:
            group, waiting = self._groups.popitem(last=False)
            while waiting and (not batch or rows + len(waiting[0][0]) <= self._most):
                query, future = waiting.popleft()
                if not future.done():
                    batch.append((query, future))
                    rows += len(query)
            if waiting:
                self._groups[group] = waiting  # at the end: the other groups come first
        return batch

    def _finish(
        self, loop: asyncio.AbstractEventLoop, batch: list[Waiting], job: asyncio.Future[Any]
    ) -> None:
        error = None if job.cancelled() else job.exception()
        answers = [error or asyncio.CancelledError()] * len(batch)
        if error is None and not job.cancelled():
            answers = job.result()
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, bytes):
                future.set_result(answer)
            else:
                future.set_exception(answer)
        self._start(loop)
