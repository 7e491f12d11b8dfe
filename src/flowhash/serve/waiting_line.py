"""How long what comes now would wait for its turn; what would wait too long is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from flowhash.serve.errors import busy

KEPT = 0.75  # of what was measured before, each time that something is measured

Result = TypeVar("Result")


class WaitingLine:
    """What waits for a thread, or for several that do the same.

    How fast it moves is measured, on what was done last; who has the next turn is never refused,
    whatever was measured, or a line that was slow once would stay empty.

    Args:
        limit: seconds to wait at the most.
        at_once: how many threads work.

    Attributes:
        ahead: turns that one which comes now has to wait for, besides those that are being had.
    """

    def __init__(self, limit: float, at_once: int = 1) -> None:
        self.ahead = 0
        self._limit = limit
        self._at_once = at_once
        self._seconds = 0.0
        self._done = 0.0

    def expected(self) -> float:
        """Seconds until one that comes now has its turn."""
        if not self._done:
            return 0.0
        return self.ahead * self._seconds / self._done / self._at_once

    def check(self) -> None:
        """Refuse one more where it would wait too long.

        Raises:
            RequestError: 503, with the seconds until those that wait now are done.
        """
        wait = self.expected()
        if wait > self._limit:
            raise busy(
                f"requests that came before would take {wait:.2g} s, and this server lets nobody "
                f"wait longer than {self._limit:g} s; nothing was done. Try again after the "
                "seconds that Retry-After says",
                "wait",
                wait,
            )

    def took(self, seconds: float, turns: float = 1.0) -> None:
        """Note how long so many took in a thread; of two at once one may be lost, which is fine."""
        self._seconds = KEPT * self._seconds + seconds
        self._done = KEPT * self._done + turns


class WorkerPool:
    """Threads with the line before them. Used from one event loop."""

    def __init__(self, threads: int, name: str, limit: float) -> None:
        self.line = WaitingLine(limit, threads)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = threads

    def submit(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Run ``work`` in a thread, after what came before."""
        loop = asyncio.get_running_loop()
        self._enter(1)
        job = self._pool.submit(self._timed, work)

        def leave(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._enter, -1)

        # Of the thread, not of who waits for it: that one may have given up before it is done.
        job.add_done_callback(leave)
        return asyncio.wrap_future(job)

    def close(self) -> None:
        """Wait for what is in work."""
        self._pool.shutdown(wait=True)

    def _enter(self, count: int) -> None:
        self._free -= count
        self.line.ahead = max(0, -self._free)

    def _timed(self, work: Callable[[], Result]) -> Result:
        start = time.perf_counter()
        try:
            return work()
        finally:
            self.line.took(time.perf_counter() - start)
