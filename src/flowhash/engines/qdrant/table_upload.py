"""Copying a table to Qdrant: batch after batch, noted one by one, then read back and compared.

The marker knows which state of which table is copied and how many of its batches are there. A batch
whose writing was interrupted is written again: the same points, with the same ids. Of a finished
copy it knows the same until that is changed: whoever got no answer to the last step and does the
same again hears that it is complete.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flowhash.engines.qdrant.client_connection import Store, read_address
from flowhash.engines.qdrant.collection_marker import (
    CollectionFacts,
    first_change,
    known_facts,
    make_collection,
    note_short_codes,
    set_facts,
)
from flowhash.engines.qdrant.points import (
    DIRECTION,
    EMBEDDING,
    PAYLOAD,
    TEXT,
    directions,
    longest,
    packed,
    point_id,
    put_points,
    stored_of,
)
from flowhash.engines.qdrant.qdrant_table import refuse_distribute
from flowhash.errors import InputError, StorageError
from flowhash.table import INT64, HashTable, Stored, state_of

ITEMS = 2048  # of a batch
NUMBERS = 1 << 18  # in the vectors of a batch


class QdrantLoading:
    """A copy of a table into a collection.

    Args:
        table: what is copied.
        address: of the collection.
        distribute: refused.
        restart: remove an unfinished copy and begin anew.

    Attributes:
        total: items of the table.
        done: items that were there when this attempt began.

    Raises:
        InputError: the collection holds something else.
        StorageError: it cannot be reached.
    """

    def __init__(
        self, table: HashTable, address: str, *, distribute: bool = False, restart: bool = False
    ) -> None:
        refuse_distribute(distribute)
        self._table = table
        self._settings = table._settings
        self.total = len(table)
        self._complete = False
        with contextlib.ExitStack() as stack:
            self._store = stack.enter_context(contextlib.closing(Store(read_address(address))))
            self._progress = self._begun(restart)
            stack.pop_all()  # it stays open
        self.done = int(self._progress["items"])

    def _begun(self, restart: bool) -> dict[str, Any]:
        """How far the copy is; a new one is begun where there is none."""
        place = self._store.address.shown
        facts = None
        if self._store.is_there():
            facts = known_facts(self._store, unfinished=True)
            if restart and facts.loading is not None:
                self._store.ask("delete_collection")
                facts = None
        if facts is None:
            progress = self._new_progress()
            make_collection(self._store, CollectionFacts(self._settings, loading=progress))
            return progress
        if facts.loading is None:
            complete = {"source": self._table.version, "change": facts.change}
            if facts.copied != complete or facts.writing or facts.settings != self._settings:
                raise InputError(f"{place} holds a table already; choose another collection")
            self._complete = True
            return self._new_progress(batches=self.total, items=self.total)
        if facts.loading.get("source") != self._table.version or facts.settings != self._settings:
            raise InputError(
                f"{place} is an unfinished copy of another table, or of this one before it "
                "changed; begin anew with --restart"
            )
        return facts.loading

    def _new_progress(self, batches: int = 0, items: int = 0) -> dict[str, Any]:
        size = max(1, min(ITEMS, NUMBERS // self._settings.dim))
        return {"source": self._table.version, "size": size, "batches": batches, "items": items}

    def parts(self) -> Iterator[Sequence[Any] | range]:
        """Copy what is left, and note each batch when it is stored."""
        progress = self._progress
        for number, stored in enumerate(self._table.batches(progress["size"])):
            if number < progress["batches"]:
                continue
            if not number and state_of(self._table).has_short_codes:
                note_short_codes(self._store)
            put_points(self._store, self._settings, stored)
            progress = {
                **progress, "batches": number + 1, "items": progress["items"] + len(stored)
            }  # fmt: skip
            set_facts(self._store, loading=progress)
            self._progress = progress
            yield range(len(stored))

    def checks(self) -> Iterator[Sequence[Any] | range]:
        """Read everything back and compare it with the table.

        All is compared to the bit but fractions among the fields for filters, whose last bit a
        server may lose.

        Raises:
            StorageError: something is missing, too much, or not as it was sent.
        """
        found = int(self._store.ask("count", exact=True).count) - 1  # the marker
        if found != self.total:
            raise self._fault(f"{found} items arrived, but {self.total} were sent")
        for stored in self._table.batches(self._progress["size"]):
            self._compare(stored)
            yield range(len(stored))

    def _compare(self, stored: Stored) -> None:
        ids = stored.ids.tolist()
        points = [point_id(item) for item in ids]
        names = [EMBEDDING, *([DIRECTION] if self._settings.metric == "cosine" else [])]
        found = self._store.ask("retrieve", ids=points, with_payload=True, with_vectors=names)
        by_id = {point.id: point for point in found}
        for row, point in enumerate(points):
            if point not in by_id:
                raise self._fault(f"the item {ids[row]!r} is not there")
        ordered = [by_id[point] for point in points]
        arrived = stored_of(self._settings, ordered)
        same = (
            (arrived.ids == stored.ids)
            & (arrived.codes == stored.codes).all(axis=1)
            & (_bits(arrived.embeddings) == _bits(stored.embeddings)).all(axis=1)
        )
        pairs = zip(ordered, stored.payloads, strict=True)
        same &= np.array([_arrived(point, payload) for point, payload in pairs])
        if DIRECTION in names:
            sent = directions(stored.embeddings)
            scaled = np.array([point.vector[DIRECTION] for point in ordered], np.float32)
            same &= (_bits(scaled) == _bits(sent)).all(axis=1)
        if not same.all():
            row = int(np.flatnonzero(~same)[0])
            raise self._fault(f"the item {ids[row]!r} is not what was sent")

    def _fault(self, what: str) -> StorageError:
        again = "Delete it and copy again" if self._complete else "Copy again with --restart"
        return StorageError(
            f"{self._store.address.shown}: {what}; somebody else may have written there. {again}"
        )

    def finish(self, notes: Mapping[str, Any]) -> None:
        """Open the copy, with these notes, for searches."""
        if self._complete:
            return
        largest, lowest = 0.0, 0
        for stored in self._table.batches(payloads=False):
            largest = max(largest, longest(stored.embeddings))
            if self._settings.ids == INT64:
                lowest = min(lowest, int(stored.ids.min()))
        change = first_change()
        set_facts(
            self._store, next_id=self._table.next_id, lowest=lowest, largest=largest,
            change=change, loading=None, notes=json.dumps(dict(notes)),
            copied={"source": self._table.version, "change": change},
        )  # fmt: skip

    def close(self) -> None:
        """Let go of the connection."""
        self._store.close()


def _arrived(point: Any, payload: dict[str, Any] | None) -> bool:
    """Whether a point has the user's payload: its text exactly, the fields for filters nearly."""
    fields, sent = point.payload or {}, packed(payload)
    if fields.get(TEXT) != sent.get(TEXT) or (PAYLOAD in fields) != (PAYLOAD in sent):
        return False
    found, expected = fields.get(PAYLOAD) or {}, sent.get(PAYLOAD) or {}
    return found.keys() == expected.keys() and all(
        _alike(found[name], expected[name]) for name in expected
    )


def _alike(found: Any, sent: Any) -> bool:
    """Whether two single values are one; of a fraction a server may lose the last bit."""
    if isinstance(found, float) and isinstance(sent, float):
        return math.isclose(found, sent, rel_tol=1e-15)
    return bool(found == sent)


def _bits(vectors: Any) -> Any:
    """Numbers that are equal if and only if all bits are."""
    return np.ascontiguousarray(vectors, np.float32).view(np.uint32)
