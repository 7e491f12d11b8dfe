"""A hash table on Qdrant: what users hold in their hands."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.argument_checks import plain_integer
from flowhash.engines import engine_arguments
from flowhash.engines.engine_arguments import memory_table
from flowhash.engines.qdrant import point_writes
from flowhash.engines.qdrant.candidate_search import CandidateSearch
from flowhash.engines.qdrant.client_connection import PATIENCE, Store, kept_open
from flowhash.engines.qdrant.collection_marker import (
    MARKER,
    CollectionFacts,
    known_facts,
    make_collection,
    read_marker,
    set_facts,
)
from flowhash.engines.qdrant.point_counts import Counter, Known, Memory
from flowhash.engines.qdrant.point_filter import ALL, Chosen, read_where
from flowhash.engines.qdrant.points import (
    CODE,
    EMBEDDING,
    NAME,
    TEXT,
    PointId,
    code_of,
    item_id,
    item_of,
    point_id,
    stored_of,
    unpacked,
)
from flowhash.engines.qdrant.qdrant_address import read_address
from flowhash.errors import InputError, LockedTableError, StorageError
from flowhash.table import (
    INT64,
    STATS_SAMPLE,
    STRING,
    HashTable,
    Hits,
    Item,
    SettingsProperties,
    Stats,
    Stored,
    TableSettings,
    changed_notes,
    check_encoder,
    draw_sample,
    read_ids,
    stats_of,
)


class QdrantTable(SettingsProperties):
    """A table in a collection of Qdrant, used as :class:`flowhash.HashTable` is.

    Make one with :meth:`create`, open one with :meth:`open`. Searches may run in many threads. One
    writer at a time: Qdrant has no transactions and no locks.
    """

    _figures: tuple[int, Stats] | None = None

    def __init__(self, store: Store, facts: CollectionFacts, writable: bool) -> None:
        super().__init__(facts.settings)
        self._store = store
        self._facts = facts
        self._writable = writable
        self._items = -1
        self._open = True
        self._memory = Memory()
        self._writing = threading.RLock()
        self._empty = memory_table(facts.settings)
        self._token = secrets.token_hex(8)

    @classmethod
    def create(
        cls,
        place: str,
        *,
        buckets: int,
        dim: int,
        active: int = 1,
        metric: str = "euclidean",
        dtype: str = "float32",
        ids: str = "int64",
        encoder: str | None = None,
        distribute: bool = False,
    ) -> QdrantTable:
        """Make an empty table.

        Args:
            place: its address: ``qdrant://host:6333/collection``.
            buckets: as of :meth:`flowhash.HashTable.create`, and so are the others.
            dim: at most 65536.
            active: k.
            metric: "euclidean", "cosine" or "inner".
            dtype: "float16" rounds embeddings; they take the space of float32 all the same.
            ids: "int64" or "string".
            encoder: the fingerprint of the encoder.
            distribute: not for Qdrant, which spreads collections by itself.

        Raises:
            InputError: a setting that cannot be.
            StorageError: the server does not answer, or there is such a collection.
        """
        number = plain_integer
        settings = TableSettings(
            number(buckets), number(dim), number(active), metric, dtype, ids, encoder
        )
        settings.check()
        refuse_distribute(distribute)
        with kept_open(Store(read_address(place))) as store:
            facts = CollectionFacts(settings)
            make_collection(store, facts)
            return cls._of(store, facts, True)

    @classmethod
    def open(cls, place: str, mode: str = "r", *, encoder: str | None = None) -> QdrantTable:
        """Open the table at an address.

        Args:
            place: its address.
            mode: "r" to search, "r+" to change it too.
            encoder: if given, the fingerprint that it must have been made with.

        Raises:
            InputError: the encoder is another one.
            StorageError: the server does not answer or refuses, or there is no such table.
        """
        if mode not in ("r", "r+"):
            raise InputError(
                f'mode is {mode!r}; expected "r" to search or "r+" to change the table'
            )
        address = read_address(place)
        if not address.may_hold():
            raise StorageError(
                f"{address.shown}: there is no such collection; flowhash index --to and flowhash "
                "copy make them"
            )
        with kept_open(Store(address)) as store:
            facts = known_facts(store)
            check_encoder(facts.settings.encoder, encoder, address.shown)
            return cls._of(store, facts, mode == "r+")

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

    @classmethod
    def _of(cls, store: Store, facts: CollectionFacts, writable: bool) -> QdrantTable:
        table = cls(store, facts, writable)
        table._now()
        return table

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

    def add(
        self,
        codes: ArrayLike,
        embeddings: ArrayLike,
        ids: Any = None,
        payloads: Sequence[dict[str, Any] | None] | None = None,
        *,
        encoder: str | None = None,
        notes: Mapping[str, Any] | None = None,
        expected_notes: Mapping[str, Any] | None = None,
    ) -> NDArray[Any]:
        """Add items; an id that is there already is replaced.

        When it returns, the items are stored. If it fails midway, a part of them may be: the same
        call completes them. Items whose ids the table counts are taken back by the next change.

        Args:
            codes: as of :meth:`flowhash.HashTable.add`, and so are the others.
            embeddings: [n, dim].
            ids: whole numbers, or strings.
            payloads: for each item a dict or None.
            encoder: the fingerprint of the encoder that made them.
            notes: written with the marker that ends the change: they are there when all items are.
            expected_notes: what some notes are as you know them.

        Returns:
            The ids [n].

        Raises:
            InputError: an argument does not fit; nothing was added.
            ChangedNotesError: a note is not what was expected; nothing was added.
            StorageError: the server failed.
        """
        self._check_writable()
        settings = self._facts.settings
        items = engine_arguments.new_items(settings, codes, embeddings, ids, payloads, encoder)
        with self._changing() as facts:
            known = items.counted_from(facts.next_id)
            changed = changed_notes(json.loads(facts.notes), notes, expected_notes)
            noted = {} if changed is None else {"notes": json.dumps(changed)}
            if not len(known) and noted:
                set_facts(self._store, **noted)
            if len(known):
                self._refuse_strangers(items.table)
                with self._change(facts, **noted, **point_writes.begun(facts, items, known)):
                    for _ in point_writes.put(
                        self._store, settings, items, facts.next_id, self._at_once()
                    ):
                        set_facts(self._store, writing=self._claim())
        return known

    def delete(self, ids: Any) -> int:
        """Delete items; ids that are not there are passed over. How many were deleted."""
        self._check_writable()
        wanted = read_ids(ids, self._facts.settings.ids)
        names = list(dict.fromkeys(wanted.value(place) for place in range(len(wanted))))
        with self._changing() as facts:
            fields = point_writes.name_fields(self._facts.settings)
            found = self._points(names, fields, vectors=False)
            if found:
                with self._change(facts):
                    point_writes.take(self._store, [point.id for point in found])
        return len(found)

    def search(
        self,
        ordered_buckets: ArrayLike,
        queries: ArrayLike,
        top: int = 16,
        *,
        probe: int | None = None,
        at_least: int | None = None,
        where: Any = None,
        threads: int | None = None,
        payloads: bool = False,
        buckets: bool = False,
        encoder: str | None = None,
    ) -> Hits:
        """The nearest items among those in the buckets that each query opens.

        Args:
            ordered_buckets: as of :meth:`flowhash.HashTable.search`, and so are the others.
            queries: [q, dim].
            top: how many to return.
            probe: how many buckets to open; k by default.
            at_least: open further buckets until so many items are found.
            where: ids, up to 100,000, or a mask; or a dict of payload fields and the value, or the
                list of values, that each may have.
            threads: only checked; the server has its own.
            payloads: whether to return payloads too.
            buckets: whether to return the buckets that each hit is in, too.
            encoder: the fingerprint of the queries' encoder.

        Raises:
            InputError: arguments that do not fit.
            StorageError: the server failed.
        """
        self._check_open()
        asked = engine_arguments.asked(
            self._empty, ordered_buckets, queries, top, probe, at_least, threads, encoder
        )
        chosen = read_where(self._empty, where)
        facts = self._now()
        counter = self._counter(facts, chosen)
        search = CandidateSearch(self._store, facts, chosen, counter, payloads, buckets)
        return search.answer(asked)

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

    def sample(self, count: int, seed: int) -> tuple[int, list[Item]]:
        """How many items there are, and a random sample of them; the same for the same seed."""
        facts = self._now()
        return self._items, self._items_of(self._drawn(facts, ALL, self._items, count, seed))

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
        return self._counter(self._now()).loads().copy()

    def codes_of(self, ids: list[Any]) -> list[list[int] | None]:
        """The buckets of each item, ascending; None for those that are not there."""
        self._check_open()
        settings = self._facts.settings
        wanted = read_ids(ids, settings.ids)
        names = [wanted.value(place) for place in range(len(wanted))]
        found = self._points(names, [CODE, NAME], vectors=False)
        codes = {item_id(settings, point): code_of(settings, point) for point in found}
        return [codes.get(name) for name in names]

    def stats(self) -> Stats:
        """Loads of buckets, measured and expected SUF, bytes; kept until the table changes."""
        facts = self._now()
        kept = self._figures
        if kept is None or kept[0] != facts.change or facts.writing:
            kept = (facts.change, self._measured(facts))
            self._figures = kept
        return kept[1]

    def __delitem__(self, item: int | str) -> None:
        if item not in self or not self.delete([item]):
            raise KeyError(item)

    def __enter__(self) -> QdrantTable:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

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

    def _now(self) -> CollectionFacts:
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

    def _counter(self, facts: CollectionFacts, chosen: Chosen = ALL) -> Counter:
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

    def _load(self, facts: CollectionFacts, bucket: int) -> int:
        return self._counter(facts).unions([frozenset([bucket])])[frozenset([bucket])]

    def _items_of(self, points: list[Any]) -> list[Item]:
        """Items of points that have no more than their ids, in the same order."""
        settings = self._facts.settings
        found = self._points([item_id(settings, point) for point in points])
        items = {point.id: item_of(settings, point) for point in found}
        return [items[point.id] for point in points if point.id in items]

    def _drawn(
        self, facts: CollectionFacts, chosen: Chosen, total: int, count: int, seed: int,
        fields: list[str] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Up to ``count`` points of a filter that ``total`` points pass, in the order of ids."""
        wanted = [*(fields or []), *([NAME] if facts.settings.ids == STRING else [])]
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

    def _measured(self, facts: CollectionFacts) -> Stats:
        loads = self._counter(facts).loads()
        segments = int(self._store.ask("get_collection").segments_count or 1)
        return stats_of(
            facts.settings, self._items, loads, self._others_found(facts, loads), self._bytes(),
            segments=segments, number_bytes=4,
        )  # fmt: skip

    def _bytes(self) -> int:
        """Of the folder in local mode; a server does not say, so there it is that of vectors."""
        address = self._store.address
        if address.folder is not None:
            place: Path = address.folder / "collection" / address.collection
            return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        return 4 * self.dim * self._items * (2 if self.metric == "cosine" else 1)

    def _others_found(self, facts: CollectionFacts, loads: NDArray[np.int64]) -> float:
        """The mean number of others that an item finds in its own buckets."""
        settings = facts.settings
        if self._items < 2:
            return 0.0
        if settings.active == 1:
            return float((loads * (loads - 1)).sum()) / self._items
        if self._items <= STATS_SAMPLE:  # few enough to read all codes
            options: dict[str, Any] = {"with_payload": [CODE, NAME], "with_vectors": False}
            pages = self._pages(POINTS, **options)
            codes = np.array([code_of(settings, point) for page in pages for point in page])
            member = np.zeros((len(codes), settings.buckets), bool)
            np.put_along_axis(member, codes, True, axis=1)
            return float(np.mean([member[:, code].any(axis=1).sum() - 1 for code in codes]))
        drawn = self._drawn(facts, ALL, self._items, COUNTED, 0, [CODE])
        unions = [frozenset(code_of(settings, point)) for point in drawn]
        counts = self._counter(facts).unions(unions)
        return float(np.mean([counts[union] - 1 for union in unions]))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[CollectionFacts]:
        """The facts to change, after what an earlier writer left behind was taken back."""
        with self._writing:
            self._check_writable()
            facts = self._now()
            self._refuse_others(facts)
            if facts.pending is not None:
                low, high = facts.pending
                with self._change(facts):
                    point_writes.take(self._store, list(range(low, high)))
                facts = self._now()
            yield facts

    @contextlib.contextmanager
    def _change(self, facts: CollectionFacts, **changed: Any) -> Iterator[None]:
        """Between the two, readers keep nothing that they count.

        Args:
            facts: of :meth:`_changing`; those of the table are overwritten by threads that search.
            **changed: what the change makes of them.
        """
        ends = {name: changed.pop(name) for name in ("next_id", "notes") if name in changed}
        set_facts(self._store, writing=self._claim(), **changed)
        yield
        set_facts(self._store, change=facts.change + 1, writing="", pending=None, **ends)
        self._now()

    def _claim(self) -> str:
        return f"{self._token} {time.time():.0f}"

    def _refuse_others(self, facts: CollectionFacts) -> None:
        """Refuse to write while somebody else does, who has said so within ``LEASE`` seconds.

        Qdrant has no locks: who begins within the same blink is not seen.
        """
        who, _, since = facts.writing.partition(" ")
        if who and who != self._token and abs(time.time() - float(since)) < LEASE:
            raise LockedTableError(
                f"{self.address} is being changed by somebody else; wait for the end, or, if that "
                f"one died, {LEASE} s, and do the same again"
            )

    def _refuse_strangers(self, items: HashTable) -> None:
        """Refuse a string whose point is another string's, should that ever happen."""
        if self._facts.settings.ids == INT64:
            return
        owners: dict[PointId, str] = {}
        for stored in items.batches(payloads=False):
            names = stored.ids.tolist()
            for name in names:
                if owners.setdefault(point_id(name), name) != name:
                    raise StorageError(f"the ids {name!r} and another have one point; change one")
            for point in self._retrieved(names, [NAME], vectors=False):
                if item_id(self._facts.settings, point) != owners[point.id]:
                    raise StorageError(
                        f"the id {owners[point.id]!r} has the point of another id that is stored; "
                        "change it"
                    )


def refuse_distribute(distribute: bool) -> None:
    """Refuse what only Citus does."""
    if distribute:
        raise InputError("--distribute is for PostgreSQL with Citus; Qdrant shards by itself")


NUMBERS = 1 << 19  # of vectors that one request brings or carries at the most
POINTS = 4096  # the same for points


LISTED = 2048  # points whose ids are listed to draw from them; of more, stretches are drawn
STRETCHES = 16  # places where a sample begins to read
COUNTED = 200  # items of a large table whose own buckets are counted to measure SUF with k > 1


def _inside(bucket: int) -> Chosen:
    """The points in a bucket."""
    only = ALL.filter([bucket])
    assert only is not None
    return Chosen((only,))


def _place(facts: CollectionFacts, generator: np.random.Generator) -> PointId:
    """A random place in the order of the points."""
    if facts.settings.ids == STRING:
        return point_id(str(generator.integers(1 << 62)))
    low, high = facts.lowest, max(facts.lowest + 1, facts.next_id)
    return point_id(low + int(generator.random() * (high - low)))


# Seconds after which a writer that says nothing is taken for dead. It speaks between requests, so
# that one which waits for a slow server must not be.
LEASE = 2 * PATIENCE
