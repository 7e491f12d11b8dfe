"""The one middleware before all routes: what a request may cost, its host, origin, key and headers.

Starlette's own TrustedHostMiddleware answers in plain text, and of two Host headers sees the first.
"""

from __future__ import annotations

import hmac
import re
import threading
import time
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flowhash.errors import DamagedFileError
from flowhash.serve.errors import RequestError, busy, error_of, only_reads
from flowhash.serve.metrics import Metrics
from flowhash.serve.options import ServeOptions
from flowhash.serve.table_health import TableHealth

ALWAYS = ("/health", "/metrics")  # answered however much is to do
BODIES = 32  # of the largest size, that may be in memory at the same time
ANSWERS = 4  # of the largest size, that may be held at the same time
SMALL = 1 << 16  # bytes; answers up to it are always given, so that slow clients stop nobody
CLOSE = (b"connection", b"close")
UNKNOWN = "other"  # the route of what has none
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT")  # that are counted by name
READING = ("GET", "HEAD", "OPTIONS")
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(rb"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class RequestGuard:
    """Lets requests through to the routes, and only the right ones."""

    def __init__(
        self,
        options: ServeOptions,
        writable: bool,
        metrics: Metrics,
        outbox: Outbox,
        health: TableHealth,
        expected_wait: Callable[[], float],
    ) -> None:
        self.options = options
        self.metrics = metrics
        self.outbox = outbox
        self._health = health
        self._expected_wait = expected_wait
        self._key = None if options.api_key is None else options.api_key.encode()
        self.see(writable)
        names = {name.lower() for name in options.allowed_hosts}
        if options.loopback:
            names |= {*LOCAL_NAMES, options.host}
        self._names = names  # empty: any name
        self._known: set[bytes] = set()  # Host headers that were found good

    def see(self, writable: bool) -> None:
        """Note whether the table can be changed now; the right to it may come and go."""
        self.writable = self.options.may_write and writable

    def before(self, router: Router) -> ASGIApp:
        """The routes behind this guard. Whatever they raise is answered here, and nowhere else."""
        every = [route for route in router.routes if isinstance(route, Route)]
        templates: dict[Any, str] = {route.endpoint: route.path_format for route in every}
        paths = {route.path for route in every}
        # Without parameters a path needs no pattern: a sixth of a search's way to its endpoint.
        plain = {
            (method, route.path): route
            for route in every
            if not route.param_convertors
            for method in route.methods or ()
        }

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await router(scope, receive, send)
                return
            start = time.perf_counter()
            exchange = Exchange(self, scope, receive, send)
            self.metrics.running += 1
            try:
                self._admit(scope)
                if scope["method"] == "HEAD":  # the server leaves the body out
                    scope = {**scope, "method": "GET"}
                found = plain.get((scope["method"], scope["path"]))
                if found is None:
                    await router(scope, exchange.receive, exchange.send)
                else:
                    scope["endpoint"] = found.endpoint
                    await found.app(scope, exchange.receive, exchange.send)
            except Exception as error:
                if isinstance(error, DamagedFileError):
                    self._health.note(error)
                answer = error_of(error, scope)
                if answer.refusal:
                    self.metrics.refused(answer.refusal)
                if exchange.status:  # too late for another answer
                    raise
                await answer.response()(scope, receive, exchange.send)
            finally:
                self.metrics.running -= 1
                self.metrics.held -= exchange.held
                route = templates.get(scope.get("endpoint"))
                if route is None:  # refused before it came there
                    route = scope["path"] if scope["path"] in paths else UNKNOWN
                # Methods are words of the client's choice.
                method = scope["method"] if scope["method"] in METHODS else UNKNOWN
                seconds = time.perf_counter() - start
                self.metrics.answered(route, method, exchange.status, seconds)

        return guarded

    def check_write(self, headers: Headers) -> None:
        """Let a write pass or raise.

        Raises:
            RequestError: 403 where nothing can be written, 401 without the right key.
        """
        if not self.writable:
            if self.options.read_only or self.options.may_write:
                raise only_reads()
            raise RequestError(
                403,
                f"this server listens on {self.options.host} without a key, and so changes "
                "nothing; start it with an API key, or on 127.0.0.1",
                "read_only",
            )
        key = headers.get("x-api-key")
        if key is None:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            key = token.strip() if scheme.lower() == "bearer" else ""
        if self._key is not None and not hmac.compare_digest(key.encode("latin-1"), self._key):
            raise RequestError(
                401,
                "this server changes its table only for those who know its key; send it as "
                "X-API-Key, or as Authorization: Bearer",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _admit(self, scope: Scope) -> None:
        """Refuse by its head what is too much, too large, or not meant for this server."""
        if self.metrics.running > self.options.max_waiting and scope["path"] not in ALWAYS:
            raise busy(
                f"{self.options.max_waiting} requests are in work, as many as this server takes; "
                "try again after the seconds that Retry-After says",
                "requests",
                self._expected_wait(),
            )
        found: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in (b"host", b"origin"):
                if name in found:  # others, such as a proxy, may have looked at the other one
                    raise _twice(name, found[name], value)
                found[name] = value
            elif name == b"content-length" and value.isdigit():
                found.setdefault(name, value)
        host, origin = found.get(b"host", b""), found.get(b"origin")
        if self._names and host not in self._known:
            self._check_host(host)
        if origin is not None and scope["method"] not in READING:
            _check_origin(origin, host)
        most = self.options.max_body
        length = found.get(b"content-length", b"0")
        if len(length) > 15 or int(length) > most:
            raise _too_large(most)

    def _check_host(self, host: bytes) -> None:
        """A page that lets its own name point to this machine is stopped here (DNS rebinding)."""
        found = HOST.fullmatch(host.lower())
        name = "" if found is None else found["name"].decode().strip("[]")
        if name not in self._names:
            raise RequestError(
                403,
                f"the Host header is {host.decode('latin-1')[:100]!r}; expected one of "
                f"{', '.join(sorted(self._names))}. Start the server with that name in "
                "allowed_hosts if it is yours",
                "unknown_host",
            )
        if len(self._known) < 100:
            self._known.add(host)


def _twice(name: bytes, first: bytes, second: bytes) -> RequestError:
    came = " and ".join(repr(value.decode("latin-1")[:100]) for value in (first, second))
    return RequestError(
        400,
        f"the request names more than one {name.decode().title()}, {came}, in its headers or its "
        "target; send one",
        "ambiguous",
    )


def _check_origin(origin: bytes, host: bytes) -> None:
    """Browsers name the page that sends; one of another site must not change anything here."""
    scheme, _, site = origin.lower().partition(b"://")
    default = {b"http": b":80", b"https": b":443"}.get(scheme, b"\0")
    if not site or site.removesuffix(default) != host.lower().removesuffix(default):
        raise RequestError(
            403,
            f"a page of {origin.decode('latin-1')[:100]} sent this, and this is "
            f"{host.decode('latin-1')[:100]}; only pages of this server may. Programs leave the "
            "Origin header out",
            "foreign_origin",
        )


class Exchange:
    """Counts the bytes of a body while they come, and those of the answer until they are sent.

    An answer is one message here; nothing is streamed.
    """

    def __init__(self, guard: RequestGuard, scope: Scope, receive: Receive, send: Send) -> None:
        self._most = guard.options.max_body
        self._metrics, self._outbox = guard.metrics, guard.outbox
        self._scope, self._receive, self._send = scope, receive, send
        self._head: Message = {}
        self.held = 0
        self.unread = True
        self.status = 0

    async def receive(self) -> MutableMapping[str, Any]:
        """The next message of the client."""
        message = await self._receive()
        if message["type"] == "http.request":
            self.unread = message.get("more_body", False)
            size = len(message.get("body", b""))
            self.held += size
            self._metrics.held += size
            if self.held > self._most:
                raise _too_large(self._most)
            if self._metrics.held > BODIES * self._most:
                raise busy(
                    "the bodies of other requests fill the memory; try again in a moment", "memory"
                )
        return message

    async def send(self, message: Message) -> None:
        """The next message to the client; returns when nearly all of it is on its way."""
        if message["type"] == "http.response.start":
            self._head = message  # sent with the body, which may turn out to be too large
            return
        head, body, counted = self._head, message.get("body", b""), 0
        try:
            self._outbox.check(len(body))
            if len(body) > SMALL and not isinstance(body, HeldAnswer):  # that is counted already
                self._outbox.take(len(body))
                counted = len(body)
        except RequestError as error:
            if error.refusal:
                self._metrics.refused(error.refusal)
            response = error.response()
            body = response.body
            head["status"], head["headers"] = response.status_code, response.raw_headers
        self.status = head["status"]
        head["headers"] = [*head["headers"], *HEADERS]
        if self.unread and _announced(self._scope):
            head["headers"].append(CLOSE)  # the rest of the body is not waited for
        try:
            await self._send(head)
            await self._send_body(body)
        finally:
            self._outbox.give(counted)

    async def _send_body(self, body: bytes) -> None:
        """Before each further piece the server waits until the client has read."""
        if len(body) > SMALL:
            for start in range(0, len(body), SMALL):
                piece = body[start : start + SMALL]
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            body = b""
        await self._send({"type": "http.response.body", "body": body})


def _announced(scope: Scope) -> bool:
    """Whether a body follows the headers."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in scope["headers"]
    )


def _too_large(most: int) -> RequestError:
    """A body that is more than the limit."""
    return RequestError(
        413, f"the body has more than {most} bytes, the most this server takes; send less"
    )


class Outbox:
    """Counts the bytes of answers, from when they are written until their clients have them.

    Used by all threads of a server.

    Args:
        largest: bytes of one answer at the most.
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.held = 0
        self._lock = threading.RLock()  # a HeldAnswer may be freed at any moment, also in here

    def take(self, size: int) -> None:
        """Count bytes that are held from now on.

        Raises:
            RequestError: 503, if those of others fill the memory; nothing was counted then.
        """
        with self._lock:
            if self.held + size > ANSWERS * self.largest:
                raise busy(
                    "large answers that other clients have not read yet fill the memory; try again "
                    "in a moment, or ask for less",
                    "memory",
                )
            self.held += size

    def give(self, size: int) -> None:
        """Count bytes that are not held any more."""
        with self._lock:
            self.held -= size

    def collect(self, pieces: Iterable[bytes]) -> bytes:
        """Pieces as one answer, counted as they come and for as long as anybody has it.

        Raises:
            RequestError: 413 as soon as it is too large, 503 if there is no room for it.
        """
        made: list[bytes] = []
        size = counted = 0
        try:
            for piece in pieces:
                size += len(piece)
                self.check(size)
                if size > SMALL:
                    self.take(size - counted)
                    counted = size
                made.append(piece)
            body = b"".join(made)
            if counted:
                body, counted = HeldAnswer(body, self), 0
            return body
        finally:
            self.give(counted)

    def check(self, size: int) -> None:
        """Refuse an answer that is too large.

        Raises:
            RequestError: 413, with how to ask for less.
        """
        if size > self.largest:
            raise RequestError(
                413,
                f"the answer would have more than {self.largest} bytes, the most this server "
                "sends; ask for fewer hits (top, count), fewer vectors at once, or no payloads "
                "(payloads: false)",
                "answer_too_large",
            )


class HeldAnswer(bytes):
    """A large answer: counted as held for as long as anybody has it."""

    _outbox: Outbox

    def __new__(cls, body: bytes, outbox: Outbox) -> HeldAnswer:
        """An answer whose bytes ``outbox`` has counted already."""
        made = super().__new__(cls, body)
        made._outbox = outbox
        return made

    def __del__(self) -> None:
        self._outbox.give(len(self))
