"""The application: its routes, and how they are put together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from flowhash import __version__
from flowhash.engines import BrowsedEngine
from flowhash.serve import reading, writes
from flowhash.serve.errors import CODES, ProblemError, mistake, problem_of
from flowhash.serve.options import ServeOptions
from flowhash.serve.request_guard import Guard
from flowhash.serve.schemas.openapi import DESCRIPTION, attach
from flowhash.serve.service import Service
from flowhash.serve.warming import warm_up
from flowhash.table import HashTable

if TYPE_CHECKING:
    from flowhash.encoder import Encoder


def create_app(
    table: BrowsedEngine, encoder: Encoder | None = None, options: ServeOptions | None = None
) -> FastAPI:
    """The HTTP API and the page for a table, as an ASGI application.

    Args:
        table: open; it is not closed here.
        encoder: encodes queries and new items; None leaves searching by id, and by embedding and
            buckets.
        options: limits and who may write; the address decides about the latter.

    Raises:
        InputError: the table is of another encoder.
    """
    options = options or ServeOptions()
    service = Service(table, encoder, options)
    app = Application(
        title="FlowHash",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # the stock pages load from another host
        redoc_url=None,
        openapi_url=None,
        lifespan=_lifespan(service),
        redirect_slashes=False,
    )
    app.state.service = service
    reading.add_routes(app, service)
    writes.add_routes(app, service)
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _wrong_parameter)
    app.add_exception_handler(ProblemError, _problem)
    around = (options, service.gate, service.metrics, service.outbox, service.damage)
    app.add_middleware(Guard, *around)
    app.searching = Guard(reading.direct_search(service), *around, route="/search")
    attach(app, service)
    return app


class Application(FastAPI):
    """FastAPI, but for searches, which go past it: it takes longer than all the rest of them."""

    searching: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the start and end of the server."""
        if scope["type"] == "http" and scope["path"] == "/search" and scope["method"] == "POST":
            await self.searching(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def _lifespan(service: Service) -> Any:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(warm_up, service)
        fresh = None
        # A folder has one writer; others may write to an engine, and its server may be lost.
        if not (isinstance(service.table, HashTable) and service.table.writable):
            fresh = asyncio.create_task(service.keep_fresh())
        yield
        service.closing = True
        if fresh is not None:
            fresh.cancel()
        await asyncio.to_thread(service.close)

    return lifespan


async def _problem(request: Request, error: Exception) -> Response:
    return problem_of(error).response()


async def _http_problem(request: Request, error: Exception) -> Response:
    """What the framework says, such as 404 for a path that is not there, in our form."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    messages = {
        404: f"there is nothing at {path!r}; see /openapi.json",
        405: f"{request.method[:20]} is not possible at {path!r}; see /openapi.json",
    }
    message = messages.get(error.status_code, str(error.detail))
    code = CODES.get(error.status_code)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods(request))
    return ProblemError(error.status_code, message, code, headers).response()


def _methods(request: Request) -> list[str]:
    """What is possible at a path; the framework names the methods of its first route only."""
    path = request.scope["path"]
    found = {
        method
        for route in request.app.routes
        if isinstance(route, APIRoute) and route.path_regex.match(path)
        for method in route.methods or ()
    }
    return sorted(found | {"HEAD"} if "GET" in found else found)


async def _wrong_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return mistake(error.errors()).response()
