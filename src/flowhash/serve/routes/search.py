"""POST /search: from a request to a query. All of it is checked here, so that batches are good."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from flowhash.serve.errors import SHORT, RequestError
from flowhash.serve.request_body import (
    LARGE,
    check_keys,
    decode,
    number_rows,
    parse_json,
    read_body,
    read_form,
    validate,
)
from flowhash.serve.schemas.openapi import Operation
from flowhash.serve.schemas.requests import (
    SEARCH_EXAMPLES,
    SEARCHES,
    EmbeddingSearch,
    IdSearch,
    ImageSearch,
    SearchOptions,
    VectorSearch,
    VectorsSearch,
)
from flowhash.serve.schemas.responses import JsonResponse, SearchAnswer, picture_address
from flowhash.serve.search_executor import SearchQuery
from flowhash.serve.service import Service, service_of
from flowhash.table import check_probe

LARGEST_ANSWER = 100_000  # hits in one answer
FORM_TEXTS = tuple(SearchOptions.model_fields)
WORDS = {"true": True, "false": False}  # no others: they are what the schema says
SHARE = re.compile(r"[0-9]{1,18}|[0-9]{0,18}\.[0-9]{1,18}")  # a recall in a form
KINDS = {list: "a list", str: "a text", type(None): "null"}


async def search(request: Request) -> Response:
    """Find the stored items that are nearest to a vector, an image or another item."""
    service = service_of(request)
    body = await service.search(await _read_query(service, request))
    return JsonResponse(body)


OPERATIONS = (
    Operation(
        "POST",
        "/search",
        search,
        SearchAnswer,
        (400, 404, 408, 415, 422, 504),
        bodies=tuple(SEARCHES.values()),
        examples=SEARCH_EXAMPLES,
        form=ImageSearch,
    ),
)


async def _read_query(service: Service, request: Request) -> SearchQuery:
    body = await read_body(request, service.options.timeout)
    if body is None:
        return await _image_query(service, request)
    if len(body) > LARGE:
        return await service.read(
            lambda: _json_query(service, _read_search(service, parse_json(body)))
        )
    asked = _read_search(service, parse_json(body))
    if isinstance(asked, IdSearch):
        return await service.read(lambda: _json_query(service, asked))
    return _json_query(service, asked)


def _json_query(service: Service, asked: SearchOptions) -> SearchQuery:
    if isinstance(asked, IdSearch):
        return _stored_query(service, asked)
    if isinstance(asked, EmbeddingSearch):
        rows = number_rows([asked.embedding], service.table.dim, "embedding")
        buckets, most = asked.buckets, service.table.buckets
        if asked.recall is not None:
            return _query(service, asked, rows, _activations(asked, most))
        if not buckets or asked.activations:
            raise RequestError(
                422,
                "an embedding came without buckets, or with activations; expected buckets, best "
                "first. Activations go with recall, in place of them",
            )
        if max(buckets) >= most or len(set(buckets)) < len(buckets):
            raise RequestError(
                422,
                f"buckets is {SHORT.repr(buckets):.60}; expected different whole numbers from 0 to "
                f"{most - 1}, best first",
            )
        return _query(service, asked, rows, np.array([buckets], np.int32))
    assert isinstance(asked, VectorSearch | VectorsSearch)
    vectors = [asked.vector] if isinstance(asked, VectorSearch) else asked.vectors
    return _query(service, asked, service.encodable(vectors), None)


def _read_search(service: Service, value: Any) -> SearchOptions:
    """What is asked, by the one field that says by what.

    A million values are not checked to be refused.
    """
    if not isinstance(value, dict):
        raise RequestError(
            422,
            f"the body is {KINDS.get(type(value), 'a number')}; expected an object, such as "
            '{"id": 17}',
        )
    given = [name for name in SEARCHES if name in value]
    if len(given) != 1:
        came = " and ".join(given) or "none of them"
        raise RequestError(
            422,
            f"the body has {came}; expected exactly one of vector, vectors, id, and embedding "
            "(with buckets)",
        )
    check_keys(value, "the body")
    if isinstance(value.get("vectors"), list):
        service.check_batch(len(value["vectors"]), "vectors")
    buckets, most = value.get("buckets"), service.table.buckets
    if isinstance(buckets, list) and len(buckets) > most:
        raise RequestError(
            422, f"{len(buckets)} buckets came; the table has {most}. Name each once"
        )
    item = value.get("id", 0)
    if type(item) not in (int, str):  # one of the wrong kind is just not there
        raise RequestError(
            422, f"id is {SHORT.repr(item):.60}; this table has {service.id_words} as ids"
        )
    return validate(SEARCHES[given[0]], value)


def _query(
    service: Service, asked: SearchOptions, rows: NDArray[Any], order: NDArray[Any] | None
) -> SearchQuery:
    most, table = service.options.max_top, service.table
    if asked.top > most or asked.top * len(rows) > LARGEST_ANSWER:
        raise RequestError(
            422,
            f"top is {asked.top} and the number of queries {len(rows)}; expected a top of at most "
            f"{most}, and {LARGEST_ANSWER} hits in all",
            "too_many",
        )
    reach = table.buckets if order is None else order.shape[1]
    probe = asked.probe or table.active
    if asked.recall is not None:
        if asked.probe is not None:
            raise RequestError(
                422,
                "recall and probe came together; recall says itself how many buckets are opened. "
                "Leave one of them out",
            )
    else:
        check_probe(probe, table.buckets)
    if asked.recall is None and probe > reach:
        raise RequestError(
            422,
            f"{probe} buckets are to be opened, but {reach} are known; give a smaller probe, or "
            "more buckets",
        )
    if asked.compare and len(rows) > 1:
        raise RequestError(422, "compare is for one query; send one, or leave it out")
    query = SearchQuery(
        rows, order, asked.top, asked.probe, asked.at_least, asked.payloads, recall=asked.recall,
        compare=asked.compare,
    )  # fmt: skip
    if order is None and service.query_encoder is not None:
        encoder = service.query_encoder.encoder
        query.encoder = encoder.fingerprint
        if query.recall is None and encoder.active < table.active:  # room for second buckets
            query.probe = query.probe or encoder.active
    return query


def _activations(asked: EmbeddingSearch, buckets: int) -> NDArray[np.float32]:
    if asked.buckets or not asked.activations:
        raise RequestError(
            422,
            "recall came with an embedding and buckets; how many are opened depends on how sure "
            f"the network is. Send activations, its {buckets} outputs, in place of the buckets, "
            "or a vector, or give probe",
        )
    return number_rows([asked.activations], buckets, "activations")


def _stored_query(service: Service, asked: IdSearch) -> SearchQuery:
    """A stored item as a query: its embedding, in its own buckets or in those of a recall."""
    encoder = service.table.encoder  # before the item, whose code may be made anew meanwhile
    item = service.item(asked.id)
    active = len(item.code)
    if asked.probe is not None and asked.probe > active:
        raise RequestError(
            422,
            f"probe is {asked.probe}; a search by id opens the item's own {active} buckets, and of "
            "no other is known how near it is. Leave probe out, or send a vector",
        )
    order: NDArray[Any] = item.code[None]
    if asked.recall is not None and asked.probe is None:
        order = service.activations_of(item.embedding[None])
    elif active < service.table.active:
        asked = asked.model_copy(update={"probe": asked.probe or active})
    query = _query(service, asked, item.embedding[None], order)
    query.without, query.encoder = item.id, encoder
    query.picture = picture_address(item.id, item.payload)
    return query


async def _image_query(service: Service, request: Request) -> SearchQuery:
    options = service.options
    size = service.image_size()
    for line in ("decode", "wide"):  # before the image is read
        service.lines[line].check()
    images, texts = await read_form(request, options.timeout, 1, FORM_TEXTS)
    asked, (_, content) = _form_options(texts), images[0]
    image = await service.decode(
        service.deadline(), lambda: decode(content, size, options.max_pixels)
    )
    return _query(service, asked, image[None], None)


def _form_options(fields: dict[str, list[str]]) -> SearchOptions:
    """The options of a form, whose values are all texts."""
    values: dict[str, Any] = {}
    for name, texts in fields.items():
        text = texts[-1].strip().lower()
        if text in ("", "null"):
            continue
        if name in ("payloads", "compare"):
            values[name] = WORDS.get(text, text)
        elif name == "recall":
            values[name] = float(text) if SHARE.fullmatch(text) else text
        else:
            number = text.isascii() and text.isdigit() and len(text) < 19
            values[name] = int(text) if number else text
    return validate(SearchOptions, values)
