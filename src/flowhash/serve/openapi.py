"""The OpenAPI document: examples, both forms of bodies, every error, and this server's limits."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from flowhash.serve import examples, replies
from flowhash.serve.problems import CODES
from flowhash.serve.requests import (
    SEARCHES,
    EmbeddingSearch,
    IdSearch,
    NewEmbedding,
    NewVector,
    VectorSearch,
    VectorsSearch,
)
from flowhash.serve.service import Service

DESCRIPTION = (
    "Search items by the buckets of a learned encoder. Errors are JSON: "
    '{"error": {"code": …, "message": …}}.'
)
REF = "#/components/schemas/{model}"
UNUSED = ("HTTPValidationError", "ValidationError")  # the framework's errors, which are not ours
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


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error answers of an operation, with those that every operation has."""
    return {
        status: {
            "model": replies.Failure,
            "description": TEXTS[status],
            "content": {"application/json": {"example": examples.failure(CODES[status])}},
        }
        for status in sorted({*statuses, *EVERYWHERE})
    }


def _refers(*models: type) -> dict[str, Any]:
    return {"oneOf": [{"$ref": REF.format(model=model.__name__)} for model in models]}


_OPTION = {"type": "string"}
_SEARCH_FORM = {
    "type": "object",
    "required": ["image"],
    "properties": {
        "image": {"type": "string", "format": "binary", "description": "PNG, JPEG, WebP, GIF, BMP"},
        "top": {"type": "integer", "minimum": 1, "default": 16},
        "probe": {"type": "integer", "minimum": 1},
        "at_least": {"type": "integer", "minimum": 1, "maximum": (1 << 31) - 1},
        "payloads": {"type": "boolean", "default": True},
        "compare": {"type": "boolean", "default": False},
    },
    "additionalProperties": False,
}
_ITEMS_FORM = {
    "type": "object",
    "required": ["image"],
    "properties": {
        "image": {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1},
        "id": {"type": "array", "items": _OPTION, "description": "None, or one an image."},
        "label": {"type": "array", "items": _OPTION, "description": "None, one, or one an image."},
        "name": {"type": "array", "items": _OPTION, "description": "None, or one an image."},
    },
    "additionalProperties": False,
}
_ITEMS_JSON = {
    "type": "object",
    "required": ["items"],
    "properties": {
        "items": {"type": "array", "minItems": 1, "items": _refers(NewVector, NewEmbedding)}
    },
    "additionalProperties": False,
}


def _body(schema: dict[str, Any], shown: dict[str, Any], form: dict[str, Any]) -> dict[str, Any]:
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": schema, "examples": shown},
                "multipart/form-data": {"schema": form},
            },
        }
    }


SEARCH: dict[str, Any] = {
    "response_model": replies.Found,
    "responses": errors(400, 404, 408, 415, 422, 504),
    "openapi_extra": _body(_refers(*SEARCHES.values()), examples.SEARCHES, _SEARCH_FORM),
}
ADD: dict[str, Any] = {
    "response_model": replies.Added,
    "status_code": 201,
    "responses": errors(400, 401, 408, 415, 422, 504),
    "openapi_extra": {
        **_body(_ITEMS_JSON, examples.ITEMS, _ITEMS_FORM),
        "security": [{}, {"key": []}, {"bearer": []}],
    },
}
DELETE: dict[str, Any] = {
    "response_model": replies.Deleted,
    "responses": errors(401, 404, 504),
    "openapi_extra": {"security": [{}, {"key": []}, {"bearer": []}]},
}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
PICTURE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The picture.",
        "content": {"image/png": _BINARY, "image/jpeg": _BINARY},
    },
    304: {"description": "What the browser has is what there is."},
    **errors(404, 504),
}
METRICS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Prometheus' text format.",
        "content": {"text/plain": {"schema": {"type": "string"}, "example": examples.METRICS}},
    },
    **errors(),
}


def attach(app: FastAPI, service: Service) -> None:
    """Give the application its document, made when it is first asked for."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, service)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, service: Service) -> dict[str, Any]:
    made = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    models: list[type[BaseModel]] = [*SEARCHES.values(), NewVector, NewEmbedding]
    _, defined = models_json_schema([(model, "validation") for model in models], ref_template=REF)
    schemas = made["components"]["schemas"]
    schemas.update(defined["$defs"])
    for unused in UNUSED:
        schemas.pop(unused, None)
    made["components"]["securitySchemes"] = {
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        "bearer": {"type": "http", "scheme": "bearer"},
    }
    _add_examples(made)
    _add_limits(made, service)
    return made


def _add_examples(made: dict[str, Any]) -> None:
    """An example for every answer that is JSON."""
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            operation["operationId"] = examples.NAMES[method, path]
            shown = examples.ANSWERS.get((method, path))
            if UNUSED[0] in str(operation["responses"].get("422")):
                del operation["responses"]["422"]  # the framework's, for parameters of any kind
            for status in ("200", "201"):
                content = operation["responses"].get(status, {}).get("content", {})
                if "application/json" in content and shown is not None:
                    content["application/json"]["example"] = shown


def _add_limits(made: dict[str, Any], service: Service) -> None:
    """What this server's table, encoder and options ask for."""
    schemas, table, options = made["components"]["schemas"], service.table, service.options
    embedder = service.embedder
    inputs = None if embedder is None else embedder.inputs
    for model in SEARCHES.values():
        schemas[model.__name__]["properties"]["top"]["maximum"] = options.max_top
    sizes = (
        (schemas[VectorSearch.__name__]["properties"]["vector"], inputs),
        (schemas[VectorsSearch.__name__]["properties"]["vectors"]["items"], inputs),
        (schemas[NewVector.__name__]["properties"]["vector"], inputs),
        (schemas[EmbeddingSearch.__name__]["properties"]["embedding"], table.dim),
        (schemas[NewEmbedding.__name__]["properties"]["embedding"], table.dim),
        (schemas[NewEmbedding.__name__]["properties"]["code"], table.active),
    )
    for schema, size in sizes:
        if size is not None:
            schema.update(minItems=size, maxItems=size)
    for name, field in ((EmbeddingSearch.__name__, "buckets"), (NewEmbedding.__name__, "code")):
        schema = schemas[name]["properties"][field]
        schema["uniqueItems"] = True
        schema["items"] = {"type": "integer", "minimum": 0, "maximum": table.buckets - 1}
    schemas[EmbeddingSearch.__name__]["properties"]["buckets"]["minItems"] = table.active
    schemas[VectorsSearch.__name__]["properties"]["vectors"]["maxItems"] = options.max_batch
    kind = "integer" if table.id_kind == "int64" else "string"
    schemas[IdSearch.__name__]["properties"]["id"] = {"type": kind, "title": "Id"}
