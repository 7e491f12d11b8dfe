"""Items: looked at, added, deleted; what is changed is on disk before anybody is told."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from flowhash.data import LABEL, NAME, PICTURE, picture_of
from flowhash.serve.errors import RequestError
from flowhash.serve.request_body import (
    DEPTH,
    IMAGE,
    check_keys,
    decode_and_keep,
    number_rows,
    parameters,
    parse_json,
    read_body,
    read_form,
    too_deep,
    validate,
)
from flowhash.serve.routes.page import cached
from flowhash.serve.schemas.openapi import Operation
from flowhash.serve.schemas.requests import (
    ITEM_EXAMPLES,
    ItemForm,
    ItemParameters,
    ItemsToAdd,
    NewEmbedding,
    NewItem,
    NewVector,
    SampleParameters,
)
from flowhash.serve.schemas.responses import Added, Deleted, Sample, StoredItem, json_response
from flowhash.serve.search_executor import refuse_other_codes
from flowhash.serve.service import Service, service_of
from flowhash.table import padded_codes

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
FORM_TEXTS = tuple(name for name in ItemForm.model_fields if name != IMAGE)
PICTURE_POLICY = "default-src 'none'; sandbox"


async def sample_items(request: Request) -> Response:
    """Draw stored items at random."""
    service, asked = service_of(request), parameters(SampleParameters, request)

    def work() -> Response:
        service.check_count(asked.count)
        total, items = service.table.sample(asked.count, asked.seed, *service.noting)
        return json_response(Sample(total, [StoredItem.read(item) for item in items]))

    return await service.read(work, alone=True)


async def get_item(request: Request) -> Response:
    """Get one stored item."""
    service, text = service_of(request), request.path_params["id"]
    return await service.read(
        lambda: json_response(StoredItem.read(service.item(service.id_of(text))))
    )


async def get_picture(request: Request) -> Response:
    """Get the small picture of a stored item."""
    service, text = service_of(request), request.path_params["id"]
    item = await service.read(lambda: service.item(service.id_of(text)))
    kept = picture_of(item.payload)
    if kept is None:
        raise RequestError(404, f"the item {text[:200]!r} has no picture")
    media, content = kept
    return cached(request, content, media, {"Content-Security-Policy": PICTURE_POLICY})


async def add_items(request: Request) -> Response:
    """Add items; the answer comes when they are on disk."""
    service = service_of(request)
    service.guard.check_write(request.headers)  # before a body is read
    service.lines["write"].check()
    batch = await _read_batch(service, request)
    return json_response(await service.write(lambda: _add(service, batch)), 201)


async def delete_item(request: Request) -> Response:
    """Delete one item; the answer comes when that is on disk."""
    service = service_of(request)
    service.guard.check_write(request.headers)

    def work() -> Response:
        item = service.id_of(request.path_params["id"])
        # It is not read: what is damaged can be deleted too.
        gone = item in service.table and service.table.delete([item])
        if not gone:
            raise service.no_item(item)
        return json_response(Deleted(gone, len(service.table)))

    return await service.write(work)


_BINARY = {"schema": {"type": "string", "format": "binary"}}
OPERATIONS = (
    Operation("GET", "/items", sample_items, Sample, (422, 504), parameters=SampleParameters),
    Operation("GET", "/items/{id:path}", get_item, StoredItem, (404, 504), ItemParameters),
    Operation(
        "GET",
        "/pictures/{id:path}",
        get_picture,
        errors=(404, 504),
        parameters=ItemParameters,
        others={
            200: {
                "description": "The picture.",
                "content": {"image/png": _BINARY, "image/jpeg": _BINARY},
            },
            304: {"description": "What the browser has is what there is."},
        },
    ),
    Operation(
        "POST",
        "/items",
        add_items,
        Added,
        (400, 401, 408, 415, 422, 504),
        bodies=(ItemsToAdd,),
        examples=ITEM_EXAMPLES,
        form=ItemForm,
        status=201,
        needs_key=True,
    ),
    Operation(
        "DELETE",
        "/items/{id:path}",
        delete_item,
        Deleted,
        (401, 404, 504),
        ItemParameters,
        needs_key=True,
    ),
)


@dataclass(eq=False)
class ItemBatch:
    """Items to add: to be encoded, or with codes.

    Attributes:
        rows: vectors, images or embeddings [n, …].
        codes: [n, k], or None where the encoder makes them.
        ids: None lets the table count.
        payloads: one an item.
    """

    rows: NDArray[Any]
    codes: NDArray[np.int32] | None
    ids: list[int | str] | None
    payloads: list[dict[str, Any] | None]


async def _read_batch(service: Service, request: Request) -> ItemBatch:
    body = await read_body(request, service.options.timeout)
    if body is None:
        return await _images(service, request)
    return await service.read(lambda: _vectors(service, parse_json(body)))


def _add(service: Service, batch: ItemBatch) -> Added:
    """Put a batch into the table; when it returns, the items are on disk."""
    table = service.table
    codes, embeddings, maker = batch.codes, batch.rows, None
    if codes is None:
        assert service.query_encoder is not None
        made = service.query_encoder(batch.rows)
        codes, embeddings, maker = made.codes, made.embeddings, made.fingerprint
        refuse_other_codes(table.encoder, maker)
    ids = table.add(codes, embeddings, batch.ids, batch.payloads, encoder=maker)
    made_codes = [sorted(bucket for bucket in code if bucket >= 0) for code in codes.tolist()]
    return Added(ids.tolist(), made_codes, len(table))


def _vectors(service: Service, value: Any) -> ItemBatch:
    """The items of a body; how many there are is looked at before what they are."""
    if isinstance(value, dict):
        check_keys(value, "the body")
        if isinstance(value.get("items"), list):
            service.check_batch(len(value["items"]), "items")
    given = validate(ItemsToAdd, value).items
    for place, item in enumerate(given):
        check_keys(item, f"items.{place}")
    raw = ["embedding" in item or "code" in item for item in given]
    if any(raw) and not all(raw):
        raise RequestError(
            422, "some items have a vector and others an embedding; send them in two requests"
        )
    model = NewEmbedding if raw[0] else NewVector
    items: list[NewItem] = [
        validate(model, item, ("items", place)) for place, item in enumerate(given)
    ]
    codes = None
    if raw[0]:
        known = [item for item in items if isinstance(item, NewEmbedding)]
        rows = number_rows([item.embedding for item in known], service.table.dim, "embedding")
        codes = _codes(service, [item.code for item in known])
    else:
        vectors = [item.vector for item in items if isinstance(item, NewVector)]
        rows = service.encodable(vectors)
    payloads = [_payload(item, place) for place, item in enumerate(items)]
    return ItemBatch(rows, codes, _ids_of(service, [item.id for item in items]), payloads)


def _codes(service: Service, codes: list[list[int]]) -> NDArray[np.int32]:
    active = service.table.active
    for place, code in enumerate(codes):
        if not 1 <= len(code) <= active:
            raise RequestError(
                422,
                f"items.{place}.code has {len(code)} buckets; expected "
                f"{f'1 to {active}' if active > 1 else '1'}, the table's k",
            )
    return padded_codes(codes, active)


def _payload(item: NewItem, place: int) -> dict[str, Any] | None:
    payload = dict(item.payload or {})
    if too_deep(payload):
        raise RequestError(
            422, f"items.{place}.payload is nested more than {DEPTH} deep; make it flatter"
        )
    if PICTURE in payload and picture_of(payload) is None:
        raise RequestError(
            422,
            f"items.{place}.payload.picture is no picture; expected a data URL of a small PNG or "
            "JPEG (data:image/png;base64,…), or nothing",
        )
    own = {LABEL: item.label, NAME: item.name}
    payload.update({name: value for name, value in own.items() if value is not None})
    return payload or None


def _ids_of(
    service: Service, given: list[int | str | None], field: str = "items.{}.id"
) -> list[int | str] | None:
    """The ids to store, which came in such a field; None lets the table count."""
    strings = service.table.id_kind != "int64"
    if all(item is None for item in given):
        return [uuid.uuid4().hex for _ in given] if strings else None
    for place, item in enumerate(given):
        if not isinstance(item, str if strings else int):
            raise RequestError(
                422,
                f"{field.format(place)} is {item!r:.80}; this table has {service.id_words} as ids. "
                "Give every item one, or none",
            )
        if isinstance(item, str) and CONTROL.search(item):
            raise RequestError(
                422,
                f"{field.format(place)} is {item!r:.80}; control characters, such as line breaks, "
                "cannot stand in the path of an item. Leave them out",
            )
    return [item for item in given if item is not None]


async def _images(service: Service, request: Request) -> ItemBatch:
    """Image files with their labels: one label for all, or one each."""
    options = service.options
    size = service.image_size()
    service.lines["decode"].check()  # not before each image: a request is refused as a whole
    files, texts = await read_form(request, options.timeout, options.max_batch, FORM_TEXTS)
    known = [service.id_of(text) if text else None for text in _spread(texts, "id", len(files))]
    ids = _ids_of(service, known, "id")
    labels = _spread(texts, "label", len(files), one_for_all=True)
    names = _spread(texts, "name", len(files))
    images, deadline = [], service.deadline()
    payloads: list[dict[str, Any] | None] = []
    for (filename, content), label, name in zip(files, labels, names, strict=True):
        shown = name or _file_name(filename)
        limits = (size, options.max_pixels, shown or "the image")
        image, small = await service.decode(deadline, partial(decode_and_keep, content, *limits))
        kept = {LABEL: label, NAME: shown, PICTURE: small}
        images.append(image)
        payloads.append({key: value for key, value in kept.items() if value})
    return ItemBatch(np.stack(images), None, ids, payloads)


def _spread(
    fields: dict[str, list[str]], name: str, count: int, one_for_all: bool = False
) -> list[str | None]:
    """The text of each file in a field of the form."""
    texts = fields.get(name, [])
    for text in texts:
        if len(text) > 1024:
            raise RequestError(422, f"{name} has {len(text)} characters; expected at most 1024")
    if not texts:
        return [None] * count
    if one_for_all and len(texts) == 1:
        return [texts[0]] * count
    if len(texts) != count:
        raise RequestError(422, f"{len(texts)} fields {name} for {count} images; expected one each")
    return [*texts]


def _file_name(name: str | None) -> str | None:
    """The last part of what the client calls the file: never a path, and only for people to see."""
    shown = PurePosixPath((name or "").replace("\\", "/")).name
    return "".join(letter for letter in shown if letter.isprintable())[:255] or None
