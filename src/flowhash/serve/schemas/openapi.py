"""The OpenAPI document, with an example for everything."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from flowhash.serve.errors import CODES
from flowhash.serve.schemas.requests import (
    SEARCHES,
    EmbeddingSearch,
    IdSearch,
    NewEmbedding,
    NewVector,
    VectorSearch,
    VectorsSearch,
)
from flowhash.serve.schemas.responses import Added, Deleted, Failure, Found
from flowhash.serve.service import Service

_FACE = {"label": "apple", "name": "apples/17.png", "picture": "/pictures/17", "payload": {}}
_ITEM = {"id": 17, **_FACE, "buckets": [3]}
_HIT = {"id": 17, "distance": 0.12, **_FACE, "buckets": [3]}

SEARCH_EXAMPLES: dict[str, Any] = {
    "vector": {"summary": "a vector", "value": {"vector": [0.1, -0.2, 0.3], "top": 10}},
    "vectors": {
        "summary": "several vectors",
        "value": {"vectors": [[0.1, -0.2, 0.3], [0.0, 0.5, 0.1]], "top": 10, "payloads": False},
    },
    "id": {"summary": "a stored item", "value": {"id": 17, "top": 10, "compare": True}},
    "embedding": {
        "summary": "an embedding and its buckets, without an encoder",
        "value": {"embedding": [0.6, 0.8], "buckets": [3, 17], "probe": 2, "at_least": 50},
    },
}
ITEMS: dict[str, Any] = {
    "vector": {
        "summary": "a vector, which the encoder encodes",
        "value": {
            "items": [{"vector": [0.1, -0.2, 0.3], "label": "apple", "payload": {"shop": 3}}]
        },
    },
    "embedding": {
        "summary": "an embedding and its buckets",
        "value": {"items": [{"embedding": [0.6, 0.8], "code": [3], "id": 17, "name": "row 17"}]},
    },
}
METRICS_EXAMPLE = "# TYPE flowhash_items gauge\nflowhash_items 10000.0\n"
NAMES = {
    ("post", "/search"): "search",
    ("get", "/items"): "sample_items",
    ("post", "/items"): "add_items",
    ("get", "/items/{id}"): "get_item",
    ("delete", "/items/{id}"): "delete_item",
    ("get", "/pictures/{id}"): "get_picture",
    ("get", "/buckets"): "list_buckets",
    ("get", "/buckets/{bucket}"): "get_bucket",
    ("get", "/stats"): "get_stats",
    ("get", "/health"): "get_health",
    ("get", "/metrics"): "get_metrics",
}
_FOUND = {
    "items": 10000,
    "milliseconds": 0.42,
    "answers": [{"hits": [_HIT], "opened": [3, 17], "scanned": 97, "query_picture": None}],
    "exhaustive": {
        "milliseconds": 2.1,
        "scanned": 10000,
        "answers": [{"ids": [17], "distances": [0.12]}],
    },
    "damaged": [],
}
_STATS = {
    "metric": "euclidean", "dtype": "float32", "ids": "int64", "encoder": "1f0c…", "items": 10000,
    "deleted": 0, "segments": 1, "buckets": 256, "active": 1, "dim": 64, "load_p50": 97.0,
    "load_p99": 120.0, "load_max": 131, "empty": 156, "suf": 99.9, "expected_suf": 256.0,
    "expected_variance": 38.9, "bytes": 2800000, "bytes_per_item": 280.0,
    "bytes_per_embedding": 256,
    "takes": {"kind": "vectors", "size": None, "inputs": 3, "class_names": ["apple", "bear"]},
    "writable": True, "needs_key": False, "version": "0.1.0",
    "limits": {
        "max_body": 10485760, "max_answer": 16777216, "max_batch": 256, "max_top": 1000,
        "max_pixels": 25000000, "timeout": 10.0,
    },
}  # fmt: skip
ANSWERS: dict[tuple[str, str], Any] = {
    ("post", "/search"): _FOUND,
    ("get", "/items"): {"total": 10000, "items": [_ITEM]},
    ("post", "/items"): {"ids": [10000], "buckets": [[3]], "total": 10001},
    ("get", "/items/{id}"): _ITEM,
    ("delete", "/items/{id}"): {"deleted": 1, "total": 9999},
    ("get", "/buckets"): {"buckets": 4, "active": 1, "loads": [97, 0, 103, 99]},
    ("get", "/buckets/{bucket}"): {
        "bucket": 3,
        "load": 97,
        "purity": 0.93,
        "counted": 97,
        "classes": [{"label": "apple", "items": 90}, {"label": "pear", "items": 7}],
        "items": [_ITEM],
    },
    ("get", "/stats"): _STATS,
    ("get", "/health"): {"status": "ok", "items": 10000, "damaged": 0},
}


def failure(code: str) -> dict[str, Any]:
    """The body of an error."""
    return {"error": {"code": code, "message": "what came; what was expected; what to do"}}


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
            "model": Failure,
            "description": TEXTS[status],
            "content": {"application/json": {"example": failure(CODES[status])}},
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
    "response_model": Found,
    "responses": errors(400, 404, 408, 415, 422, 504),
    "openapi_extra": _body(_refers(*SEARCHES.values()), SEARCH_EXAMPLES, _SEARCH_FORM),
}
ADD: dict[str, Any] = {
    "response_model": Added,
    "status_code": 201,
    "responses": errors(400, 401, 408, 415, 422, 504),
    "openapi_extra": {
        **_body(_ITEMS_JSON, ITEMS, _ITEMS_FORM),
        "security": [{}, {"key": []}, {"bearer": []}],
    },
}
DELETE: dict[str, Any] = {
    "response_model": Deleted,
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
        "content": {"text/plain": {"schema": {"type": "string"}, "example": METRICS_EXAMPLE}},
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
            operation["operationId"] = NAMES[method, path]
            shown = ANSWERS.get((method, path))
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
