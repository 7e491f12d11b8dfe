"""Writing points, in batches that a server takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from qdrant_client import models

from flowhash.engines.engine_arguments import EngineItems
from flowhash.engines.qdrant.client_connection import Store
from flowhash.engines.qdrant.collection_marker import CollectionFacts
from flowhash.engines.qdrant.points import NAME, PointId, points_of
from flowhash.table import INT64, STRING, Stored, TableSettings

AT_ONCE = 10_000  # points that one request deletes


def name_fields(settings: TableSettings) -> bool | list[str]:
    """The fields that an id is read from."""
    return [NAME] if settings.ids == STRING else False


def longest(embeddings: NDArray[np.float32]) -> float:
    """The largest length of an embedding."""
    lengths = np.linalg.norm(embeddings.astype(np.float64), axis=1)
    return float(lengths.max(initial=0.0))


def begun(facts: CollectionFacts, items: EngineItems, ids: NDArray[Any]) -> dict[str, Any]:
    """The facts that an add changes."""
    largest = max(longest(some.embeddings) for some in items.table.batches(payloads=False))
    changed: dict[str, Any] = {"largest": max(facts.largest, largest)}
    if facts.settings.ids == INT64:
        changed["lowest"] = min(facts.lowest, int(ids.min()))
        changed["next_id"] = max(facts.next_id, int(ids.max()) + 1)
        if items.counted:
            changed["pending"] = (facts.next_id, facts.next_id + len(ids))
    return changed


def put(
    store: Store, settings: TableSettings, items: EngineItems, next_id: int, size: int
) -> Iterator[None]:
    """Store items, one batch after the other; those that are there are replaced."""
    for number, stored in enumerate(items.table.batches(size)):
        if number:
            yield
        some = replace(stored, ids=stored.ids + next_id) if items.counted else stored
        put_some(store, settings, some)


def put_some(store: Store, settings: TableSettings, stored: Stored) -> None:
    """Store so many items as go into one request."""
    store.ask("upsert", points=points_of(settings, stored), wait=True)


def take(store: Store, points: Sequence[PointId]) -> None:
    """Delete points."""
    for start in range(0, len(points), AT_ONCE):
        some = models.PointIdsList(points=list(points[start : start + AT_ONCE]))
        store.ask("delete", points_selector=some, wait=True)
