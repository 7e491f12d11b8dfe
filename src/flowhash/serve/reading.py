"""The routes that change nothing: search, items, pictures, buckets, figures, the page."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import FastAPI, Path, Query
from pydantic import BeforeValidator
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from flowhash.data import picture_of
from flowhash.errors import DamagedFileError
from flowhash.serve.adding import number_of
from flowhash.serve.buckets import all_buckets, one_bucket
from flowhash.serve.errors import ProblemError
from flowhash.serve.figures import figures
from flowhash.serve.metrics import CONTENT_TYPE
from flowhash.serve.queries import no_item, read_query, unreadable
from flowhash.serve.routes.page import INDEX, cached, page_files, page_response
from flowhash.serve.samples import check_count
from flowhash.serve.schemas.openapi import METRICS, PICTURE, SEARCH, errors
from flowhash.serve.schemas.responses import (
    Bucket,
    Figures,
    Health,
    Loads,
    Sample,
    Stored,
    answer,
    face,
)
from flowhash.serve.service import Service
from flowhash.table import HashTable, Item


def _digits(text: str) -> str:
    if re.fullmatch("[0-9]+", text) is None:
        raise ValueError("should be a whole number from 0, in digits")
    return text


Count = Annotated[int, Query(ge=1, le=1000, description="How many items to draw.")]
Seed = Annotated[int, Query(ge=0, lt=1 << 32, description="The same seed draws the same items.")]
ItemId = Annotated[str, Path(description="The item's id; slashes belong to it.")]
BucketNumber = Annotated[int, BeforeValidator(_digits), Path(ge=0, description="From 0 to d - 1.")]
PICTURE_POLICY = "default-src 'none'; sandbox"


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes that change nothing."""
    _add_search(app, service)
    _add_items(app, service)
    _add_buckets(app, service)
    _add_operation(app, service)
    _add_page(app)


def stored(service: Service, item_id: str) -> Item:
    """The item of an id in a path, which is text.

    Raises:
        ProblemError: 404 where there is none, 503 where it is damaged.
    """
    known = known_id(service, item_id)
    try:
        return service.table[known]
    except KeyError as error:
        raise no_item(service, known) from error
    except DamagedFileError as error:
        raise unreadable(service, known, error) from error


def known_id(service: Service, item_id: str) -> int | str:
    """An id in a path, as the table has them.

    Raises:
        ProblemError: 404 for what is no id of this table.
    """
    known = number_of(item_id) if service.table.id_kind == "int64" else item_id
    if known is None:
        raise no_item(service, item_id)
    return known


async def found(service: Service, request: Request) -> bytes:
    """The answer to a search, as JSON."""
    return await service.search(await read_query(service, request))


def direct_search(service: Service) -> ASGIApp:
    """The route of searches without the framework, which takes twice the time of the rest."""

    async def search(scope: Scope, receive: Receive, send: Send) -> None:
        body = await found(service, Request(scope, receive))
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return search


def _add_search(app: FastAPI, service: Service) -> None:
    @app.post("/search", **SEARCH)
    async def search(request: Request) -> Response:
        """Find the stored items that are nearest to a vector, an image or another item."""
        return Response(await found(service, request), media_type="application/json")


def _add_items(app: FastAPI, service: Service) -> None:
    @app.get("/items", response_model=Sample, responses=errors(422, 504))
    async def sample(count: Count = 24, seed: Seed = 0) -> Response:
        """Draw stored items at random."""

        def work() -> Response:
            table = service.table
            check_count(table, count, service.options.max_answer)
            if isinstance(table, HashTable):
                total, items = table.sample(count, seed, service.damage.met)
            else:
                total, items = table.sample(count, seed)
            return answer({"total": total, "items": [face(item) for item in items]})

        return await service.browse(work)

    @app.get("/items/{id:path}", response_model=Stored, responses=errors(404, 504))
    async def item(id: ItemId) -> Response:
        """Get one stored item."""
        return await service.read(lambda: answer(face(stored(service, id))))

    @app.get("/pictures/{id:path}", response_class=Response, responses=PICTURE)
    async def picture(id: ItemId, request: Request) -> Response:
        """Get the small picture of a stored item."""
        kept = picture_of((await service.read(stored, service, id)).payload)
        if kept is None:
            raise ProblemError(404, f"the item {id[:200]!r} has no picture")
        media, content = kept
        return cached(request, content, media, {"Content-Security-Policy": PICTURE_POLICY})


def _add_buckets(app: FastAPI, service: Service) -> None:
    @app.get("/buckets", response_model=Loads, responses=errors(504))
    async def buckets() -> Response:
        """Get how many items every bucket holds."""
        return await service.read(lambda: answer(all_buckets(service.table)))

    @app.get("/buckets/{bucket}", response_model=Bucket, responses=errors(404, 422, 504))
    async def bucket(
        bucket: BucketNumber,
        count: Count = 24,
        seed: Seed = 0,
    ) -> Response:
        """Look into one bucket: its load, its classes, some of its items."""
        largest = service.options.max_answer
        return await service.browse(
            lambda: answer(one_bucket(service.table, bucket, count, seed, largest, service.damage))
        )


def _add_operation(app: FastAPI, service: Service) -> None:
    @app.get("/stats", response_model=Figures, responses=errors(504))
    async def stats() -> Response:
        """Get figures of the table, what the encoder takes, and the limits."""
        return await service.read(lambda: answer(figures(service)))

    @app.get("/health", response_model=Health, responses=errors(503))
    async def health() -> Response:
        """Ask whether the server works; 503 while it closes, or if its table failed.

        Damage that requests have met counts: 503 where searches are refused for it, the status
        "damaged" where hits come without their payload.
        """
        if service.closing:
            raise ProblemError(503, "the server is closing", "closing")
        if service.broken:
            reason = f"the server's log has the reason under {service.number}"
            raise ProblemError(503, f"the table cannot be read; {reason}", "storage")
        if not service.open:
            raise ProblemError(503, "the table was closed; start the server again", "storage")
        places, items = await service.damaged()
        if places:
            raise ProblemError(
                503,
                f"{places} places in the table's files are known to be damaged, and searches that "
                "need them are refused; restore the table from a copy and start the server again. "
                "The server's log and `flowhash table check` name them",
                "damaged",
            )
        status = "damaged" if items else "ok"
        return answer({"status": status, "items": service.count(), "damaged": items})

    @app.get("/metrics", response_class=Response, responses=METRICS)
    async def metrics() -> Response:
        """Get figures for Prometheus."""
        return Response(service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    @app.get("/openapi.json", include_in_schema=False)
    async def document() -> Response:
        return answer(app.openapi())


def _add_page(app: FastAPI) -> None:
    files = page_files()

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return page_response(files, INDEX, request)

    @app.get("/page/{name}", include_in_schema=False)
    async def file(name: str, request: Request) -> Response:
        return page_response(files, name, request)
