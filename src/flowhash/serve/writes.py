"""The routes that change the table: add and delete items."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from flowhash.serve.adding import add, read_batch
from flowhash.serve.queries import no_item
from flowhash.serve.reading import ItemId, known_id
from flowhash.serve.schemas.openapi import ADD, DELETE
from flowhash.serve.schemas.responses import answer
from flowhash.serve.service import Service


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes that change the table; each looks at the key before it reads a body."""

    @app.post("/items", **ADD)
    async def add_items(request: Request) -> Response:
        """Add items; the answer comes when they are on disk."""
        service.gate.write(request.scope["headers"])
        batch = await read_batch(service, request)
        return answer(await service.write(add, service, batch), 201)

    @app.delete("/items/{id:path}", **DELETE)
    async def delete_item(id: ItemId, request: Request) -> Response:
        """Delete one item; the answer comes when that is on disk."""
        service.gate.write(request.scope["headers"])

        def work() -> Response:
            item = known_id(service, id)  # not read: what is damaged can be deleted too
            gone = item in service.table and service.table.delete([item])
            if not gone:
                raise no_item(service, item)
            return answer({"deleted": gone, "total": len(service.table)})

        return await service.write(work)
