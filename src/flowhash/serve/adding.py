"""Items that clients add: read, encoded, and on disk before anybody is told."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from flowhash.data import LABEL, NAME, PICTURE, picture_of
from flowhash.serve.asking import check_batch
from flowhash.serve.errors import ProblemError
from flowhash.serve.image_decoder import decode_and_keep
from flowhash.serve.queries import encodable, image_size, numbers
from flowhash.serve.request_body import (
    DEPTH,
    FORM,
    check_keys,
    checked,
    files_of,
    form,
    kind_of,
    parsed,
    read_whole,
    text_fields,
    too_deep,
)
from flowhash.serve.schemas.requests import NewEmbedding, NewItem, NewItems, NewVector
from flowhash.serve.service import Service

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")


@dataclass(eq=False)
class Batch:
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


async def read_batch(service: Service, request: Request) -> Batch:
    """The items of a request.

    Raises:
        ProblemError: what is wrong with them.
    """
    if kind_of(request) == FORM:
        return await _images(service, request)
    body = await read_whole(request, service.options.timeout)
    return await service.read(lambda: _vectors(service, read_items(service, parsed(body))))


def read_items(service: Service, value: Any) -> list[dict[str, Any]]:
    """The items of a body; how many there are is looked at before what they are.

    Raises:
        ProblemError: 422 for too many, or where there are none.
    """
    if isinstance(value, dict):
        check_keys(value, "the body")
        if isinstance(value.get("items"), list):
            check_batch(service, len(value["items"]), "items")
    items = checked(NewItems, value).items
    for place, item in enumerate(items):
        check_keys(item, f"items.{place}")
    return items


def add(service: Service, batch: Batch) -> dict[str, Any]:
    """Put a batch into the table; when it returns, the items are on disk."""
    table = service.table
    codes, embeddings, maker = batch.codes, batch.rows, None
    if codes is None:
        assert service.embedder is not None
        made = service.embedder(batch.rows)
        codes, embeddings, maker = made.codes, made.embeddings, made.fingerprint
    ids = table.add(codes, embeddings, batch.ids, batch.payloads, encoder=maker)
    return {
        "ids": ids.tolist(),
        "buckets": np.sort(codes, axis=1).tolist(),
        "total": len(table),
    }


def _vectors(service: Service, given: list[dict[str, Any]]) -> Batch:
    raw = ["embedding" in item or "code" in item for item in given]
    if any(raw) and not all(raw):
        raise ProblemError(
            422, "some items have a vector and others an embedding; send them in two requests"
        )
    model = NewEmbedding if raw[0] else NewVector
    items: list[NewItem] = [
        checked(model, item, ("items", place)) for place, item in enumerate(given)
    ]
    codes = None
    if raw[0]:
        known = [item for item in items if isinstance(item, NewEmbedding)]
        rows = numbers([item.embedding for item in known], service.table.dim, "embedding")
        codes = _codes(service, [item.code for item in known])
    else:
        vectors = [item.vector for item in items if isinstance(item, NewVector)]
        rows = encodable(service, vectors)
    payloads = [_payload(item, place) for place, item in enumerate(items)]
    return Batch(rows, codes, ids_of(service, [item.id for item in items]), payloads)


def _codes(service: Service, codes: list[list[int]]) -> NDArray[np.int32]:
    active = service.table.active
    for place, code in enumerate(codes):
        if len(code) != active:
            raise ProblemError(
                422, f"items.{place}.code has {len(code)} buckets; expected {active}, the table's k"
            )
    return np.array(codes, np.int32)


def _payload(item: NewItem, place: int) -> dict[str, Any] | None:
    payload = dict(item.payload or {})
    if too_deep(payload):
        raise ProblemError(
            422, f"items.{place}.payload is nested more than {DEPTH} deep; make it flatter"
        )
    if PICTURE in payload and picture_of(payload) is None:
        raise ProblemError(
            422,
            f"items.{place}.payload.picture is no picture; expected a data URL of a small PNG or "
            "JPEG (data:image/png;base64,…), or nothing",
        )
    own = {LABEL: item.label, NAME: item.name}
    payload.update({name: value for name, value in own.items() if value is not None})
    return payload or None


def ids_of(service: Service, given: list[int | str | None]) -> list[int | str] | None:
    """The ids to store; None lets the table count.

    Raises:
        ProblemError: 422 for ids of the wrong kind, or for some items only.
    """
    strings = service.table.id_kind != "int64"
    if all(item is None for item in given):
        return [uuid.uuid4().hex for _ in given] if strings else None
    kind, words = (str, "strings") if strings else (int, "whole numbers")
    for place, item in enumerate(given):
        if not isinstance(item, kind):
            raise ProblemError(
                422,
                f"items.{place}.id is {item!r:.80}; this table has {words} as ids. Give "
                "every item one, or none",
            )
        if isinstance(item, str) and CONTROL.search(item):
            raise ProblemError(
                422,
                f"items.{place}.id is {item!r:.80}; control characters, such as line breaks, "
                "cannot stand in the path of an item. Leave them out",
            )
    return [item for item in given if item is not None]


async def _images(service: Service, request: Request) -> Batch:
    """Image files with their labels: one label for all, or one each; the same for names."""
    options = service.options
    size = image_size(service)
    async with form(request, options.timeout, options.max_batch) as found:
        files = files_of(found, "image")
        texts = text_fields(found, ("id", "label", "name"))
        contents = [(file.filename, await file.read()) for file in files]
    ids = _form_ids(service, _spread(texts.get("id", []), len(files), "id", alone=False))
    labels = _spread(texts.get("label", []), len(files), "label")
    names = _spread(texts.get("name", []), len(files), "name", alone=False)
    images, payloads, deadline = [], [], service.deadline()
    for (filename, content), label, name in zip(contents, labels, names, strict=True):
        shown = name or _file_name(filename)
        image, small = await service.decode(
            deadline, decode_and_keep, content, size, options.max_pixels, shown or "the image"
        )
        kept = {LABEL: label, NAME: shown, PICTURE: small}
        images.append(image)
        payloads.append({key: value for key, value in kept.items() if value})
    rows = np.stack(images)
    return Batch(rows, None, ids_of(service, ids), list(payloads))


def _spread(texts: list[str], count: int, name: str, alone: bool = True) -> list[str | None]:
    """One text for each file; ``alone``: a single one is for all."""
    for text in texts:
        if len(text) > 1024:
            raise ProblemError(422, f"{name} has {len(text)} characters; expected at most 1024")
    if not texts:
        return [None] * count
    if len(texts) == 1 and alone:
        return [texts[0]] * count
    if len(texts) != count:
        raise ProblemError(422, f"{len(texts)} fields {name} for {count} images; expected one each")
    return list(texts)


def _form_ids(service: Service, texts: list[str | None]) -> list[int | str | None]:
    """Ids of a form, which are texts, as the table has them; an empty one is none."""
    if service.table.id_kind != "int64":
        return [text or None for text in texts]
    ids: list[int | str | None] = []
    for text in texts:
        if text and number_of(text) is None:
            raise ProblemError(422, f"id is {text[:60]!r}; this table has whole numbers as ids")
        ids.append(number_of(text) if text else None)
    return ids


def number_of(text: str) -> int | None:
    """A text as an id of 64 bits; None if it is none."""
    if NUMBER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None


def _file_name(name: str | None) -> str | None:
    """The last part of what the client calls the file: never a path, and only for people to see."""
    shown = PurePosixPath((name or "").replace("\\", "/")).name
    return "".join(letter for letter in shown if letter.isprintable())[:255] or None
