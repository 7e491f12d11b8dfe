"""A hash table on Qdrant: what users hold in their hands."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike, NDArray

from flowhash.engines import given
from flowhash.engines.qdrant import writing
from flowhash.engines.qdrant.address import read_address
from flowhash.engines.qdrant.changing import QdrantChanging
from flowhash.engines.qdrant.connecting import Store, kept_open
from flowhash.engines.qdrant.filters import read_where
from flowhash.engines.qdrant.marker import Facts, known_facts, make_collection, set_facts
from flowhash.engines.qdrant.searching import Searching
from flowhash.errors import InputError, StorageError
from flowhash.table import Hits
from flowhash.table.arguments import whole_number
from flowhash.table.ids import read_ids
from flowhash.table.settings import Settings, check_encoder


class QdrantTable(QdrantChanging):
    """A table in a collection of Qdrant, used as :class:`flowhash.HashTable` is.

    Make one with :meth:`create`, open one with :meth:`open`. Searches may run in many threads. One
    writer at a time: Qdrant has no transactions and no locks.
    """

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
        number = whole_number
        settings = Settings(
            number(buckets), number(dim), number(active), metric, dtype, ids, encoder
        )
        settings.check()
        refuse_distribute(distribute)
        with kept_open(Store(read_address(place))) as store:
            facts = Facts(settings)
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
    def _of(cls, store: Store, facts: Facts, writable: bool) -> QdrantTable:
        table = cls(store, facts, writable)
        table._now()
        return table

    def add(
        self,
        codes: ArrayLike,
        embeddings: ArrayLike,
        ids: Any = None,
        payloads: Sequence[dict[str, Any] | None] | None = None,
        *,
        encoder: str | None = None,
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

        Returns:
            The ids [n].

        Raises:
            InputError: an argument does not fit; nothing was added.
            StorageError: the server failed.
        """
        self._check_writable()
        settings = self._facts.settings
        items = given.new_items(settings, codes, embeddings, ids, payloads, encoder)
        with self._changing() as facts:
            known = items.counted_from(facts.next_id)
            if len(known):
                self._refuse_strangers(items.table)
                with self._change(facts, **writing.begun(facts, items, known)):
                    for _ in writing.put(
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
            fields = writing.name_fields(self._facts.settings)
            found = self._points(names, fields, vectors=False)
            if found:
                with self._change(facts):
                    writing.take(self._store, [point.id for point in found])
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
            encoder: the fingerprint of the queries' encoder.

        Raises:
            InputError: arguments that do not fit.
            StorageError: the server failed.
        """
        self._check_open()
        asked = given.asked(
            self._empty, ordered_buckets, queries, top, probe, at_least, threads, encoder
        )
        chosen = read_where(self._empty, where)
        facts = self._now()
        counter = self._counter(facts, chosen)
        return Searching(self._store, facts, chosen, counter, payloads).answer(asked)

    def close(self) -> None:
        """Let go of the connection; closing twice is fine."""
        self._open = False
        self._store.close()

    def __delitem__(self, item: int | str) -> None:
        if item not in self or not self.delete([item]):
            raise KeyError(item)

    def __enter__(self) -> QdrantTable:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def refuse_distribute(distribute: bool) -> None:
    """Refuse what only Citus does."""
    if distribute:
        raise InputError("--distribute is for PostgreSQL with Citus; Qdrant shards by itself")
