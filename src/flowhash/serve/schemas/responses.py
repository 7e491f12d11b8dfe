"""The answers of the API: dataclasses that make them, and that the OpenAPI document describes.

They are filled with what the server knows, so that nothing of them is checked at run time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import quote

import orjson
from pydantic import ConfigDict, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from flowhash.data import LABEL, NAME, PICTURE, PICTURE_MEDIA
from flowhash.serve.options import RequestLimits
from flowhash.table import Item, RecallCalibration, RecallCost, Stats

OWN = (LABEL, NAME, PICTURE)  # what FlowHash writes into a payload; the rest is the user's
PREFIXES = tuple(f"data:{media};base64," for media in PICTURE_MEDIA)
DISTANCE = (
    "By the table's metric: the squared Euclidean distance, 1 - cosine, or minus the inner product."
)
Distance = Annotated[float, Field(description=DISTANCE)]
Shown = TypeVar("Shown", bound="ShownItem")


def as_json(value: Any) -> bytes:
    """``value`` as JSON; numpy's numbers as they are, and null for those that are not finite.

    Payloads that Python wrote may hold what orjson refuses: numbers of more than 64 bits, and half
    characters. The standard library writes those.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        compact = (",", ":")
        return json.dumps(value, default=_plain, allow_nan=False, separators=compact).encode()


def _plain(value: Any) -> Any:
    return vars(value) if is_dataclass(value) else value.item()


class JsonResponse(Response):
    """JSON that is written; Starlette's way to the same two messages takes four times as long."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        self.body, self.status_code, self.background = body, status, None
        self.raw_headers = [
            (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/json"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        await send({"type": "http.response.body", "body": self.body})


def json_response(value: Any, status: int = 200) -> Response:
    """A response with JSON."""
    return JsonResponse(as_json(value), status)


class ApiAnswer:
    """An answer has its fields and no others.

    Attributes:
        example: for the OpenAPI document.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    example: ClassVar[Any] = None

    def json_around(self, name: str) -> tuple[bytes, bytes]:
        """The answer as JSON, cut where the entries of its list ``name``, now empty, belong."""
        head, found, tail = as_json(self).partition(f'"{name}":['.encode())
        return head + found, tail


@dataclass(eq=False)
class Fault(ApiAnswer):
    """A word for programs and a sentence for people."""

    code: str
    message: str


@dataclass(eq=False)
class Failure(ApiAnswer):
    """Every answer that is no success."""

    error: Fault


@dataclass(eq=False)
class ShownItem(ApiAnswer):
    """An item as people see it."""

    id: int | str
    label: str | None
    name: str | None
    picture: str | None
    payload: dict[str, Any] | None
    buckets: list[int] | None

    @classmethod
    def of(
        cls: type[Shown],
        item: int | str,
        payload: dict[str, Any] | None,
        buckets: list[int] | None,
        *more: Any,
    ) -> Shown:
        """An item with what its payload says; ``more`` are the fields of a subclass."""
        if payload is None:
            return cls(item, None, None, None, None, buckets, *more)
        rest = {name: value for name, value in payload.items() if name not in OWN}
        name, picture = _text(payload.get(NAME)), picture_address(item, payload)
        return cls(item, label_of(payload), name, picture, rest, buckets, *more)


@dataclass(eq=False)
class StoredItem(ShownItem):
    """An item of the table."""

    buckets: list[int]

    @classmethod
    def read(cls, item: Item) -> StoredItem:
        """An item that was read from the table."""
        return cls.of(item.id, item.payload, item.code.tolist())


StoredItem.example = StoredItem(17, "apple", "apples/17.png", "/pictures/17", {}, [3])


@dataclass(eq=False)
class Hit(ShownItem):
    """One item that was found."""

    distance: Distance


Hit.example = Hit(**vars(StoredItem.example), distance=0.12)


@dataclass(eq=False)
class QueryAnswer(ApiAnswer):
    """What one query found."""

    hits: list[Hit]
    opened: list[int]
    scanned: int
    query_picture: str | None


@dataclass(eq=False)
class Ranked(ApiAnswer):
    """Ids and distances, nearest first."""

    ids: list[int | str]
    distances: list[Distance]


@dataclass(eq=False)
class ExhaustiveAnswer(ApiAnswer):
    """The same search with every bucket open."""

    milliseconds: float
    scanned: int
    answers: list[Ranked]


@dataclass(eq=False)
class SearchAnswer(ApiAnswer):
    """The answer to a search."""

    items: int
    milliseconds: float
    answers: list[QueryAnswer]
    recall: Annotated[
        float | None,
        Field(description="What was asked for, and is reached on average; null without one."),
    ]
    exhaustive: ExhaustiveAnswer | None
    damaged: Annotated[
        list[int | str],
        Field(description="Hits whose payload cannot be read; they come without it."),
    ]


SearchAnswer.example = SearchAnswer(
    items=10000,
    milliseconds=0.42,
    answers=[QueryAnswer([Hit.example], opened=[3, 17], scanned=97, query_picture=None)],
    recall=0.95,
    exhaustive=ExhaustiveAnswer(2.1, 10000, [Ranked([17], [0.12])]),
    damaged=[],
)


@dataclass(eq=False)
class Sample(ApiAnswer):
    """Some items of the table."""

    total: int
    items: list[StoredItem]


Sample.example = Sample(10000, [StoredItem.example])


@dataclass(eq=False)
class Added(ApiAnswer):
    """Items that are on disk now."""

    ids: list[int | str]
    buckets: list[list[int]]
    total: int


Added.example = Added([10000], [[3]], 10001)


@dataclass(eq=False)
class Deleted(ApiAnswer):
    """An item that is gone."""

    deleted: int
    total: int


Deleted.example = Deleted(1, 9999)


@dataclass(eq=False)
class Loads(ApiAnswer):
    """How full all buckets are."""

    buckets: int
    active: int
    loads: list[int]


Loads.example = Loads(4, 1, [97, 0, 103, 99])


@dataclass(eq=False)
class ClassCount(ApiAnswer):
    """A class and how many of a bucket's items have it."""

    label: str
    items: int


@dataclass(eq=False)
class BucketAnswer(ApiAnswer):
    """One bucket. Of a large one, classes are counted in a sample of ``counted`` items."""

    bucket: int
    load: int
    purity: float | None
    counted: int
    classes: list[ClassCount]
    items: list[StoredItem]


BucketAnswer.example = BucketAnswer(
    bucket=3,
    load=97,
    purity=0.93,
    counted=97,
    classes=[ClassCount("apple", 90), ClassCount("pear", 7)],
    items=[StoredItem.example],
)


@dataclass(eq=False)
class EncoderFigures(ApiAnswer):
    """What the encoder takes."""

    kind: str
    size: list[int] | None
    inputs: int | None
    class_names: list[str]
    stored: Annotated[
        bool, Field(description="Whether it takes stored items too: a recall of one by its id.")
    ]


@dataclass(frozen=True, eq=False)
class RecallFigures(ApiAnswer):
    """What the table knows of its recall."""

    queries: Annotated[int, Field(description="That set the thresholds.")]
    stored: Annotated[bool, Field(description="Whether they were items of the table.")]
    items: Annotated[int, Field(description="In the table when it was calibrated.")]
    changed: Annotated[int, Field(description="Items added or deleted since.")]
    old: Annotated[bool, Field(description="Whether these are too many: calibrate again.")]
    highest: Annotated[float, Field(description="The highest recall below 1 that is promised.")]
    tops: Annotated[
        list[int],
        Field(
            description="Numbers of neighbours that were calibrated. For one between two of them "
            "the larger counts; more than the largest is refused."
        ),
    ]
    expected: Annotated[
        list[RecallCost],
        Field(
            description="What some recalls take on average, for each number of neighbours: the "
            "share of the table that is scanned, and how many buckets are opened."
        ),
    ]

    @classmethod
    def of(cls, known: RecallCalibration, changed: int) -> RecallFigures:
        """The figures of a calibration, after so many changes."""
        return cls(
            known.queries, known.stored, known.items, changed, known.is_old(changed),
            known.highest, sorted(known.thresholds), known.costs(),
        )  # fmt: skip


RecallFigures.example = RecallFigures(
    queries=800, stored=False, items=10000, changed=120, old=False, highest=0.9988, tops=[10],
    expected=[RecallCost(0.95, 10, 0.021, 4.7)],
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Figures(ApiAnswer, Stats):
    """Figures of table, encoder and server."""

    suf: float | None  # type: ignore[assignment]  # JSON has no NaN: what cannot be measured is null
    expected_suf: float | None  # type: ignore[assignment]
    expected_variance: float | None  # type: ignore[assignment]
    metric: str
    dtype: str
    ids: str
    encoder: str | None
    takes: EncoderFigures | None
    recall: Annotated[
        RecallFigures | None, Field(description="Null where recall was never calibrated.")
    ]
    writable: bool
    needs_key: bool
    version: str
    limits: RequestLimits


Figures.example = Figures(
    items=10000, deleted=0, segments=1, buckets=256, active=1, mean_active=1.0, dim=64,
    load_p50=97.0, load_p99=120.0, load_max=131, empty=156, suf=99.9, expected_suf=256.0,
    expected_variance=38.9, bytes=2800000, bytes_per_item=280.0, bytes_per_embedding=256,
    metric="euclidean", dtype="float32", ids="int64", encoder="1f0c…",
    takes=EncoderFigures("vectors", None, 3, ["apple", "bear"], True),
    recall=RecallFigures.example, writable=True, needs_key=False,
    version="0.1.0", limits=RequestLimits(),
)  # fmt: skip


@dataclass(eq=False)
class Health(ApiAnswer):
    """Whether the server works."""

    status: Annotated[str, Field(description="ok, or damaged where payloads cannot be read.")]
    items: int
    damaged: Annotated[int, Field(description="Items that were met whose payload cannot be read.")]


Health.example = Health("ok", 10000, 0)


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
