"""What clients may ask, as models: checked in compiled code, and the source of the OpenAPI page."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, FiniteFloat, StrictInt, StrictStr

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


class Asked(BaseModel):
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
    payloads: Annotated[
        bool, Field(description="Whether hits come with label, name, picture, payload, buckets.")
    ] = True
    compare: Annotated[
        bool, Field(description="Search all buckets too, to compare; for one query.")
    ] = False


class VectorSearch(Asked):
    """Search for what is near a vector, which the encoder encodes."""

    vector: Vector


class VectorsSearch(Asked):
    """Search for what is near each of several vectors."""

    vectors: Annotated[list[Vector], Field(min_length=1), FailFast()]


class IdSearch(Asked):
    """Search for what is near a stored item, in the item's own buckets."""

    id: Id


class EmbeddingSearch(Asked):
    """Search with an embedding and its buckets, best first; needs no encoder."""

    embedding: Vector
    buckets: Annotated[list[Bucket], Field(min_length=1), FailFast()]


SEARCHES: dict[str, type[Asked]] = {
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


class NewItems(BaseModel):
    """Items to add."""

    model_config = ConfigDict(strict=True, extra="forbid")

    items: Annotated[list[dict[str, Any]], Field(min_length=1), FailFast()]
