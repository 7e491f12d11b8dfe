"""One guard before all routes: limits, host, origin, key and headers."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Iterable, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flowhash.errors import DamagedFileError
from flowhash.serve.damage import Damage
from flowhash.serve.errors import ProblemError, busy, only_reads, problem_of
from flowhash.serve.metrics import Metrics
from flowhash.serve.options import ServeOptions
from flowhash.serve.outbox import SMALL, Answer, Outbox

ALWAYS = ("/health", "/metrics")  # answered however much is to do
BODIES = 32  # of the largest size, that may be in memory at the same time
CLOSE = (b"connection", b"close")
UNKNOWN = "other"  # the route of what has none


class Guard:
    """Lets requests through to the application.

    Args:
        app: what is guarded.
        options: with the limits.
        gate: checks headers.
        metrics: count.
        outbox: counts the bytes of answers.
        damage: notes what cannot be read.
        route: the only route of the application, where there is no framework to find it.
    """

    def __init__(
        self,
        app: ASGIApp,
        options: ServeOptions,
        gate: Gate,
        metrics: Metrics,
        outbox: Outbox,
        damage: Damage,
        route: str | None = None,
    ) -> None:
        self._app = app
        self._only_route = route
        self._options = options
        self._gate = gate
        self._metrics = metrics
        self._outbox = outbox
        self._damage = damage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        exchange = Exchange(
            scope, receive, send, self._options.max_body, self._metrics, self._outbox
        )
        metrics = self._metrics
        metrics.running += 1
        try:
            self._admit(scope)
            if scope["method"] == "HEAD":  # the server leaves the body out
                scope = {**scope, "method": "GET"}
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            if isinstance(error, DamagedFileError):
                self._damage.note(error)
            problem = problem_of(error)
            if exchange.status:  # too late for another answer
                raise
            await problem.response()(scope, receive, exchange.send)
        finally:
            metrics.running -= 1
            metrics.held -= exchange.held
            seconds = time.perf_counter() - start
            route = self._only_route or _route(scope)
            metrics.answered(route, _method(scope), exchange.status, seconds)

    def _admit(self, scope: Scope) -> None:
        if self._metrics.running > self._options.max_waiting and scope["path"] not in ALWAYS:
            raise busy(
                f"{self._options.max_waiting} requests are in work, as many as this server takes; "
                "try again in a moment"
            )
        headers = scope["headers"]
        self._gate.enter(scope["method"], headers)
        for name, value in headers:
            if name == b"content-length" and value.isdigit():
                if len(value) > 15 or int(value) > self._options.max_body:
                    raise too_large(self._options.max_body)
                break


class Exchange:
    """Counts the bytes of a body while they come, and those of the answer until they are sent.

    An answer is one message here; nothing is streamed.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        most: int,
        metrics: Metrics,
        outbox: Outbox,
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._most = most
        self._metrics = metrics
        self._outbox = outbox
        self._head: Message | None = None
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
                raise too_large(self._most)
            if self._metrics.held > BODIES * self._most:
                raise busy("the bodies of other requests fill the memory; try again in a moment")
        return message

    async def send(self, message: Message) -> None:
        """The next message to the client; returns when nearly all of it is on its way."""
        if message["type"] == "http.response.start":
            self._head = message  # sent with the body, which may turn out to be too large
            return
        head, body = self._head, message.get("body", b"")
        taken = 0
        try:
            if head is not None:
                try:
                    taken = self._taken(body)
                except ProblemError as error:
                    response = error.response()
                    body = response.body
                    head["status"], head["headers"] = response.status_code, response.raw_headers
                await self._start(head)
            await self._pieces(body)
        finally:
            self._outbox.give(taken)

    def _taken(self, body: bytes) -> int:
        """Count an answer that is held until it is sent: how many bytes were counted."""
        self._outbox.check(len(body))
        if len(body) <= SMALL or isinstance(body, Answer):  # that one is counted already
            return 0
        self._outbox.take(len(body))
        return len(body)

    async def _start(self, head: Message) -> None:
        self._head = None
        self.status = head["status"]
        head["headers"] = [*head.get("headers", ()), *HEADERS]
        if self.unread and _announced(self._scope):
            head["headers"].append(CLOSE)  # the rest of the body is not waited for
        await self._send(head)

    async def _pieces(self, body: bytes) -> None:
        """Send a body; before each further piece the server waits until the client has read."""
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


def too_large(most: int) -> ProblemError:
    """A body that is more than the limit."""
    return ProblemError(
        413, f"the body has more than {most} bytes, the most this server takes; send less"
    )


def _method(scope: Scope) -> str:
    """Methods are words of the client's choice: only known ones are counted by name."""
    method: str = scope["method"]
    return method if method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT") else UNKNOWN


def _route(scope: Scope) -> str:
    route = scope.get("route")
    return str(getattr(route, "path_format", UNKNOWN))


LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(rb"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
READING = ("GET", "HEAD", "OPTIONS")
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
PAGE_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
Headers = Iterable[tuple[bytes, bytes]]


class Gate:
    """Decides by a request's headers.

    Args:
        options: address, key, names.
        writable: whether the table can be changed.
    """

    def __init__(self, options: ServeOptions, writable: bool) -> None:
        self._key = None if options.api_key is None else options.api_key.encode()
        self._options = options
        self.see(writable)
        names = {name.lower() for name in options.allowed_hosts}
        if options.loopback:
            names |= {*LOCAL_NAMES, options.host}
        self._names = names  # empty: any name
        self._known: set[bytes] = set()  # Host headers that were found good

    def see(self, writable: bool) -> None:
        """Note whether the table can be changed now; the right to it may come and go."""
        self.writable = self._options.may_write and writable

    def enter(self, method: str, headers: Headers) -> None:
        """Let a request pass or raise.

        Raises:
            ProblemError: 400 for more than one name or page, 403 for a name that is not ours, or
                for another site's page.
        """
        host, origin = None, None
        for name, value in headers:
            if name == b"host":
                if host is not None:
                    raise _twice("Host", host, value)
                host = value
            elif name == b"origin":
                if origin is not None:
                    raise _twice("Origin", origin, value)
                origin = value
        host = host or b""
        if self._names and host not in self._known:
            self._check_host(host)
        if origin is not None and method not in READING:
            _check_origin(origin, host)

    def write(self, headers: Headers) -> None:
        """Let a write pass or raise.

        Raises:
            ProblemError: 403 where nothing can be written, 401 without the right key.
        """
        if not self.writable:
            raise self._refusal()
        if self._key is not None and not hmac.compare_digest(_key_in(headers), self._key):
            raise ProblemError(
                401,
                "this server changes its table only for those who know its key; send it as "
                "X-API-Key, or as Authorization: Bearer",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _refusal(self) -> ProblemError:
        if self._options.read_only or self._options.may_write:
            return only_reads()
        return ProblemError(
            403,
            f"this server listens on {self._options.host} without a key, and so changes nothing; "
            "start it with an API key, or on 127.0.0.1",
            "read_only",
        )

    def _check_host(self, host: bytes) -> None:
        """A page that lets its own name point to this machine is stopped here (DNS rebinding)."""
        found = HOST.fullmatch(host.lower())
        name = "" if found is None else found["name"].decode().strip("[]")
        if name not in self._names:
            raise ProblemError(
                403,
                f"the Host header is {host.decode('latin-1')[:100]!r}; expected one of "
                f"{', '.join(sorted(self._names))}. Start the server with that name in "
                "allowed_hosts if it is yours",
                "unknown_host",
            )
        if len(self._known) < 100:
            self._known.add(host)


def _twice(name: str, first: bytes, second: bytes) -> ProblemError:
    """Two lines where others, such as a proxy, may have looked at the other one."""
    came = " and ".join(repr(value.decode("latin-1")[:100]) for value in (first, second))
    return ProblemError(
        400,
        f"the request names more than one {name}, {came}, in its headers or its target; send one",
        "ambiguous",
    )


def _check_origin(origin: bytes, host: bytes) -> None:
    """Browsers name the page that sends; one of another site must not change anything here."""
    scheme, _, site = origin.lower().partition(b"://")
    default = {b"http": b":80", b"https": b":443"}.get(scheme, b"\0")
    if not site or site.removesuffix(default) != host.lower().removesuffix(default):
        raise ProblemError(
            403,
            f"a page of {origin.decode('latin-1')[:100]} sent this, and this is "
            f"{host.decode('latin-1')[:100]}; only pages of this server may. Programs leave the "
            "Origin header out",
            "foreign_origin",
        )


def _key_in(headers: Headers) -> bytes:
    found = b""
    for name, value in headers:
        if name == b"x-api-key":
            return value
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            found = value[7:].strip()
    return found
