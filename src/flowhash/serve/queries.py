"""From requests to queries: everything is checked here, so that a batch holds only good ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import FormData
from starlette.requests import Request

from flowhash.serve import bodies
from flowhash.serve.faces import picture_address
from flowhash.serve.finding import Query
from flowhash.serve.pictures import decode
from flowhash.serve.problems import ProblemError
from flowhash.serve.requests import (
    SEARCHES,
    Asked,
    EmbeddingSearch,
    IdSearch,
    VectorSearch,
    VectorsSearch,
)
from flowhash.serve.service import Service

LARGEST_ANSWER = 100_000  # hits in one answer
OPTIONS = tuple(Asked.model_fields)
WORDS = {"true": True, "false": False, "1": True, "0": False, "on": True, "off": False}


async def read_query(service: Service, request: Request) -> tuple[Query, bool]:
    """The query of a request, and whether it is to be compared with exhaustive search.

    Raises:
        ProblemError: what is wrong with it.
    """
    if bodies.kind_of(request) == bodies.FORM:
        return await _image_query(service, request)
    asked = read_search(await bodies.read_json(request, service.options.timeout))
    if isinstance(asked, VectorSearch):
        query = _query(service, asked, encodable(service, [asked.vector]), None)
    elif isinstance(asked, VectorsSearch):
        check_batch(service, len(asked.vectors), "vectors")
        query = _query(service, asked, encodable(service, asked.vectors), None)
    elif isinstance(asked, EmbeddingSearch):
        rows = numbers([asked.embedding], service.table.dim, "embedding")
        query = _query(service, asked, rows, np.array([asked.buckets], np.int32))
    else:
        assert isinstance(asked, IdSearch)
        query = await service.read(_stored_query, service, asked)
    return query, asked.compare


def read_search(value: Any) -> Asked:
    """What is asked, by the one field that says by what.

    Raises:
        ProblemError: 422 for none of them, more than one, or wrong types.
    """
    if not isinstance(value, dict):
        raise ProblemError(
            422, f'the body is {_kind(value)}; expected an object, such as {{"id": 17}}'
        )
    given = [name for name in SEARCHES if name in value]
    if len(given) != 1:
        came = " and ".join(given) or "none of them"
        raise ProblemError(
            422,
            f"the body has {came}; expected exactly one of vector, vectors, id, and embedding "
            "(with buckets)",
        )
    return bodies.checked(SEARCHES[given[0]], value)


def encodable(service: Service, vectors: list[list[float]]) -> NDArray[np.float32]:
    """Vectors that the encoder takes [n, numbers].

    Raises:
        ProblemError: 422 where there is no encoder, it takes images, or the numbers do not fit.
    """
    if service.embedder is None:
        raise ProblemError(
            422,
            "this server has no encoder, so that it cannot search by a vector or add one; send "
            "embedding and buckets (to add: code), or an id",
            "no_encoder",
        )
    if service.takes_images:
        raise ProblemError(
            422, "this server's encoder takes images; send one as multipart/form-data", "no_vectors"
        )
    return numbers(vectors, service.embedder.inputs, "vector")


def numbers(vectors: list[list[float]], size: int | None, name: str) -> NDArray[np.float32]:
    """Lists of checked numbers as float32 [n, size].

    Raises:
        ProblemError: 422 for another length.
    """
    expected = len(vectors[0]) if size is None else size
    for place, vector in enumerate(vectors):
        if len(vector) != expected:
            which = name if len(vectors) == 1 else f"{name} {place}"
            raise ProblemError(422, f"{which} has {len(vector)} numbers; expected {expected}")
    return np.array(vectors, np.float32)


def check_batch(service: Service, count: int, name: str) -> None:
    """Refuse more than ``max_batch``.

    Raises:
        ProblemError: 422.
    """
    most = service.options.max_batch
    if count > most:
        raise ProblemError(
            422, f"{count} {name} at once; expected at most {most}. Send parts", "too_many"
        )


def _query(
    service: Service, asked: Asked, rows: NDArray[Any], order: NDArray[np.int32] | None
) -> Query:
    most, table = service.options.max_top, service.table
    if asked.top > most or asked.top * len(rows) > LARGEST_ANSWER:
        raise ProblemError(
            422,
            f"top is {asked.top} and the number of queries {len(rows)}; expected a top of at most "
            f"{most}, and {LARGEST_ANSWER} hits in all",
            "too_many",
        )
    reach = table.buckets if order is None else order.shape[1]
    probe = asked.probe or table.active
    if probe > reach:
        raise ProblemError(
            422,
            f"{probe} buckets are to be opened, but {reach} are known; give a smaller probe"
            + ("" if order is None else ", or more buckets"),
        )
    if asked.compare and len(rows) > 1:
        raise ProblemError(422, "compare is for one query; send one, or leave it out")
    return Query(rows, order, asked.top, asked.probe, asked.at_least, asked.payloads)


def _stored_query(service: Service, asked: IdSearch) -> Query:
    """A stored item as a query: its embedding, in its own buckets."""
    try:
        item = service.table[asked.id]
    except KeyError as error:
        raise no_item(service, asked.id) from error
    probe = asked.probe or service.table.active
    if probe > service.table.active:
        raise ProblemError(
            422,
            f"probe is {probe}; a search by id opens the item's own {service.table.active} "
            "buckets, and of no other is known how near it is. Leave probe out, or send a vector",
        )
    query = _query(service, asked, item.embedding[None], item.code[None])
    query.without = item.id
    query.picture = picture_address(item.id, item.payload)
    return query


async def _image_query(service: Service, request: Request) -> tuple[Query, bool]:
    options = service.options
    size = image_size(service)
    async with bodies.form(request, options.timeout, 1) as found:
        asked = _asked(found)
        content = await bodies.files_of(found, "image")[0].read()
    image, _ = await service.read(decode, content, size, options.max_pixels)
    return _query(service, asked, image[None], None), asked.compare


def image_size(service: Service) -> tuple[int, int]:
    """Height and width of images that the encoder takes.

    Raises:
        ProblemError: 422 where it takes none.
    """
    if service.embedder is None or not service.takes_images:
        raise ProblemError(
            422,
            "this server's encoder takes vectors, or there is none; send JSON with a vector, an "
            "id, or embedding and buckets",
            "no_images",
        )
    size = service.embedder.encoder.preprocessing.size
    assert size is not None
    return size


def _asked(found: FormData) -> Asked:
    """The options of a form, whose values are all texts."""
    values: dict[str, Any] = {}
    for name, texts in bodies.text_fields(found, OPTIONS).items():
        text = texts[-1].strip().lower()
        if text in ("", "null"):
            continue
        if name in ("payloads", "compare"):
            values[name] = WORDS.get(text, text)
        else:
            values[name] = (
                int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text
            )
    return bodies.checked(Asked, values)


def no_item(service: Service, item: int | str) -> ProblemError:
    """There is no item with this id."""
    kind = "whole numbers" if service.table.id_kind == "int64" else "strings"
    return ProblemError(404, f"there is no item {item!r:.200}; ids of this table are {kind}")


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")
