"""Items as points of Qdrant, written and read back."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from qdrant_client import models

from flowhash.engines.qdrant.client_connection import Store
from flowhash.errors import StorageError
from flowhash.table import STRING, Item, Stored, TableSettings, padded_codes

EMBEDDING, DIRECTION = "embedding", "direction"
CODE, PAYLOAD, TEXT, NAME = "code", "payload", "text", "id"
UNSIGNED = (1 << 64) - 1
SIGN = 1 << 63
AT_ONCE = 10_000  # points that one request deletes

PointId = int | str


def point_id(item: int | str) -> PointId:
    """The point of an id, which is another one for every other id.

    Whole numbers are taken as unsigned ones with the same 64 bits. Of a string it is 122 bits of
    the SHA-256; the string itself is in the payload, and compared.
    """
    if isinstance(item, str):
        digest = hashlib.sha256(item.encode()).digest()
        return str(uuid.UUID(bytes=digest[:16], version=5))
    return int(item) & UNSIGNED


def item_id(settings: TableSettings, point: Any) -> int | str:
    """The id of a point, as the user knows it.

    Raises:
        StorageError: the point is not FlowHash's.
    """
    if settings.ids != STRING:
        if not isinstance(point.id, int):
            raise StorageError(f"the point {point.id} is not an item of this table; remove it")
        return point.id - (1 << 64) if point.id & SIGN else point.id
    name = (point.payload or {}).get(NAME)
    if not isinstance(name, str) or point_id(name) != str(point.id):
        raise StorageError(f"the point {point.id} has the id {name!r:.80}, which is another's")
    return name


def packed(payload: dict[str, Any] | None) -> dict[str, Any]:
    """The user's payload as fields of a point."""
    if payload is None:
        return {}
    single = {key: value for key, value in payload.items() if holds(key) and holds(value)}
    return {PAYLOAD: single, TEXT: json.dumps(payload, separators=(",", ":"))}


def unpacked(fields: dict[str, Any] | None) -> dict[str, Any] | None:
    """The user's payload from the fields of a point."""
    if not fields or TEXT not in fields:
        return None
    payload: dict[str, Any] = json.loads(fields[TEXT])
    return payload


def holds(value: Any) -> bool:
    """Whether Qdrant can compare with a value: one, without lone surrogates, of 64 bits."""
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, int):
        return -SIGN <= value < SIGN
    return value is None or isinstance(value, float)


def directions(embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors of length 1 [n, dim]."""
    exact = embeddings.astype(np.float64)
    scaled: NDArray[np.float64] = exact / np.linalg.norm(exact, axis=1, keepdims=True)
    return scaled.astype(np.float32)


def points_of(settings: TableSettings, stored: Stored) -> list[models.PointStruct]:
    """Items as points."""
    vectors = {EMBEDDING: stored.embeddings.tolist()}
    if settings.metric == "cosine":
        vectors[DIRECTION] = directions(stored.embeddings).tolist()
    codes = [[bucket for bucket in code if bucket >= 0] for code in stored.codes.tolist()]
    points = []
    for row, item in enumerate(stored.ids.tolist()):
        fields: dict[str, Any] = {CODE: codes[row], **packed(stored.payloads[row])}
        if settings.ids == STRING:
            fields[NAME] = item
        points.append(
            models.PointStruct(
                id=point_id(item),
                vector={name: lines[row] for name, lines in vectors.items()},
                payload=fields,
            )
        )
    return points


def stored_of(settings: TableSettings, points: list[Any], payloads: bool = True) -> Stored:
    """Points with vectors and payloads as items."""
    ids = np.empty(len(points), object if settings.ids == STRING else np.int64)
    codes = padded_codes([code_of(settings, point) for point in points], settings.active)
    embeddings = np.empty((len(points), settings.dim), np.float32)
    for row, point in enumerate(points):
        ids[row] = item_id(settings, point)
        vector = embedding_of(point)
        if len(vector) != settings.dim:
            raise StorageError(f"the point {point.id} has {len(vector)} numbers; it is damaged")
        embeddings[row] = vector
    texts = [unpacked(point.payload) if payloads else None for point in points]
    return Stored(ids, codes, embeddings, texts)


def item_of(settings: TableSettings, point: Any) -> Item:
    """A point with vectors and payload as an item."""
    stored = stored_of(settings, [point])
    item = item_id(settings, point)
    code = stored.codes[0]
    return Item(item, code[code >= 0], stored.embeddings[0], stored.payloads[0])


def code_of(settings: TableSettings, point: Any) -> list[int]:
    """The buckets of a point, ascending."""
    code = (point.payload or {}).get(CODE)
    if not isinstance(code, list) or not 1 <= len(code) <= settings.active:
        raise StorageError(f"the point {point.id} has the code {code!r:.80}; it is damaged")
    return sorted(int(bucket) for bucket in code)


def embedding_of(point: Any) -> list[float]:
    """The embedding of a point."""
    vector: list[float] = (point.vector or {}).get(EMBEDDING, [])
    return vector


def longest(embeddings: NDArray[np.float32]) -> float:
    """The largest length of an embedding."""
    lengths = np.linalg.norm(embeddings.astype(np.float64), axis=1)
    return float(lengths.max(initial=0.0))


def put_points(store: Store, settings: TableSettings, stored: Stored) -> None:
    """Store so many items as go into one request; those that are there are replaced."""
    store.ask("upsert", points=points_of(settings, stored), wait=True)


def take_points(store: Store, points: Sequence[PointId]) -> None:
    """Delete points."""
    for start in range(0, len(points), AT_ONCE):
        some = models.PointIdsList(points=list(points[start : start + AT_ONCE]))
        store.ask("delete", points_selector=some, wait=True)
