"""``RemoteTable``: a hash table that another process runs, as users hold it in their hands."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.argument_checks import plain_integer
from flowhash.engines.engine_arguments import EngineItems, EngineQueries, id_values, read_where
from flowhash.errors import InputError, StorageError
from flowhash.table import (
    RECALL_NOTE,
    RECALL_TOPS,
    HashTable,
    HealthReport,
    Hits,
    Item,
    RecallCalibration,
    SettingsProperties,
    Stats,
    TableSettings,
    calibrated,
    check_search,
    check_vectors,
    examine,
    noted_calibration,
    opened_for_recall,
    read_probe,
    read_queries,
    read_recall,
)

KEPT = 200_000  # counts that are remembered
Table = TypeVar("Table", bound="RemoteTable")


@dataclass
class KnownCounts:
    """What was counted in one state of a table.

    Attributes:
        counts: items in buckets; each engine has its own keys.
        loads: items of each bucket [d], once they were asked for.
        firsts: items that each bucket is the first one of [d], likewise.
        stats: once they were asked for.
    """

    counts: dict[Any, int] = field(default_factory=dict)
    loads: NDArray[np.int64] | None = None
    firsts: NDArray[np.int64] | None = None
    stats: Stats | None = None


class RemoteTable(SettingsProperties, ABC):
    """A table on an engine, used as :class:`flowhash.HashTable` is.

    Make one with :meth:`create`, open one with :meth:`open`. Searches may run in many threads.
    """

    def __init__(self, settings: TableSettings, writable: bool) -> None:
        super().__init__(settings)
        self._writable = writable
        self._open = True
        self._count = 0  # of items, when they were last looked at
        self._empty = HashTable.create(**asdict(settings))
        self._state, self._known = -1, KnownCounts()
        self._known_lock = threading.Lock()

    @classmethod
    def create(
        cls: type[Table],
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
    ) -> Table:
        """Make an empty table.

        Args:
            place: its address, where nothing is yet.
            buckets: d; and so on, as in :meth:`flowhash.HashTable.create`.
            dim: numbers in an embedding, at most 16,000 on PostgreSQL and 65,536 on Qdrant.
            active: k.
            metric: "euclidean", "cosine" or "inner".
            dtype: "float16" rounds embeddings; on Qdrant they take the space of float32 all the
                same.
            ids: "int64" or "string".
            encoder: the fingerprint of the encoder.
            distribute: spread the rows over the nodes of Citus, by bucket; not for Qdrant, which
                spreads collections by itself.

        Raises:
            InputError: a setting that cannot be.
            StorageError: the server does not answer or refuses, or has something of that name.
        """
        number = plain_integer
        settings = TableSettings(
            number(buckets), number(dim), number(active), metric, dtype, ids, encoder
        )
        settings.check()
        made: Table = cls._create(place, settings, distribute)
        return made

    @classmethod
    def open(cls: type[Table], place: str, mode: str = "r", *, encoder: str | None = None) -> Table:
        """Open the table at an address.

        Args:
            place: its address.
            mode: "r" to search, "r+" to change it too; a user without the right can still search.
            encoder: if given, the fingerprint that it must have been made with.

        Raises:
            InputError: the mode or the encoder is another one.
            StorageError: the server does not answer or refuses, or there is no such table.
        """
        if mode not in ("r", "r+"):
            raise InputError(f'mode is {mode!r}; expected "r" to search or "r+" to change it')
        stored: Table = cls._open_stored(place, mode == "r+", encoder)
        return stored

    @classmethod
    @abstractmethod
    def _create(cls, place: str, settings: TableSettings, distribute: bool) -> Any:
        """Make an empty table with settings that can be."""

    @classmethod
    @abstractmethod
    def _open_stored(cls, place: str, writable: bool, encoder: str | None) -> Any:
        """Open a table that must have been made with the encoder."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it is, without a password or a key."""

    @property
    def writable(self) -> bool:
        """Whether items can be changed through this object."""
        return self._writable and self._open

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
        """Add items and notes; an id that is there already is replaced.

        Arguments, answer and errors are those of :meth:`flowhash.HashTable.add`. When it returns,
        the items are stored, and the notes with them.
        """
        self._check_writable()
        table = HashTable.create(**asdict(self._settings))
        known = table.add(codes, embeddings, ids, payloads, encoder=encoder)
        return self._add(EngineItems(table, known, ids is None), notes, expected_notes)

    @abstractmethod
    def _add(
        self,
        items: EngineItems,
        notes: Mapping[str, Any] | None,
        expected_notes: Mapping[str, Any] | None,
    ) -> NDArray[Any]:
        """Store items and notes; the ids."""

    def delete(self, ids: Any) -> int:
        """Delete items; ids that are not there are passed over. How many were deleted."""
        self._check_writable()
        return self._delete(id_values(ids, self.id_kind))

    @abstractmethod
    def _delete(self, ids: list[Any]) -> int:
        """Delete those of the items that are there; how many that were."""

    def search(
        self,
        ordered_buckets: ArrayLike,
        queries: ArrayLike,
        top: int = 16,
        *,
        probe: int | ArrayLike | None = None,
        at_least: int | None = None,
        recall: float | None = None,
        where: Any = None,
        threads: int | None = None,
        payloads: bool = False,
        buckets: bool = False,
        encoder: str | None = None,
    ) -> Hits:
        """The nearest items among those in the buckets that each query opens.

        Arguments, answer and errors are those of :meth:`flowhash.HashTable.search`, with one more
        kind of ``where``: a dict of payload fields and the value, or a list of the values, that
        each may have. Qdrant takes up to 100,000 ids. ``threads`` is only checked: the server has
        its own.
        """
        self._check_open()
        check_vectors(self.encoder, encoder)
        if recall is not None:
            recall = read_recall(recall)
            ordered_buckets, probe = opened_for_recall(
                self, ordered_buckets, recall, top, probe, where, at_least
            )
        order, vectors = read_queries(self._settings, ordered_buckets, queries)
        probe = read_probe(probe, self.active, len(vectors))
        top = plain_integer(top)
        check_search(self.buckets, order, top, probe, at_least, threads)
        # The kernels look at the numbers, in an empty table as in a full one.
        self._empty.search(order, vectors, 1, probe=probe if at_least is None else order.shape[1])
        least = None if at_least is None else int(at_least)
        allowed = read_where(self._empty, where)
        probes = np.full(len(vectors), probe, np.int32)
        asked = EngineQueries(order, vectors, top, probes, least, allowed)
        hits = self._search(asked, payloads, buckets)
        hits.recall = recall
        return hits

    def calibrate(
        self,
        activations: ArrayLike,
        queries: ArrayLike,
        *,
        tops: int | Sequence[int] = RECALL_TOPS,
        own: Any = None,
        threads: int | None = None,
        encoder: str | None = None,
    ) -> RecallCalibration:
        """Find out how many buckets a recall takes; see :meth:`flowhash.HashTable.calibrate`.

        Items that are added or deleted later are not counted here. It is called old by how many
        items more or fewer there are; where as many came as went, nothing says so: calibrate again
        after many changes.
        """
        self._check_writable()
        found = calibrated(self, activations, queries, tops, own, threads, encoder)
        self.note(RECALL_NOTE, found.to_json())
        return found

    def health(
        self,
        activations: ArrayLike | None = None,
        queries: ArrayLike | None = None,
        *,
        own: Any = None,
        threads: int | None = None,
        encoder: str | None = None,
    ) -> HealthReport:
        """How even the buckets are, and what to do; see :meth:`flowhash.HashTable.health`.

        Of the changes since the calibration only those of the number of items are known.
        """
        self._check_open()
        return examine(self, activations, queries, own, threads, encoder)

    @property
    def calibration(self) -> RecallCalibration | None:
        """What :meth:`calibrate` found, if it was called; the server is asked each time."""
        return noted_calibration(self.notes())

    @abstractmethod
    def _search(self, asked: EngineQueries, payloads: bool, buckets: bool) -> Hits:
        """Answer queries, with the payloads and the buckets of the hits if they are wanted."""

    @abstractmethod
    def notes(self) -> dict[str, Any]:
        """What was noted about the table."""

    @abstractmethod
    def note(self, name: str, value: Any) -> None:
        """Note something, durably; None removes it."""

    @abstractmethod
    def stats(self) -> Stats:
        """Figures of the table."""

    @abstractmethod
    def bucket_loads(self) -> NDArray[np.int64]:
        """How many items each bucket holds [d]."""

    def codes_of(self, ids: list[Any]) -> list[list[int] | None]:
        """The buckets of each item, ascending; None for those that are not there."""
        self._check_open()
        wanted = id_values(ids, self.id_kind)
        found = self._codes_by_id(wanted)
        return [found.get(name) for name in wanted]

    @abstractmethod
    def _codes_by_id(self, ids: list[Any]) -> dict[Any, list[int]]:
        """The buckets of those of the items that are there."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection; closing twice is fine."""

    def __delitem__(self, item: int | str) -> None:
        if item not in self or not self.delete([item]):
            raise KeyError(item)

    def __enter__(self: Table) -> Table:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        self._check_open()
        return self._count

    def __contains__(self, item: object) -> bool:
        try:
            self[item]
        except KeyError:
            return False
        return True

    def __getitem__(self, item: Any) -> Item:
        self._check_open()
        try:
            (wanted,) = id_values([item], self.id_kind)
        except ValueError:  # of another kind, or no single id
            raise KeyError(item) from None
        found = self._items_by_id([wanted])
        if wanted not in found:
            raise KeyError(item)
        return found[wanted]

    @abstractmethod
    def _items_by_id(self, ids: list[Any]) -> dict[Any, Item]:
        """Those of the items that are there."""

    def __repr__(self) -> str:
        if not self._open:
            return f"<{type(self).__name__} at {self.address}, closed>"
        return (
            f"<{type(self).__name__} at {self.address}: {self._count} items, "
            f"buckets={self.buckets}, dim={self.dim}, active={self.active}, metric={self.metric!r}>"
        )

    def _check_open(self) -> None:
        if not self._open:
            raise StorageError(f"{self.address} is closed; open it again")

    def _check_writable(self) -> None:
        self._check_open()
        if not self._writable:
            raise StorageError(
                f'{self.address} was opened to be searched only; open it with mode="r+" to change '
                "it"
            )

    def _known_in(self, state: int) -> KnownCounts:
        """What is known of the state with this number of changes; threads share it."""
        with self._known_lock:
            if state != self._state or len(self._known.counts) > KEPT:
                self._state, self._known = state, KnownCounts()
            return self._known
