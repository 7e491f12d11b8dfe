"""Connections: how many there are, how long they are idle, how slowly their clients may read.

uvicorn closes none that sends nothing, or half a head, and waits for ever for clients that do not
read what they asked for. Its protocol class has no hook for either, so that this one is looked at
about once a second: what a connection does, and since when.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flowhash.serve.errors import busy

HEAD = 1 << 16  # bytes of a request's head at the most
BUFFER = 1 << 14  # bytes that may wait in a connection although its answer counts as sent
LOOK = 1.0  # seconds between two looks
DESCRIPTORS = 1 << 16  # open files that are enough
WAITING, WORKING, SENDING = "waiting", "working", "sending"
AUTHORITY = re.compile(rb"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Limits:
    """What connections may do.

    Attributes:
        most: that are open.
        idle: seconds without a whole request head.
        send: seconds for an answer to be read.
    """

    most: int
    idle: float
    send: float


class Connection(HttpToolsProtocol):
    """One connection, whose limits are the class's."""

    limits: ClassVar[Limits]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; where there are too many, the one that is idle for the longest time ends."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(BUFFER)
        self._head_size = 0
        self._doing: tuple[str, Any] = (WAITING, None)
        self._since = time.monotonic()  # the loop's own clock is too coarse to tell who was first
        if len(self.connections) > self.limits.most:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Read what came; a head without end is refused."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is before and self._stage() == WAITING and not self.transport.is_closing():
            self._head_size += len(data)
            if self._head_size > HEAD:
                self.send_400_response(f"The head of the request has more than {HEAD} bytes.")
        else:
            self._head_size = 0

    def on_headers_complete(self) -> None:
        """Count a name in the request's target, which goes before the Host header, as one of it."""
        found = AUTHORITY.match(self.url)
        if found is not None:
            names = [value.lower() for name, value in self.headers if name == b"host"]
            if found[1].lower() not in names:
                self.headers.append((b"host", found[1]))
        super().on_headers_complete()

    def look(self, now: float, send: float) -> None:
        """End the connection if it has been doing the same for too long."""
        doing = (self._stage(), self.cycle)
        if doing != self._doing:
            self._doing, self._since = doing, now
            return
        longest = {WAITING: self.limits.idle, SENDING: send, WORKING: math.inf}[doing[0]]
        if now - self._since > longest:
            self._end()

    @property
    def leaving(self) -> bool:
        """Whether it ends in a moment; what a client has yet to read may take longer."""
        return self.transport.is_closing() and not self.transport.get_write_buffer_size()

    def _stage(self) -> str:
        cycle = self.cycle
        done = cycle is None or cycle.response_complete
        if self.transport.get_write_buffer_size():
            return SENDING
        if done:
            return WAITING
        return SENDING if cycle.response_started else WORKING

    def _end(self) -> None:
        """Close, and throw away what the client did not read: closing alone would wait for it."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _make_room(self) -> None:
        every = cast("Iterable[Connection]", self.connections)
        others = [other for other in every if other is not self and not other.leaving]
        if len(others) < self.limits.most:
            return
        idle = [other for other in others if other.cycle is None or other.cycle.response_complete]
        if idle:
            min(idle, key=lambda other: other._since)._end()
            return
        response = busy(
            f"{self.limits.most} connections have requests in work, as many as this server takes; "
            "try again in a moment"
        ).response()
        headers = [*response.raw_headers, (b"connection", b"close")]
        lines = [b"HTTP/1.1 503 Service Unavailable", *(b": ".join(line) for line in headers)]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + bytes(response.body))
        self.transport.close()


async def look_after(
    connections: Iterable[Any], limits: Limits, closing: Callable[[], bool], last: float
) -> None:
    """Look at all connections again and again, for ever.

    Args:
        connections: that are open.
        limits: of each.
        closing: whether the server is about to end.
        last: seconds for an answer to be read then.
    """
    while True:
        await asyncio.sleep(min(LOOK, limits.idle / 4, limits.send / 4))
        send = min(limits.send, last) if closing() else limits.send
        for connection in list(connections):
            connection.look(time.monotonic(), send)


def room_for_connections(wanted: int) -> tuple[int, int]:
    """How many connections the limit of open files allows, and how many may wait to be accepted.

    The limit is raised as far as this process may. A quarter of what is left stays free: for files
    of the table, and for connections that are accepted before others are closed for them.
    """
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
        if limit > soft != resource.RLIM_INFINITY:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            except (OSError, ValueError):  # such as a system that has a limit of its own
                limit = soft
        elif soft != resource.RLIM_INFINITY:
            limit = soft
    except ImportError:  # a system without these limits
        limit = DESCRIPTORS
    try:
        used = len(list(Path("/proc/self/fd").iterdir()))
    except OSError:
        used = 64
    room = max(8, limit - used)
    return min(wanted, room * 3 // 4), max(1, min(2048, room // 8))
