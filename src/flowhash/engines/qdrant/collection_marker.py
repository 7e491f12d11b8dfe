"""The point that says what a collection is.

It has no vector and no code, so that no search finds it. Qdrant's metadata of a collection would be
the other place, but a point is written with the rights and the durability of every other, is in a
snapshot and behind an alias of the collection, and servers of every version have it.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from qdrant_client import models

from flowhash.engines.qdrant.client_connection import QdrantAddress, Store
from flowhash.engines.qdrant.points import CODE, DIRECTION, EMBEDDING
from flowhash.errors import InputError, StorageError, reason
from flowhash.table import TableSettings

VERSION = 2  # of tables with items in fewer than k buckets
ALL_BUCKETS = 1  # of others
MARKER = "00000000-0000-0000-0000-000000000000"  # the id of no item: theirs say "version 5"
MOST_NUMBERS = 65_536  # of a vector in Qdrant


@dataclass(frozen=True)
class CollectionFacts:
    """What the marker says.

    Attributes:
        settings: of the table.
        next_id: of the next item without an id.
        lowest: no id is lower.
        largest: no embedding is longer.
        change: counts the changes, from the microsecond on in which the collection was made.
        writing: who has begun a change and not ended it; nothing that is counted now may be kept.
            Empty if nobody.
        pending: ids that an unfinished change counts; items there that nobody was told of.
        notes: of commands.
        loading: how far a copy is; None once it is finished.
        copied: which state of which table that was, and the change with which it was complete.
    """

    settings: TableSettings
    next_id: int = 0
    lowest: int = 0
    largest: float = 0.0
    change: int = 0
    writing: str = ""
    pending: tuple[int, int] | None = None
    notes: str = "{}"
    loading: dict[str, Any] | None = None
    copied: dict[str, Any] | None = None


def fields_of(**facts: Any) -> dict[str, Any]:
    """Facts as payload: texts where JSON or gRPC would lose something."""
    fields = dict(facts)
    for name in facts.keys() & {"next_id", "lowest", "largest"}:
        fields[name] = repr(facts[name])
    for name in facts.keys() & {"pending", "loading", "copied", "settings"}:
        fields[name] = "" if facts[name] is None else json.dumps(facts[name])
    return fields


def read_marker(store: Store) -> CollectionFacts | None:
    """What the marker says; None where there is none.

    Raises:
        StorageError: another version wrote it, or it is damaged.
    """
    found = store.ask("retrieve", ids=[MARKER], with_payload=True, with_vectors=False)
    if not found:
        return None
    fields = found[0].payload or {}
    version, place = fields.get("flowhash"), store.address.shown
    if version is None:
        return None
    if version not in (ALL_BUCKETS, VERSION):
        raise StorageError(
            f"{place} has version {reason(version):.40} of the layout, and this FlowHash knows "
            f"{ALL_BUCKETS} and {VERSION}; use the FlowHash that made it, or a newer one"
        )
    try:
        return _facts_of(fields)
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise StorageError(
            f"{place}: the point {MARKER} is damaged ({type(error).__name__}: {reason(error)}); "
            "copy again"
        ) from error


def _facts_of(fields: dict[str, Any]) -> CollectionFacts:
    """The payload of the marker, which may be anything.

    Raises:
        TypeError: it is not what FlowHash writes; or a KeyError, an OverflowError, a ValueError.
    """
    pending, loading, copied, notes = (
        None if fields.get(name) in (None, "") else json.loads(fields[name])
        for name in ("pending", "loading", "copied", "notes")
    )
    if pending is not None:
        low, high = pending
        pending = int(low), int(high)
    settings = TableSettings(**json.loads(fields["settings"]))
    settings.check()
    for value in (loading, copied, notes):
        if not isinstance(value, dict | None):
            raise TypeError(f"{value!r} is no object")
    if loading is not None:
        numbers = [loading[name] for name in ("size", "batches", "items")]
        if not all(type(number) is int and number >= 0 for number in numbers) or not numbers[0]:
            raise ValueError(f"a copy of {numbers[1]!r} batches of {numbers[0]!r}")
    largest = float(fields["largest"])
    if not (math.isfinite(largest) and largest >= 0):
        raise ValueError(f"largest is {largest}")
    return CollectionFacts(
        settings, int(fields["next_id"]), int(fields["lowest"]), largest, int(fields["change"]),
        str(fields["writing"]), pending, json.dumps(notes or {}), loading, copied,
    )  # fmt: skip


def known_facts(store: Store, *, unfinished: bool = False) -> CollectionFacts:
    """What the marker says of a collection that must be FlowHash's.

    Args:
        store: the collection.
        unfinished: whether an unfinished copy will do.

    Raises:
        StorageError: there is no collection, or one of somebody else, or an unfinished copy.
    """
    place = store.address.shown
    if not store.is_there():
        raise no_collection(store.address)
    facts = read_marker(store)
    if facts is None:
        raise StorageError(
            f"{place} was not made by FlowHash, and is left alone; choose another collection. If "
            "it is the rest of a copy that was stopped as it began, delete it by hand"
        )
    if facts.loading is not None and not unfinished:
        raise StorageError(
            f"{place} is an unfinished copy; run the same flowhash copy again to finish it, or "
            "with --restart to begin anew"
        )
    return facts


def no_collection(address: QdrantAddress) -> StorageError:
    """What is said where there is none."""
    return StorageError(
        f"{address.shown}: there is no such collection; flowhash index --to and flowhash copy make "
        "them"
    )


def set_facts(store: Store, **facts: Any) -> None:
    """Change some facts, durably."""
    store.ask("set_payload", payload=fields_of(**facts), points=[MARKER], wait=True)


def note_short_codes(store: Store) -> None:
    """Let those that take every item to be in k buckets refuse the table from now on."""
    store.ask("set_payload", payload={"flowhash": VERSION}, points=[MARKER], wait=True)


def first_change() -> int:
    """Where a new collection begins to count its changes.

    From the clock: who still holds counts of an earlier collection of that name must see that this
    is not the same.
    """
    return time.time_ns() // 1000


def make_collection(store: Store, facts: CollectionFacts) -> CollectionFacts:
    """Make an empty collection; its marker comes last, so that half a collection is nobody's.

    Returns:
        What the marker says.

    Raises:
        InputError: Qdrant cannot hold such a table.
        StorageError: something of that name is there.
    """
    settings, place = facts.settings, store.address.shown
    if settings.dim > MOST_NUMBERS:
        raise InputError(f"dim is {settings.dim}; Qdrant holds at most {MOST_NUMBERS}")
    if store.is_there():
        raise StorageError(f"{place}: there is a collection already; choose another name")
    no_graph = models.HnswConfigDiff(m=0)
    euclidean = settings.metric == "euclidean"
    distance = models.Distance.EUCLID if euclidean else models.Distance.DOT
    cosine = settings.metric == "cosine"
    vectors = {
        EMBEDDING: models.VectorParams(
            size=settings.dim, distance=distance, hnsw_config=no_graph, on_disk=cosine
        )
    }
    if cosine:
        vectors[DIRECTION] = models.VectorParams(
            size=settings.dim, distance=distance, hnsw_config=no_graph
        )
    store.ask("create_collection", vectors_config=vectors, hnsw_config=no_graph)
    # Without the index a filtered search reads every payload: hundreds of times slower.
    index = models.IntegerIndexParams(
        type=models.IntegerIndexType.INTEGER, lookup=True, range=False
    )
    store.ask("create_payload_index", field_name=CODE, field_schema=index, wait=True)
    made = replace(facts, change=first_change())
    fields = fields_of(**{**vars(made), "settings": asdict(settings)})
    point = models.PointStruct(id=MARKER, vector={}, payload={"flowhash": ALL_BUCKETS, **fields})
    store.ask("upsert", points=[point], wait=True)
    return made
