"""The application: the routes, and the guard before them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from flowhash.engines import BrowsedEngine
from flowhash.serve.options import ServeOptions
from flowhash.serve.routes import buckets, items, page, search, status
from flowhash.serve.schemas.openapi import document
from flowhash.serve.schemas.responses import as_json
from flowhash.serve.service import Service, service_of
from flowhash.table import HashTable

if TYPE_CHECKING:
    from flowhash.encoder import Encoder

OPERATIONS = (  # searches first: routes are tried in this order
    *search.OPERATIONS,
    *items.OPERATIONS,
    *buckets.OPERATIONS,
    *status.OPERATIONS,
)


def create_app(
    table: BrowsedEngine, encoder: Encoder | None = None, options: ServeOptions | None = None
) -> Starlette:
    """The HTTP API and the page for a table, as an ASGI application.

    Args:
        table: open; it is not closed here.
        encoder: encodes queries and new items; None leaves searching by id, and by embedding and
            buckets.
        options: limits and who may write; the address decides about the latter.

    Raises:
        InputError: the table is of another encoder.
    """
    routes = [operation.route for operation in OPERATIONS]
    routes += [Route("/openapi.json", openapi), *page.ROUTES]
    app = _Application(routes=routes, lifespan=_lifespan)
    app.router.redirect_slashes = False
    app.state.service = Service(table, encoder, options or ServeOptions())
    return app


class _Application(Starlette):
    """Starlette, but for its own two layers, which answer errors: the guard does so in JSON."""

    def build_middleware_stack(self) -> ASGIApp:
        service: Service = self.state.service
        return service.guard.before(self.router)


async def openapi(request: Request) -> Response:
    """The OpenAPI document, made when it is first asked for."""
    service = service_of(request)
    if not service.document:
        encoder = service.query_encoder
        inputs = None if encoder is None else encoder.inputs
        made = document(OPERATIONS, service.table, service.options, inputs)
        service.document = as_json(made)
    return Response(service.document, media_type="application/json")


@contextlib.asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    service: Service = app.state.service
    await asyncio.to_thread(service.warm_up)
    fresh = None
    # A folder has one writer; others may write to an engine, and its server may be lost.
    if not (isinstance(service.table, HashTable) and service.table.writable):
        fresh = asyncio.create_task(service.keep_fresh())
    yield
    if fresh is not None:
        fresh.cancel()
    await asyncio.to_thread(service.close)
