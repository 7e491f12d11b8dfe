"""A server process: opens the table, serves until it is told to stop, closes cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import signal
import socket
import threading
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from flowhash.engines import open_any
from flowhash.errors import InputError
from flowhash.extras import require
from flowhash.serve.app import create_app
from flowhash.serve.connections import Connection, Limits, look_after, room_for_connections
from flowhash.serve.options import ServeOptions
from flowhash.serve.service import Service
from flowhash.serve.warming import warm_up

if TYPE_CHECKING:
    from flowhash.encoder import Encoder


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
    encoder = _load(encoder_path)
    most, backlog = room_for_connections(options.max_connections)
    # Requests in work leave connections free for those who ask about health.
    options = dataclasses.replace(
        options, max_connections=most, max_waiting=min(options.max_waiting, max(1, most * 3 // 4))
    )
    limits = Limits(most, options.idle_timeout, options.send_timeout)
    mode = "r+" if options.may_write else "r"
    with (
        _listening(options, backlog) as listener,
        open_any(table_path, mode) as table,
        _polite_signals(),
    ):
        app = create_app(table, encoder, options)
        warm_up(app.state.service)  # a table that cannot be read shows here
        config = uvicorn.Config(
            app,
            http=type("LimitedConnection", (Connection,), {"limits": limits}),
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
        server = _Server(config, _address(listener, options), app.state.service, limits)
        server.run(sockets=[listener])
        if server.failed:
            raise InputError("the server could not start; the lines above say why")
        app.state.service.close()  # also where the server was forced to stop


class _Server(uvicorn.Server):
    """Says where it is once it answers."""

    def __init__(
        self, config: uvicorn.Config, address: str, service: Service, limits: Limits
    ) -> None:
        super().__init__(config)
        self._address = address
        self._service = service
        self._limits = limits
        service.metrics.connections = self.server_state.connections

    @property
    def failed(self) -> bool:
        return not self.started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        options = self._service.options
        self._looking = asyncio.create_task(
            look_after(
                self.server_state.connections,
                self._limits,
                lambda: self.should_exit,
                options.timeout,
            )
        )
        if not options.quiet:
            print(f"FlowHash serves {self._address}{_note(self._service)}", flush=True)
        if options.open_browser:
            threading.Thread(target=webbrowser.open, args=(self._address,), daemon=True).start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.closing = True  # for those who ask /health
        super().handle_exit(sig, frame)


def _note(service: Service) -> str:
    options = service.options
    if options.read_only:
        return " (read only)"
    if not options.may_write:
        return f" (read only: {options.host} can be reached by others, and there is no API key)"
    if not service.gate.writable:
        return " (read only: the database does not let this user change the table)"
    return ""


def _load(path: str | Path | None) -> Encoder | None:
    if path is None:
        return None
    require("torch", "learn")
    from flowhash.encoder import Encoder

    return Encoder.load(path)


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


def _address(listener: socket.socket, options: ServeOptions) -> str:
    port = listener.getsockname()[1]
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"http://{host}:{port}/"


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
