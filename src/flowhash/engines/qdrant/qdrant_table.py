"""``QdrantTable``: a hash table on Qdrant."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.engines.engine_arguments import EngineItems, EngineQueries
from flowhash.engines.qdrant.candidate_search import CandidateSearch
from flowhash.engines.qdrant.client_connection import Store, read_address
from flowhash.engines.qdrant.collection_marker import (
    MARKER,
    CollectionFacts,
    known_facts,
    make_collection,
    no_collection,
    note_short_codes,
    read_marker,
    set_facts,
)
from flowhash.engines.qdrant.point_counts import PointCounts
from flowhash.engines.qdrant.point_filter import ALL, Chosen, chosen_by
from flowhash.engines.qdrant.points import (
    CODE,
    EMBEDDING,
    NAME,
    TEXT,
    PointId,
    code_of,
    item_id,
    item_of,
    longest,
    point_id,
    put_points,
    stored_of,
    take_points,
    unpacked,
)
from flowhash.engines.remote_table import KnownCounts, RemoteTable
from flowhash.errors import InputError, LockedTableError, StorageError
from flowhash.table import (
    INT64,
    STATS_SAMPLE,
    STRING,
    HashTable,
    Hits,
    Item,
    Stats,
    Stored,
    TableSettings,
    changed_notes,
    check_encoder,
    draw_sample,
    state_of,
    stats_of,
)

NUMBERS = 1 << 19  # of vectors that one request brings or carries at the most
POINTS = 4096  # the same for points
LISTED = 2048  # points whose ids are listed to draw from them; of more, stretches are drawn
STRETCHES = 16  # places where a sample begins to read
COUNTED = 200  # items of a large table whose own buckets are counted to measure SUF with k > 1
NO_FACTS: Mapping[str, Any] = {}


class QdrantTable(RemoteTable):
    """A table in a collection of Qdrant, used as :class:`flowhash.HashTable` is.

    Make one with :meth:`create`, open one with :meth:`open`. Searches may run in many threads. One
    writer at a time: Qdrant has no transactions and no locks.

    If :meth:`add` fails midway, a part of the items may be stored: the same call completes them.
    Items whose ids the table counts are taken back by the next change. Notes are written with the
    marker that ends the change: they are there when all items are.
    """

    def __init__(self, store: Store, facts: CollectionFacts, writable: bool) -> None:
        super().__init__(facts.settings, writable)
        self._store = store
        self._facts = facts
        self._writing = threading.RLock()
        # Behind it earlier versions look for the time at which the change began: long ago.
        self._token = f"{secrets.token_hex(8)} 0"
        self._count = self._counted()

    @classmethod
    def _create(cls, place: str, settings: TableSettings, distribute: bool) -> QdrantTable:
        refuse_distribute(distribute)
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(contextlib.closing(Store(read_address(place))))
            table = cls(store, make_collection(store, CollectionFacts(settings)), True)
            stack.pop_all()  # it stays open
            return table

    @classmethod
    def _open_stored(cls, place: str, writable: bool, encoder: str | None) -> QdrantTable:
        address = read_address(place)
        if not address.may_hold():
            raise no_collection(address)
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(contextlib.closing(Store(address)))
            facts = known_facts(store)
            check_encoder(facts.settings.encoder, encoder, address.shown)
            table = cls(store, facts, writable)
            stack.pop_all()  # it stays open
            return table

    @classmethod
    def exists(cls, place: str) -> bool:
        """Whether there is a collection of that name, whoever made it."""
        address = read_address(place)
        if not address.may_hold():
            return False
        with contextlib.closing(Store(address)) as store:
            return store.is_there()

    @classmethod
    def remove(cls, place: str) -> None:
        """Delete a collection that FlowHash made, finished or not; without one nothing happens.

        Raises:
            StorageError: it is somebody else's.
        """
        if not cls.exists(place):
            return
        with contextlib.closing(Store(read_address(place))) as store:
            known_facts(store, unfinished=True)
            store.ask("delete_collection")

    @property
    def address(self) -> str:
        """Where it is, without a key."""
        return self._store.address.shown

    @property
    def next_id(self) -> int:
        """The id of the next item that is added without one."""
        return self._now().next_id

    def _add(
        self,
        items: EngineItems,
        notes: Mapping[str, Any] | None,
        expected_notes: Mapping[str, Any] | None,
    ) -> NDArray[Any]:
        with self._changing() as facts:
            ids = items.counted_from(facts.next_id)
            changed = changed_notes(json.loads(facts.notes), notes, expected_notes)
            ends: dict[str, Any] = {} if changed is None else {"notes": json.dumps(changed)}
            if not len(ids):
                if ends:
                    set_facts(self._store, **ends)
                return ids
            self._refuse_strangers(items.table)
            lengths = [longest(some.embeddings) for some in items.table.batches(payloads=False)]
            begins: dict[str, Any] = {"largest": max(facts.largest, *lengths)}
            if self.id_kind == INT64:
                begins["lowest"] = min(facts.lowest, int(ids.min()))
                ends["next_id"] = max(facts.next_id, int(ids.max()) + 1)
            if items.counted:
                begins["pending"] = (facts.next_id, facts.next_id + len(ids))
            with self._change(facts, begins, ends):
                if state_of(items.table).has_short_codes:
                    note_short_codes(self._store)
                for number, some in enumerate(items.table.batches(self._at_once())):
                    if number:
                        self._check_claim(facts)
                    known = some.ids + facts.next_id if items.counted else some.ids
                    put_points(self._store, self._settings, replace(some, ids=known))
        return ids

    def _delete(self, ids: list[Any]) -> int:
        with self._changing() as facts:
            fields = [NAME] if self.id_kind == STRING else False
            found = self._points(ids, fields, vectors=False)
            if found:
                with self._change(facts):
                    take_points(self._store, [point.id for point in found])
        return len(found)

    def _search(self, asked: EngineQueries, payloads: bool, buckets: bool) -> Hits:
        chosen = chosen_by(asked.where)
        facts = self._now()
        counts = self._counts(facts, chosen)
        return CandidateSearch(self._store, facts, chosen, counts, payloads, buckets).answer(asked)

    def close(self) -> None:
        """Let go of the connection; closing twice is fine."""
        self._open = False
        self._store.close()

    def notes(self) -> dict[str, Any]:
        """What was noted about it."""
        notes: dict[str, Any] = json.loads(self._now().notes)
        return notes

    def note(self, name: str, value: Any) -> None:
        """Note something, durably; None removes it."""
        with self._writing:
            self._check_writable()
            changed = changed_notes(self.notes(), {name: value})
            if changed is not None:
                set_facts(self._store, notes=json.dumps(changed))

    def refresh(self) -> bool:
        """See what others have changed, or are changing; whether that was anything."""
        before = self._facts.change, self._count
        facts = self._now()
        return bool(facts.writing) or (facts.change, self._count) != before

    def batches(self, size: int = 8192, payloads: bool = True) -> Iterator[Stored]:
        """All items, some at a time; what changes meanwhile may or may not be among them."""
        if size < 1:
            raise InputError(f"size is {size}; expected one or more items")
        self._now()
        kept: list[Any] = []
        for points in self._pages(min(size, self._at_once())):
            kept += points
            while len(kept) >= size:
                yield stored_of(self._settings, kept[:size], payloads)
                kept = kept[size:]
        if kept:
            yield stored_of(self._settings, kept, payloads)

    def sample(self, count: int, seed: int) -> tuple[int, list[Item]]:
        """How many items there are, and a random sample of them; the same for the same seed."""
        facts = self._now()
        return self._count, self._items_of(self._drawn(facts, ALL, self._count, count, seed))

    def bucket_items(self, bucket: int, count: int, seed: int) -> list[Item]:
        """A random sample of the items in a bucket."""
        facts = self._now()
        total = self._load(facts, bucket)
        return self._items_of(self._drawn(facts, _inside(bucket), total, count, seed))

    def bucket_payloads(
        self, bucket: int, count: int, seed: int
    ) -> tuple[int, list[dict[str, Any] | None]]:
        """How many items a bucket holds, and the payloads of a random sample of them."""
        facts = self._now()
        total = self._load(facts, bucket)
        drawn = self._drawn(facts, _inside(bucket), total, count, seed, [TEXT])
        return total, [unpacked(point.payload) for point in drawn]

    def bucket_loads(self) -> NDArray[np.int64]:
        """How many items each bucket holds [d]."""
        return self._counts(self._now()).loads().copy()

    def _codes_by_id(self, ids: list[Any]) -> dict[Any, list[int]]:
        settings = self._settings
        found = self._points(ids, [CODE, NAME], vectors=False)
        return {item_id(settings, point): code_of(settings, point) for point in found}

    def _items_by_id(self, ids: list[Any]) -> dict[Any, Item]:
        items = (item_of(self._settings, point) for point in self._points(ids))
        return {item.id: item for item in items}

    def stats(self) -> Stats:
        """Loads of buckets, measured and expected SUF, bytes; kept until the table changes."""
        facts = self._now()
        known = self._known_of(facts)
        if known.stats is None:
            loads = self._counts(facts).loads()
            found = self._others_found(facts, loads)
            segments = int(self._store.ask("get_collection").segments_count or 1)
            known.stats = stats_of(
                self._settings, self._count, loads, found, self._bytes(), segments=segments,
                number_bytes=4,
            )  # fmt: skip
        return known.stats

    def _now(self) -> CollectionFacts:
        """The facts of this moment, and how many items there are.

        Raises:
            StorageError: the collection is gone, or has become an unfinished copy.
        """
        self._check_open()
        facts = read_marker(self._store)
        if facts is None or facts.loading is not None:
            facts = known_facts(self._store)  # which says what is wrong
        if facts.settings != self._settings:
            raise StorageError(f"{self.address} was made anew with other settings; open it again")
        if facts.writing or facts.change != self._facts.change:
            self._count = self._counted()
        self._facts = facts
        return facts

    def _counted(self) -> int:
        return int(self._store.ask("count", exact=True).count) - 1  # the marker

    def _known_of(self, facts: CollectionFacts) -> KnownCounts:
        """Counts that hold: while somebody writes, none do."""
        return KnownCounts() if facts.writing else self._known_in(facts.change)

    def _counts(self, facts: CollectionFacts, chosen: Chosen = ALL) -> PointCounts:
        known = KnownCounts() if chosen else self._known_of(facts)
        return PointCounts(self._store, self._settings, chosen, known)

    def _at_once(self) -> int:
        """Points of one request with their vectors."""
        return max(1, min(POINTS, NUMBERS // self.dim))

    def _points(
        self, ids: Sequence[Any], fields: bool | list[str] = True, vectors: bool = True
    ) -> list[Any]:
        """The points of ids that are there; of a string only if the point is the string's own."""
        wanted = {point_id(item): item for item in ids}
        found = self._retrieved(ids, fields, vectors)
        return [point for point in found if item_id(self._settings, point) == wanted[point.id]]

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

    def _load(self, facts: CollectionFacts, bucket: int) -> int:
        only = frozenset([bucket])
        return self._counts(facts).unions([only])[only]

    def _items_of(self, points: list[Any]) -> list[Item]:
        """Items of points that have no more than their ids, in the same order."""
        ids = [item_id(self._settings, point) for point in points]
        items = self._items_by_id(ids)
        return [items[item] for item in ids if item in items]

    def _drawn(
        self, facts: CollectionFacts, chosen: Chosen, total: int, count: int, seed: int,
        fields: list[str] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Up to ``count`` points of a filter that ``total`` points pass, in the order of ids."""
        wanted = [*(fields or []), *([NAME] if self.id_kind == STRING else [])]
        options: dict[str, Any] = {"with_payload": wanted or False, "with_vectors": False}
        if total <= max(LISTED, count):
            points = [point for page in self._pages(POINTS, chosen, **options) for point in page]
            return [points[place] for place in draw_sample(len(points), count, seed).tolist()]
        generator = np.random.default_rng(seed)
        found: dict[PointId, Any] = {}
        stretch = -(-count // STRETCHES) + 1  # one more: the marker may be among them
        # Stretches may overlap; where ids leave gaps, many do. More of them only help so far.
        for _ in range(4 * STRETCHES):
            if len(found) >= count:
                break
            for point in self._stretch(_place(facts, generator), stretch, chosen, options):
                found[point.id] = point
        if len(found) < count:
            for point in self._stretch(0, 2 * count, chosen, options):
                found.setdefault(point.id, point)
        points = [
            found[name] for name in sorted(found, key=lambda name: (isinstance(name, str), name))
        ]
        return [points[place] for place in draw_sample(len(points), count, seed).tolist()]

    def _stretch(
        self, start: PointId, size: int, chosen: Chosen, options: dict[str, Any]
    ) -> list[Any]:
        """The points that follow a place, and after the last one those from the first on."""
        found: list[Any] = []
        for offset in (start, None):
            if len(found) < size:
                points, _ = self._store.ask(
                    "scroll", scroll_filter=chosen.filter(), limit=size - len(found),
                    offset=offset, **options,
                )  # fmt: skip
                found += points
        return [point for point in found if point.id != MARKER]

    def _bytes(self) -> int:
        """Of the folder in local mode; a server does not say, so there it is that of vectors."""
        address = self._store.address
        if address.folder is not None:
            place: Path = address.folder / "collection" / address.collection
            return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        return 4 * self.dim * self._count * (2 if self.metric == "cosine" else 1)

    def _others_found(self, facts: CollectionFacts, loads: NDArray[np.int64]) -> float:
        """The mean number of others that an item finds in its own buckets."""
        settings = self._settings
        if self._count < 2:
            return 0.0
        if self.active == 1:
            return float((loads * (loads - 1)).sum()) / self._count
        if self._count <= STATS_SAMPLE:  # few enough to read all codes
            options: dict[str, Any] = {"with_payload": [CODE, NAME], "with_vectors": False}
            pages = self._pages(POINTS, **options)
            codes = [code_of(settings, point) for page in pages for point in page]
            member = np.zeros((len(codes), self.buckets), bool)
            for row, code in enumerate(codes):
                member[row, code] = True
            return float(np.mean([member[:, code].any(axis=1).sum() - 1 for code in codes]))
        drawn = self._drawn(facts, ALL, self._count, COUNTED, 0, [CODE])
        unions = [frozenset(code_of(settings, point)) for point in drawn]
        counts = self._counts(facts).unions(unions)
        return float(np.mean([counts[union] - 1 for union in unions]))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[CollectionFacts]:
        """The facts to change, after what an earlier writer left behind was taken back."""
        with self._writing:
            self._check_writable()
            facts = self._now()
            if facts.pending is not None:
                with self._change(facts):
                    take_points(self._store, list(range(*facts.pending)))
                facts = self._now()
            yield facts

    @contextlib.contextmanager
    def _change(
        self,
        facts: CollectionFacts,
        begins: Mapping[str, Any] = NO_FACTS,
        ends: Mapping[str, Any] = NO_FACTS,
    ) -> Iterator[None]:
        """Between the two, readers keep nothing that they count.

        Args:
            facts: of :meth:`_changing`; those of the table are overwritten by threads that search.
            begins: facts that hold from the beginning of the change on.
            ends: facts that hold once it is made.
        """
        now = read_marker(self._store)
        if now is None or (now.change, now.writing) != (facts.change, facts.writing):
            raise self._refusal()  # somebody began or ended a change since the facts were read
        set_facts(self._store, writing=self._token, **begins)
        yield
        self._check_claim(facts)
        ended: dict[str, Any] = {"change": facts.change + 1, "writing": "", "pending": None, **ends}
        set_facts(self._store, **ended)
        count = self._counted()  # first: should it fail, the next look finds another change
        self._count, self._facts = count, replace(facts, **{**begins, **ended})

    def _check_claim(self, began: CollectionFacts) -> None:
        """Refuse to go on with a change after somebody else has begun one, or made one.

        Qdrant has no locks: of two writers the later one goes on, and what it does between this
        look and the next request is not seen. A replica that has not heard of this change yet says
        that nobody writes.
        """
        now = read_marker(self._store)
        if now is None or now.writing not in ("", self._token) or now.change != began.change:
            raise self._refusal()

    def _refusal(self) -> LockedTableError:
        return LockedTableError(
            f"{self.address} is being changed by somebody else, too; a collection takes one writer "
            "at a time. Do the same again when that one has ended"
        )

    def _refuse_strangers(self, items: HashTable) -> None:
        """Refuse a string whose point is another string's, should that ever happen."""
        if self.id_kind == INT64:
            return
        owners: dict[PointId, str] = {}
        for stored in items.batches(payloads=False):
            names = stored.ids.tolist()
            for name in names:
                if owners.setdefault(point_id(name), name) != name:
                    raise StorageError(f"the ids {name!r} and another have one point; change one")
            for point in self._retrieved(names, [NAME], vectors=False):
                if item_id(self._settings, point) != owners[point.id]:
                    raise StorageError(
                        f"the id {owners[point.id]!r} has the point of another id that is stored; "
                        "change it"
                    )


def refuse_distribute(distribute: bool) -> None:
    """Refuse what only Citus does."""
    if distribute:
        raise InputError("--distribute is for PostgreSQL with Citus; Qdrant shards by itself")


def _inside(bucket: int) -> Chosen:
    """The points in a bucket."""
    return Chosen((ALL.filter([bucket]),))


def _place(facts: CollectionFacts, generator: np.random.Generator) -> PointId:
    """A random place in the order of the points."""
    if facts.settings.ids == STRING:
        return point_id(str(generator.integers(1 << 62)))
    low, high = facts.lowest, max(facts.lowest + 1, facts.next_id)
    return point_id(low + int(generator.random() * (high - low)))
