"""Around every request: limits, security, figures, and errors as JSON. Pure ASGI, for speed."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flowhash.errors import DamagedFileError
from flowhash.serve.damage import Damage
from flowhash.serve.metrics import Metrics
from flowhash.serve.options import ServeOptions
from flowhash.serve.outbox import SMALL, Answer, Outbox
from flowhash.serve.problems import ProblemError, busy, problem_of
from flowhash.serve.security import HEADERS, Gate

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
