"""The OpenAPI document, made of the operations that the routes declare and of their models."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from flowhash import __version__
from flowhash.engines import BrowsedEngine
from flowhash.serve.errors import CODES
from flowhash.serve.options import ServeOptions
from flowhash.serve.schemas.requests import (
    SEARCHES,
    EmbeddingSearch,
    IdSearch,
    ImageSearch,
    NewEmbedding,
    NewVector,
    VectorSearch,
    VectorsSearch,
)
from flowhash.serve.schemas.responses import ApiAnswer, Failure, Fault

DESCRIPTION = (
    "Search items by the buckets of a learned encoder. Errors are JSON: "
    '{"error": {"code": …, "message": …}}.'
)
REF = "#/components/schemas/{model}"
EVERYWHERE = (400, 403, 413, 503)  # two or foreign names, too large, too much to do
TEXTS = {
    400: "The body is no JSON or no form, or a header is there twice.",
    401: "The API key is missing or wrong.",
    403: "Not allowed: a server that only reads, an unknown Host, or a page of another site.",
    404: "There is no such thing.",
    408: "The body did not come in time.",
    413: "The body, the image or the answer is too large.",
    415: "The body is of another type than expected, or the image of another format.",
    422: "A value that cannot be used; the message names it.",
    503: "Too much to do (see Retry-After), closing, or the table failed or is damaged.",
    504: "It took too long.",
}
RETRY = {
    "Retry-After": {
        "description": "Where there is too much to do: seconds after which to try again, by what "
        "waits and how fast the last were done.",
        "schema": {"type": "integer", "minimum": 1},
        "example": 1,
    }
}
KEYS = {
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "bearer": {"type": "http", "scheme": "bearer"},
}

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Operation:
    """A route with what its callers are told. The endpoint's name and docstring are its own.

    Attributes:
        method: of HTTP.
        path: with its parameters, as Starlette writes them.
        endpoint: answers.
        answer: the model of what it answers with; None where that is no JSON.
        errors: statuses besides those that every operation has.
        parameters: of path and query.
        bodies: the models, one of which the request's JSON is.
        examples: of them.
        form: the model of a form that it may be instead.
        status: of success.
        needs_key: where there is one.
        others: responses that are no JSON, by status.
    """

    method: str
    path: str
    endpoint: Endpoint
    answer: type[ApiAnswer] | None = None
    errors: tuple[int, ...] = ()
    parameters: type[BaseModel] | None = None
    bodies: tuple[type[BaseModel], ...] = ()
    examples: dict[str, Any] = field(default_factory=dict)
    form: type[BaseModel] | None = None
    status: int = 200
    needs_key: bool = False
    others: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def route(self) -> Route:
        """What Starlette finds it by.

        It is called without Starlette's layer around endpoints, a tenth of a search's way through
        the event loop: the guard answers what endpoints raise.
        """
        route = Route(self.path, self.endpoint, methods=[self.method])
        route.app = self._answer
        return route

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)

    def described(self) -> dict[str, Any]:
        """The operation in the document."""
        name = self.endpoint.__name__
        told: dict[str, Any] = {
            "operationId": name,
            "summary": name.replace("_", " ").title(),
            "description": inspect.getdoc(self.endpoint),
        }
        if self.parameters is not None:
            told["parameters"] = self._parameters(self.parameters)
        if self.form is not None:
            refers = [_refer(model) for model in self.bodies]
            schema = refers[0] if len(refers) == 1 else {"oneOf": refers}
            told["requestBody"] = {
                "required": True,
                "content": {
                    "application/json": {"schema": schema, "examples": self.examples},
                    "multipart/form-data": {"schema": _refer(self.form)},
                },
            }
        told["responses"] = {str(status): each for status, each in self._responses().items()}
        if self.needs_key:
            told["security"] = [{}, *({name: []} for name in KEYS)]
        return told

    def _parameters(self, model: type[BaseModel]) -> list[dict[str, Any]]:
        schemas = model.model_json_schema()["properties"]
        return [
            {
                "name": name,
                "in": "path" if f"{{{name}" in self.path else "query",
                "required": each.is_required(),
                "schema": schemas[name],
                "description": each.description,
            }
            for name, each in model.model_fields.items()
        ]

    def _responses(self) -> dict[int, dict[str, Any]]:
        found = dict(self.others)
        if self.answer is not None:
            found[self.status] = _json("Successful Response", self.answer, self.answer.example)
        for status in sorted({*self.errors, *EVERYWHERE}):
            shown = Failure(Fault(CODES[status], "what came; what was expected; what to do"))
            found[status] = _json(TEXTS[status], Failure, shown)
        found[503]["headers"] = RETRY
        return found


def _refer(model: type) -> dict[str, Any]:
    return {"$ref": REF.format(model=model.__name__)}


def _json(text: str, model: type, example: ApiAnswer) -> dict[str, Any]:
    content = {"schema": _refer(model), "example": example}
    return {"description": text, "content": {"application/json": content}}


def document(
    operations: Sequence[Operation], table: BrowsedEngine, options: ServeOptions, inputs: int | None
) -> dict[str, Any]:
    """The document of a server; ``inputs`` are the numbers of a vector to encode, where known."""
    paths: dict[str, Any] = {}
    inwards: list[type] = [NewVector, NewEmbedding]
    outwards: list[type] = [Failure]
    for operation in operations:
        path = paths.setdefault(operation.route.path_format, {})
        path[operation.method.lower()] = operation.described()
        inwards += [*operation.bodies, *([operation.form] if operation.form else [])]
        outwards += [operation.answer] if operation.answer else []
    modes: dict[type, Any] = dict.fromkeys(inwards, "validation")
    modes |= dict.fromkeys(outwards, "serialization")
    _, defined = TypeAdapter.json_schemas(
        [(model, mode, TypeAdapter(model)) for model, mode in modes.items()], ref_template=REF
    )
    schemas = defined["$defs"]
    _add_limits(schemas, table, options, inputs)
    return {
        "openapi": "3.1.0",
        "info": {"title": "FlowHash", "description": DESCRIPTION, "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": KEYS},
    }


def _add_limits(
    schemas: dict[str, Any], table: BrowsedEngine, options: ServeOptions, inputs: int | None
) -> None:
    """What this server's table, encoder and options ask for."""

    def schema(model: type, name: str) -> dict[str, Any]:
        found: dict[str, Any] = schemas[model.__name__]["properties"][name]
        return found

    searches: list[type] = [*SEARCHES.values(), ImageSearch]
    for model in searches:
        schema(model, "top")["maximum"] = options.max_top
    sizes = (
        (schema(VectorSearch, "vector"), inputs),
        (schema(VectorsSearch, "vectors")["items"], inputs),
        (schema(NewVector, "vector"), inputs),
        (schema(EmbeddingSearch, "embedding"), table.dim),
        (schema(NewEmbedding, "embedding"), table.dim),
    )
    for sized, size in sizes:
        if size is not None:
            sized.update(minItems=size, maxItems=size)
    for numbers in (schema(EmbeddingSearch, "buckets"), schema(NewEmbedding, "code")):
        numbers["uniqueItems"] = True
        numbers["items"] = {"type": "integer", "minimum": 0, "maximum": table.buckets - 1}
    schema(NewEmbedding, "code")["maxItems"] = table.active
    # One for each bucket, or none where there are buckets.
    outputs = {"anyOf": [{"maxItems": 0}, {"minItems": table.buckets}], "maxItems": table.buckets}
    schema(EmbeddingSearch, "activations").update(outputs)
    schema(VectorsSearch, "vectors")["maxItems"] = options.max_batch
    kind = "integer" if table.id_kind == "int64" else "string"
    schemas[IdSearch.__name__]["properties"]["id"] = {"type": kind, "title": "Id"}
