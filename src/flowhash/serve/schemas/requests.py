"""What clients may ask: models, checked in compiled code, which the OpenAPI document describes."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    FiniteFloat,
    StrictInt,
    StrictStr,
)

LARGEST = 3.4028234663852886e38  # of float32
Number32 = Annotated[FiniteFloat, Field(ge=-LARGEST, le=LARGEST)]
# Lists stop at their first mistake: a million of them, each with its words, would fill the memory.
Vector = Annotated[
    list[Number32],
    Field(min_length=1, max_length=65_536, description="Numbers of float32."),
    FailFast(),
]
Bucket = Annotated[int, Field(ge=0, lt=1 << 31)]
Number = Annotated[StrictInt, Field(ge=-(1 << 63), lt=1 << 63)]
Id = Annotated[
    Number | StrictStr, Field(description="A whole number, or a string in a table of those.")
]
NewText = Annotated[StrictStr, Field(max_length=1024)]
Image = Annotated[str, Field(json_schema_extra={"format": "binary"})]
Count = Annotated[int, Field(ge=1, le=1000, description="How many items to draw.")]
Seed = Annotated[int, Field(ge=0, lt=1 << 32, description="The same seed draws the same items.")]


def _digits(text: Any) -> Any:
    if re.fullmatch("[0-9]+", text) is None:
        raise ValueError("should be a whole number from 0, in digits")
    return text


class SampleParameters(BaseModel):
    """How to draw items."""

    count: Count = 24
    seed: Seed = 0


class BucketParameters(BaseModel):
    """A bucket, and how to draw items from it."""

    bucket: Annotated[int, BeforeValidator(_digits), Field(ge=0, description="From 0 to d - 1.")]
    count: Count = 24
    seed: Seed = 0


class ItemParameters(BaseModel):
    """An item."""

    id: Annotated[str, Field(description="The item's id; slashes belong to it.")]


class SearchOptions(BaseModel):
    """Options of every search."""

    model_config = ConfigDict(strict=True, extra="forbid")

    top: Annotated[int, Field(ge=1, description="How many hits.")] = 16
    probe: Annotated[
        int | None, Field(ge=1, description="How many buckets to open; k unless given.")
    ] = None
    at_least: Annotated[
        int | None,
        Field(ge=1, lt=1 << 31, description="Open more buckets until so many items are found."),
    ] = None
    recall: Annotated[
        float | None,
        Field(
            gt=0,
            le=1,
            description="Open as many buckets as it takes to find this share of the nearest items, "
            "on average over queries like those of `flowhash calibrate`, which comes first; in "
            "place of probe.",
        ),
    ] = None
    payloads: Annotated[
        bool, Field(description="Whether hits come with label, name, picture, payload, buckets.")
    ] = True
    compare: Annotated[
        bool, Field(description="Search all buckets too, to compare; for one query.")
    ] = False


class VectorSearch(SearchOptions):
    """Search for what is near a vector, which the encoder encodes."""

    vector: Vector


class VectorsSearch(SearchOptions):
    """Search for what is near each of several vectors."""

    vectors: Annotated[list[Vector], Field(min_length=1), FailFast()]


class IdSearch(SearchOptions):
    """Search for what is near a stored item, in the item's own buckets, or by recall."""

    id: Id


class EmbeddingSearch(SearchOptions):
    """Search with an embedding and its buckets, best first, or activations; needs no encoder."""

    embedding: Vector
    buckets: Annotated[
        list[Bucket],
        Field(description="In the order to open them; without them, a recall needs activations."),
        FailFast(),
    ] = []
    activations: Annotated[
        list[Number32],
        Field(max_length=65_536, description="The hash network's outputs, one for each bucket."),
        FailFast(),
    ] = []


class ImageSearch(SearchOptions):
    """Search for what is near an image, as a form."""

    image: Annotated[Image, Field(description="PNG, JPEG, WebP, GIF, BMP")]


SEARCHES: dict[str, type[SearchOptions]] = {
    "vector": VectorSearch,
    "vectors": VectorsSearch,
    "id": IdSearch,
    "embedding": EmbeddingSearch,
}


class NewItem(BaseModel):
    """What is stored beside an item's vector."""

    model_config = ConfigDict(strict=True, extra="forbid")

    id: Annotated[
        Number | Annotated[StrictStr, Field(min_length=1, max_length=1024)] | None,
        Field(
            description="An item that has it already is replaced. Without it the table makes one. "
            "Strings have no control characters."
        ),
    ] = None
    label: Annotated[NewText | None, Field(description="Its class.")] = None
    name: Annotated[NewText | None, Field(description="What a person would call it.")] = None
    payload: Annotated[
        dict[str, Any] | None, Field(description="Anything that is to come back with it.")
    ] = None


class NewVector(NewItem):
    """An item as a vector, which the encoder encodes."""

    vector: Vector


class NewEmbedding(NewItem):
    """An item as its embedding and its k buckets."""

    embedding: Vector
    code: Annotated[list[Bucket], Field(min_length=1), FailFast()]


class ItemsToAdd(BaseModel):
    """Items to add. Each is checked by itself, once it is known how many there are."""

    model_config = ConfigDict(strict=True, extra="forbid")

    items: Annotated[
        list[dict[str, Any]],
        Field(
            min_length=1,
            json_schema_extra={
                "items": {
                    "oneOf": [
                        {"$ref": f"#/components/schemas/{model.__name__}"}
                        for model in (NewVector, NewEmbedding)
                    ]
                }
            },
        ),
        FailFast(),
    ]


class ItemForm(BaseModel):
    """Images to add, as a form."""

    model_config = ConfigDict(extra="forbid")

    image: Annotated[list[Image], Field(min_length=1)]
    id: Annotated[list[str], Field(description="None, or one an image.")] = []
    label: Annotated[list[str], Field(description="None, one, or one an image.")] = []
    name: Annotated[list[str], Field(description="None, or one an image.")] = []


SEARCH_EXAMPLES: dict[str, Any] = {
    "vector": {"summary": "a vector", "value": {"vector": [0.1, -0.2, 0.3], "top": 10}},
    "vectors": {
        "summary": "several vectors",
        "value": {"vectors": [[0.1, -0.2, 0.3], [0.0, 0.5, 0.1]], "top": 10, "payloads": False},
    },
    "id": {"summary": "a stored item", "value": {"id": 17, "top": 10, "compare": True}},
    "recall": {
        "summary": "a recall, of a table that was calibrated",
        "value": {"vector": [0.1, -0.2, 0.3], "top": 10, "recall": 0.95},
    },
    "embedding": {
        "summary": "an embedding and its buckets, without an encoder",
        "value": {"embedding": [0.6, 0.8], "buckets": [3, 17], "probe": 2, "at_least": 50},
    },
}
ITEM_EXAMPLES: dict[str, Any] = {
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
