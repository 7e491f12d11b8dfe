"""The answers of the API: the models beside what makes them."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import orjson
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from flowhash.data import LABEL, NAME, PICTURE, PICTURE_MEDIA
from flowhash.table import Item

DISTANCE = (
    "By the table's metric: the squared Euclidean distance, 1 - cosine, or minus the inner product."
)


class Reply(BaseModel):
    """An answer has these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class Fault(Reply):
    """A word for programs and a sentence for people."""

    code: str
    message: str


class Failure(Reply):
    """Every answer that is no success."""

    error: Fault


class Hit(Reply):
    """One item that was found."""

    id: int | str
    distance: Annotated[float, Field(description=DISTANCE)]
    label: str | None
    name: str | None
    picture: str | None
    payload: dict[str, Any] | None
    buckets: list[int] | None


class Answer(Reply):
    """What one query found."""

    hits: list[Hit]
    opened: list[int]
    scanned: int
    query_picture: str | None


class Ranked(Reply):
    """Ids and distances, nearest first."""

    ids: list[int | str]
    distances: Annotated[list[float], Field(description=DISTANCE)]


class Exhaustive(Reply):
    """The same search with every bucket open."""

    milliseconds: float
    scanned: int
    answers: list[Ranked]


class Found(Reply):
    """The answer to a search."""

    items: int
    milliseconds: float
    answers: list[Answer]
    exhaustive: Exhaustive | None
    damaged: Annotated[
        list[int | str],
        Field(description="Hits whose payload cannot be read; they come without it."),
    ]


class Stored(Reply):
    """An item of the table."""

    id: int | str
    label: str | None
    name: str | None
    picture: str | None
    payload: dict[str, Any] | None
    buckets: list[int]


class Sample(Reply):
    """Some items of the table."""

    total: int
    items: list[Stored]


class Added(Reply):
    """Items that are on disk now."""

    ids: list[int | str]
    buckets: list[list[int]]
    total: int


class Deleted(Reply):
    """An item that is gone."""

    deleted: int
    total: int


class Loads(Reply):
    """How full all buckets are."""

    buckets: int
    active: int
    loads: list[int]


class ClassCount(Reply):
    """A class and how many of a bucket's items have it."""

    label: str
    items: int


class Bucket(Reply):
    """One bucket. Of a large one, classes are counted in a sample of ``counted`` items."""

    bucket: int
    load: int
    purity: float | None
    counted: int
    classes: list[ClassCount]
    items: list[Stored]


class EncoderFigures(Reply):
    """What the encoder takes."""

    kind: str
    size: list[int] | None
    inputs: int | None
    class_names: list[str]


class Limits(Reply):
    """What the server takes at the most."""

    max_body: int
    max_answer: int
    max_batch: int
    max_top: int
    max_pixels: int
    timeout: float


class Figures(Reply):
    """Figures of table, encoder and server."""

    metric: str
    dtype: str
    ids: str
    encoder: str | None
    items: int
    deleted: int
    segments: int
    buckets: int
    active: int
    dim: int
    load_p50: float
    load_p99: float
    load_max: int
    empty: int
    suf: float | None
    expected_suf: float | None
    expected_variance: float | None
    bytes: int
    bytes_per_item: float
    bytes_per_embedding: int
    takes: EncoderFigures | None
    writable: bool
    needs_key: bool
    version: str
    limits: Limits


class Health(Reply):
    """Whether the server works."""

    status: Annotated[str, Field(description="ok, or damaged where payloads cannot be read.")]
    items: int
    damaged: Annotated[int, Field(description="Items that were met whose payload cannot be read.")]


def as_json(value: Any) -> bytes:
    """``value`` as JSON; numpy's numbers as they are.

    Payloads that Python wrote may hold what orjson refuses: numbers of more than 64 bits, and half
    characters. The standard library writes those.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return json.dumps(value, default=_number, allow_nan=False).encode()


def _number(value: Any) -> Any:
    return value.item()


def answer(value: Any, status: int = 200) -> Response:
    """A response with JSON."""
    return Response(as_json(value), status, media_type="application/json")


OWN = (LABEL, NAME, PICTURE)  # what FlowHash writes into a payload; the rest is the user's
PREFIXES = tuple(f"data:{media};base64," for media in PICTURE_MEDIA)


def face(item: Item) -> dict[str, Any]:
    """An item as the API shows it."""
    return {"id": item.id, **described(item.id, item.payload), "buckets": item.code.tolist()}


def described(item: int | str, payload: dict[str, Any] | None) -> dict[str, Any]:
    """Label, name, address of the picture and the rest of a payload."""
    if payload is None:
        return {"label": None, "name": None, "picture": None, "payload": None}
    return {
        "label": label_of(payload),
        "name": _text(payload.get(NAME)),
        "picture": picture_address(item, payload),
        "payload": {name: value for name, value in payload.items() if name not in OWN},
    }


def label_of(payload: dict[str, Any] | None) -> str | None:
    """The class of an item."""
    return None if payload is None else _text(payload.get(LABEL))


def picture_address(item: int | str, payload: dict[str, Any] | None) -> str | None:
    """Where this server has the picture of an item, or None."""
    text = (payload or {}).get(PICTURE)
    if not isinstance(text, str) or not text.startswith(PREFIXES):
        return None
    return f"/pictures/{quote(str(item), safe='', errors='surrogatepass')}"


def _text(value: Any) -> str | None:
    """Labels may be numbers where a payload was written by hand."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) else None
