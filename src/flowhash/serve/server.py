"""A server process: opens the table, serves until it is told to stop, closes cleanly.

uvicorn closes no connection that sends nothing, or half a head, and waits for ever for clients that
do not read what they asked for. Its protocol class has no hook for either, so that each connection
is looked at about once a second: what it does, and since when.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import re
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flowhash.engines import open_any
from flowhash.errors import InputError
from flowhash.extras import require
from flowhash.serve.app import create_app
from flowhash.serve.errors import busy
from flowhash.serve.metrics import Metrics
from flowhash.serve.options import ServeOptions
from flowhash.serve.service import Service

HEAD = 1 << 16  # bytes of a request's head at the most
BUFFER = 1 << 14  # bytes that may wait in a connection although its answer counts as sent
LOOK = 1.0  # seconds between two looks
TURN = 0.0005  # seconds that a thread keeps the interpreter while another one waits for it
DESCRIPTORS = 1 << 16  # open files that are enough
WAITING, WORKING, SENDING = "waiting", "working", "sending"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
AUTHORITY = re.compile(rb"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)


def run(
    table_path: str | Path,
    encoder_path: str | Path | None = None,
    options: ServeOptions | None = None,
) -> None:
    """Serve a table until SIGINT or SIGTERM; requests in work are answered before it returns.

    Args:
        table_path: the table's folder, or the address of an engine.
        encoder_path: its encoder's folder; None serves without one.
        options: of the server.

    Raises:
        InputError: the address cannot be used, or the table is of another encoder.
        StorageError: the table cannot be opened, or another process writes to its folder.
    """
    options = options or ServeOptions()
    # What is wrong with a client's form is told to the client; it is no news for the operator.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    encoder = None
    if encoder_path is not None:
        require("torch", "learn")
        from flowhash.encoder import Encoder

        encoder = Encoder.load(encoder_path)
    most, backlog = room_for_connections(options.max_connections)
    # Requests in work leave connections free for those who ask about health.
    options = replace(
        options, max_connections=most, max_waiting=min(options.max_waiting, max(1, most * 3 // 4))
    )
    with (
        _listening(options, backlog) as listener,
        open_any(table_path, "r+" if options.may_write else "r") as table,
        _polite_signals(),
        _quick_turns(),
    ):
        app = create_app(table, encoder, options)
        app.state.service.warm_up()  # a table that cannot be read shows here
        gc.collect()
        gc.freeze()  # libraries' objects stay: no collection looks at half a million of them again
        own = {"limits": options, "metrics": app.state.service.metrics}
        config = uvicorn.Config(
            app,
            http=type("LimitedConnection", (Connection,), own),
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            ws="none",
            proxy_headers=False,
            lifespan="on",
            timeout_keep_alive=math.ceil(options.idle_timeout),
            timeout_graceful_shutdown=max(1, round(2 * options.timeout)),
            backlog=backlog,
        )
        server = _Server(config, app.state.service)
        try:
            server.run(sockets=[listener])
        finally:
            gc.unfreeze()
        if not server.started:
            raise InputError("the server could not start; the lines above say why")
        app.state.service.close()  # also where the server was forced to stop


class _Server(uvicorn.Server):
    """Says where it is once it answers, and looks after its connections."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        service.metrics.connections = self.server_state.connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        assert sockets  # the one that ``run`` gave
        self._looking = asyncio.create_task(self._look_after_connections())
        options = self._service.options
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"http://{host}:{sockets[0].getsockname()[1]}/"
        if not options.quiet:
            print(f"FlowHash serves {address}{_note(self._service)}", flush=True)
        if options.open_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    async def _look_after_connections(self) -> None:
        options = self._service.options
        while True:
            await asyncio.sleep(min(LOOK, options.idle_timeout / 4, options.send_timeout / 4))
            send = options.send_timeout
            if self.should_exit:
                send = min(send, options.timeout)
            for connection in list(self.server_state.connections):
                cast("Connection", connection).look(time.monotonic(), send)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.closing = True  # for those who ask /health
        super().handle_exit(sig, frame)


def _note(service: Service) -> str:
    options = service.options
    if options.read_only:
        return " (read only)"
    if not options.may_write:
        return f" (read only: {options.host} can be reached by others, and there is no API key)"
    if not service.guard.writable:
        return " (read only: the database does not let this user change the table)"
    return ""


@contextlib.contextmanager
def _listening(options: ServeOptions, backlog: int) -> Iterator[socket.socket]:
    """A socket that listens, taken before anything is opened: the usual mistake shows at once."""
    try:
        found = socket.getaddrinfo(
            options.host or None, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        listener = socket.create_server(address[:2], family=family, backlog=backlog)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot listen on {options.host} port {options.port}: {reason}; choose another port "
            "(0 picks a free one) or address"
        ) from error
    with listener:
        yield listener


@contextlib.contextmanager
def _quick_turns() -> Iterator[None]:
    """Let a search go on soon while the event loop has much to do, such as refusing others.

    A batch needs the interpreter a dozen times, between what it computes without. By default it
    waits five milliseconds each time, if the other thread is busy.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def _polite_signals() -> Iterator[None]:
    """Being told to stop is no failure: uvicorn would repeat the signal after it has stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: None) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Connection(HttpToolsProtocol):
    """One connection, whose limits are the class's."""

    limits: ClassVar[ServeOptions]
    metrics: ClassVar[Metrics]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; where there are too many, the one that is idle for the longest time ends."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(BUFFER)
        self._head_size = 0
        self._doing: tuple[str, Any] = (WAITING, None)
        self._since = time.monotonic()  # the loop's own clock is too coarse to tell who was first
        if len(self.connections) > self.limits.max_connections:
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
        if self.parser.get_method() != b"HEAD":  # whose head has nothing to wait for
            self.cycle.transport = _AnswerTransport(self.transport)  # type: ignore[assignment]

    def look(self, now: float, send: float) -> None:
        """End the connection if it has been doing the same for too long."""
        doing = (self._stage(), self.cycle)
        if doing != self._doing:
            self._doing, self._since = doing, now
            return
        longest = {WAITING: self.limits.idle_timeout, SENDING: send, WORKING: math.inf}[doing[0]]
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
        if len(others) < self.limits.max_connections:
            return
        idle = [other for other in others if other.cycle is None or other.cycle.response_complete]
        if idle:
            min(idle, key=lambda other: other._since)._end()
            return
        response = busy(
            f"{self.limits.max_connections} connections have requests in work, as many as this "
            "server takes; try again in a moment",
            "connections",
        ).response()
        self.metrics.refused("connections")
        headers = [*response.raw_headers, (b"connection", b"close")]
        lines = [b"HTTP/1.1 503 Service Unavailable", *(b": ".join(line) for line in headers)]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + bytes(response.body))
        self.transport.close()


class _AnswerTransport:
    """The transport of one answer, whose head is sent with the beginning of its body.

    uvicorn writes them one by one, each a packet of its own that wakes the client: a fifth of what
    the event loop does for a search.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self.is_closing, self.close = transport.is_closing, transport.close

    def write(self, data: bytes) -> None:
        """Send, but for the head, which stays until what follows it comes."""
        if self._head is None:
            if data == CONTINUE:
                self._transport.write(data)
            else:
                self._head = data
        elif self._head:
            self._transport.write(self._head + data)
            self._head = b""
        else:
            self._transport.write(data)


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
