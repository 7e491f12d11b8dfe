"""From requests to queries: everything is checked here, so that a batch holds only good ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import FormData
from starlette.requests import Request

from flowhash.errors import DamagedFileError
from flowhash.serve.asking import read_search
from flowhash.serve.errors import SHORT, ProblemError
from flowhash.serve.image_decoder import decode
from flowhash.serve.request_body import (
    FORM,
    LARGE,
    checked,
    files_of,
    form,
    kind_of,
    parsed,
    read_whole,
    text_fields,
)
from flowhash.serve.schemas.requests import (
    Asked,
    EmbeddingSearch,
    IdSearch,
    VectorSearch,
    VectorsSearch,
)
from flowhash.serve.schemas.responses import picture_address
from flowhash.serve.search_executor import Query
from flowhash.serve.service import Service

LARGEST_ANSWER = 100_000  # hits in one answer
OPTIONS = tuple(Asked.model_fields)
WORDS = {"true": True, "false": False}  # no others: they are what the schema says


async def read_query(service: Service, request: Request) -> Query:
    """The query of a request.

    Raises:
        ProblemError: what is wrong with it.
    """
    if kind_of(request) == FORM:
        return await _image_query(service, request)
    body = await read_whole(request, service.options.timeout)
    if len(body) > LARGE:
        return await service.read(lambda: _json_query(service, read_search(service, parsed(body))))
    asked = read_search(service, parsed(body))
    if isinstance(asked, IdSearch):
        return await service.read(_json_query, service, asked)
    return _json_query(service, asked)


def _json_query(service: Service, asked: Asked) -> Query:
    if isinstance(asked, VectorSearch):
        return _query(service, asked, encodable(service, [asked.vector]), None)
    if isinstance(asked, VectorsSearch):
        return _query(service, asked, encodable(service, asked.vectors), None)
    if isinstance(asked, EmbeddingSearch):
        rows = numbers([asked.embedding], service.table.dim, "embedding")
        return _query(service, asked, rows, _order(service, asked.buckets))
    assert isinstance(asked, IdSearch)
    return _stored_query(service, asked)


def _order(service: Service, buckets: list[int]) -> NDArray[np.int32]:
    most = service.table.buckets
    if max(buckets) >= most or len(set(buckets)) < len(buckets):
        raise ProblemError(
            422,
            f"buckets is {SHORT.repr(buckets):.60}; expected different whole numbers from 0 to "
            f"{most - 1}, best first",
        )
    return np.array([buckets], np.int32)


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
    return Query(
        rows, order, asked.top, asked.probe, asked.at_least, asked.payloads, compare=asked.compare
    )


def _stored_query(service: Service, asked: IdSearch) -> Query:
    """A stored item as a query: its embedding, in its own buckets."""
    try:
        item = service.table[asked.id]
    except KeyError as error:
        raise no_item(service, asked.id) from error
    except DamagedFileError as error:
        raise unreadable(service, asked.id, error) from error
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


async def _image_query(service: Service, request: Request) -> Query:
    options = service.options
    size = image_size(service)
    async with form(request, options.timeout, 1) as found:
        asked = _asked(found)
        content = await files_of(found, "image")[0].read()
    image = await service.decode(service.deadline(), decode, content, size, options.max_pixels)
    return _query(service, asked, image[None], None)


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
    for name, texts in text_fields(found, OPTIONS).items():
        text = texts[-1].strip().lower()
        if text in ("", "null"):
            continue
        if name in ("payloads", "compare"):
            values[name] = WORDS.get(text, text)
        else:
            values[name] = (
                int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text
            )
    return checked(Asked, values)


def no_item(service: Service, item: int | str) -> ProblemError:
    """There is no item with this id."""
    kind = "whole numbers" if service.table.id_kind == "int64" else "strings"
    return ProblemError(404, f"there is no item {item!r:.200}; ids of this table are {kind}")


def unreadable(service: Service, item: int | str, error: DamagedFileError) -> ProblemError:
    """An item that is stored, but cannot be read as a whole; others are served."""
    service.damage.note_item(item, error)
    return ProblemError(
        503,
        f"the item {item!r:.200} is damaged and cannot be shown; delete or add it again, or "
        "restore the table from a copy. The server's log has the reason",
        "damaged",
    )
