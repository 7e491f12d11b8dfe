"""A collection as one looks at it: settings, single items, notes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from flowhash.engines.given import memory_table
from flowhash.engines.qdrant.connecting import Store
from flowhash.engines.qdrant.counting import Counter, Known, Memory
from flowhash.engines.qdrant.filters import ALL, Chosen
from flowhash.engines.qdrant.marker import MARKER, Facts, known_facts, read_marker, set_facts
from flowhash.engines.qdrant.points import EMBEDDING, PointId, item_id, item_of, point_id, stored_of
from flowhash.errors import InputError, StorageError
from flowhash.table import Item, Stored
from flowhash.table.ids import read_ids
from flowhash.table.settings import SettingsProperties

NUMBERS = 1 << 19  # of vectors that one request brings or carries at the most
POINTS = 4096  # the same for points


class QdrantView(SettingsProperties):
    """The part of a table on Qdrant that reads single items.

    Qdrant has no snapshots: a reader may see a part of a change while it is made.
    """

    def __init__(self, store: Store, facts: Facts, writable: bool) -> None:
        super().__init__(facts.settings)
        self._store = store
        self._facts = facts
        self._writable = writable
        self._items = -1
        self._open = True
        self._memory = Memory()
        self._writing = threading.RLock()
        self._empty = memory_table(facts.settings)

    @property
    def address(self) -> str:
        """Where it is, without a key."""
        return self._store.address.shown

    @property
    def writable(self) -> bool:
        """Whether items can be changed through this object."""
        return self._writable and self._open

    @property
    def next_id(self) -> int:
        """The id of the next item that is added without one."""
        return self._now().next_id

    def notes(self) -> dict[str, Any]:
        """What commands have noted about it."""
        notes: dict[str, Any] = json.loads(self._now().notes)
        return notes

    def note(self, name: str, value: Any) -> None:
        """Note something, durably; None removes it."""
        with self._writing:
            self._check_writable()
            notes = self.notes()
            notes[name] = value
            if value is None:
                del notes[name]
            try:
                text = json.dumps(notes, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise InputError(f"the note {name!r} cannot be written as JSON: {error}") from error
            set_facts(self._store, notes=text)

    def refresh(self) -> bool:
        """See what others have changed, or are changing; whether that was anything."""
        before = self._facts.change, self._items
        facts = self._now()
        return bool(facts.writing) or (facts.change, self._items) != before

    def batches(self, size: int = 8192, payloads: bool = True) -> Iterator[Stored]:
        """All items, some at a time; what changes meanwhile may or may not be among them."""
        if size < 1:
            raise InputError(f"size is {size}; expected one or more items")
        settings = self._now().settings
        kept: list[Any] = []
        for points in self._pages(min(size, self._at_once())):
            kept += points
            while len(kept) >= size:
                yield stored_of(settings, kept[:size], payloads)
                kept = kept[size:]
        if kept:
            yield stored_of(settings, kept, payloads)

    def __len__(self) -> int:
        self._check_open()
        return self._items

    def __contains__(self, item: object) -> bool:
        try:
            self[item]
        except KeyError:
            return False
        return True

    def __getitem__(self, item: Any) -> Item:
        self._check_open()
        settings = self._facts.settings
        try:
            wanted = read_ids([item], settings.ids)
        except InputError:
            raise KeyError(item) from None
        found = self._points([wanted.value(0)])
        if not found:
            raise KeyError(item)
        return item_of(settings, found[0])

    def __repr__(self) -> str:
        if not self._open:
            return f"<QdrantTable at {self.address}, closed>"
        return (
            f"<QdrantTable at {self.address}: {self._items} items, buckets={self.buckets}, "
            f"dim={self.dim}, active={self.active}, metric={self.metric!r}>"
        )

    def _check_open(self) -> None:
        if not self._open:
            raise StorageError(f"{self.address} is closed; open it again")

    def _check_writable(self) -> None:
        self._check_open()
        if not self._writable:
            raise StorageError(
                f'{self.address} was opened to be searched only; open it with mode="r+"'
            )

    def _now(self) -> Facts:
        """The facts of this moment, and how many items there are.

        Raises:
            StorageError: the collection is gone, or has become an unfinished copy.
        """
        self._check_open()
        facts = read_marker(self._store)
        if facts is None or facts.loading is not None:
            facts = known_facts(self._store)  # which says what is wrong
        if facts.settings != self._facts.settings:
            raise StorageError(f"{self.address} was made anew with other settings; open it again")
        if self._items < 0 or facts.writing or facts.change != self._facts.change:
            self._items = int(self._store.ask("count", exact=True).count) - 1  # the marker
        self._facts = facts
        return facts

    def _counter(self, facts: Facts, chosen: Chosen = ALL) -> Counter:
        known = Known() if chosen or facts.writing else self._memory.of(facts.change)
        return Counter(self._store, facts.settings, chosen, known)

    def _at_once(self) -> int:
        """Points of one request with their vectors."""
        return max(1, min(POINTS, NUMBERS // self.dim))

    def _points(
        self, ids: Sequence[Any], fields: bool | list[str] = True, vectors: bool = True
    ) -> list[Any]:
        """The points of ids that are there; of a string only if the point is the string's own."""
        wanted = {point_id(item): item for item in ids}
        settings = self._facts.settings
        found = self._retrieved(ids, fields, vectors)
        return [point for point in found if item_id(settings, point) == wanted[point.id]]

    def _retrieved(self, ids: Sequence[Any], fields: bool | list[str], vectors: bool) -> list[Any]:
        """The points of ids that are there."""
        found: list[Any] = []
        step = self._at_once() if vectors else POINTS
        points: list[PointId] = list(dict.fromkeys(point_id(item) for item in ids))
        for start in range(0, len(points), step):
            found += self._store.ask(
                "retrieve", ids=points[start : start + step], with_payload=fields,
                with_vectors=[EMBEDDING] if vectors else False,
            )  # fmt: skip
        return found

    def _pages(self, size: int, chosen: Chosen = ALL, **options: Any) -> Iterator[list[Any]]:
        """All points of a filter, in the order of their ids, without the marker."""
        options = {"with_payload": True, "with_vectors": [EMBEDDING], **options}
        offset = None
        while True:
            points, offset = self._store.ask(
                "scroll", scroll_filter=chosen.filter(), limit=size, offset=offset, **options
            )
            yield [point for point in points if point.id != MARKER]
            if offset is None:
                return
