"""What the server answers, as models: for the OpenAPI page, and for tests to hold it to."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

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
