"""``HashTable``, whole: create and open, add and delete, search, look at what is stored."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.argument_checks import plain_integer, whole_number
from flowhash.errors import DamagedFileError, InputError, LockedTableError, StorageError
from flowhash.table import arguments, changes
from flowhash.table.health_report import HealthReport, examine
from flowhash.table.ids import STRING, no_ids, read_ids
from flowhash.table.integrity import state_faults
from flowhash.table.recall_calibration import (
    CHANGES,
    RECALL_NOTE,
    RECALL_TOPS,
    RecallCalibration,
    calibrated,
    changes_since,
    check_recall,
    counted_changes,
    holds_enough,
    noted_calibration,
    only_bucket,
    open_by_share,
    read_activations,
    read_recall,
    required_calibration,
    warn_if_old,
)
from flowhash.table.results import Hits, Item, Stored
from flowhash.table.search.bucket_plan import bucket_sizes
from flowhash.table.search.scan import ROW_BITS, ROW_MASK, split_place
from flowhash.table.search.searcher import Searcher
from flowhash.table.segments.segment import Segment, TableState
from flowhash.table.statistics import Stats, draw_sample, table_stats
from flowhash.table.storage.manifest import read_manifest
from flowhash.table.storage.table_folder import TableFolder
from flowhash.table.table_settings import (
    SettingsProperties,
    TableSettings,
    check_encoder,
    check_vectors,
)

Piece = tuple[Segment, "range | NDArray[np.int64]"]  # live rows of one segment
# Is told of what cannot be read: the item whose payload it is, or None where it is not a payload.
Lost = Callable[["int | str | None", DamagedFileError], None]
Read = TypeVar("Read")


class HashTable(SettingsProperties):
    """A hash table: items in the k buckets of their codes, ranked by their embeddings.

    Make one with :meth:`create`, or open a stored one with :meth:`open`. Searches may run in many
    threads while one thread adds and deletes: each sees one state of the table, whole. A process
    that is forked may search the table that it was forked with, but not change a stored one.

    Example:
        >>> import numpy as np
        >>> table = HashTable.create(buckets=4, dim=2)
        >>> table.add(codes=[[0], [0], [3]], embeddings=[[0, 0], [3, 4], [9, 9]])
        array([0, 1, 2])
        >>> hits = table.search([[0, 3]], [[0, 1]], top=2)
        >>> hits.ids, hits.distances, hits.scanned
        (array([[0, 1]]), array([[ 1., 18.]], dtype=float32), array([2]))
    """

    def __init__(
        self, settings: TableSettings, folder: TableFolder | None, state: TableState
    ) -> None:
        super().__init__(settings)
        self._folder = folder
        self._state: TableState | None = state
        self._writing = threading.RLock()
        self._searcher: Searcher | None = None
        # Weakly, or files that a merge has replaced would be kept until somebody asks again.
        self._stats: tuple[weakref.ref[TableState], Stats] | None = None
        self._memory_notes: dict[str, Any] = {}  # of a table without a folder
        self._calibration: tuple[Any, RecallCalibration | None] | None = None  # of these notes
        _tables.add(self)

    @classmethod
    def create(
        cls,
        path: str | Path | None = None,
        *,
        buckets: int,
        dim: int,
        active: int = 1,
        metric: str = "euclidean",
        dtype: str = "float32",
        ids: str = "int64",
        encoder: str | None = None,
    ) -> HashTable:
        """Make an empty table.

        Args:
            path: a new or empty folder to keep it in; None keeps it in memory.
            buckets: d, how many buckets there are.
            dim: how many numbers an embedding has.
            active: k, how many buckets an item is in, at the most.
            metric: "euclidean" (squared), "cosine" (1 - cosine) or "inner" (minus the product).
            dtype: "float32", or "float16" to store embeddings in half the space, rounded.
            ids: "int64" or "string".
            encoder: the fingerprint of the encoder that makes codes and embeddings.

        Raises:
            InputError: a setting that cannot be.
            StorageError: the folder is not empty or cannot be written.
        """
        number = plain_integer
        settings = TableSettings(
            number(buckets), number(dim), number(active), metric, dtype, ids, encoder
        )
        settings.check()
        empty = TableState(encoder=settings.encoder)
        if path is None:
            return cls(settings, None, empty)
        return cls(settings, TableFolder.create(Path(path), settings), empty)

    @classmethod
    def open(cls, path: str | Path, mode: str = "r", *, encoder: str | None = None) -> HashTable:
        """Open a stored table; its files are mapped, not read.

        Args:
            path: its folder.
            mode: "r" to search, as many processes as you like; "r+" to change it too, one at a
                time.
            encoder: if given, the fingerprint that the table must have been made with.

        Raises:
            StorageError: there is no table, or its format is newer than this FlowHash.
            DamagedFileError: a file is missing or damaged.
            LockedTableError: with "r+", somebody else is writing.
            InputError: the encoder is another one.
        """
        if mode not in ("r", "r+"):
            raise InputError(
                f'mode is {mode!r}; expected "r" to search or "r+" to change the table'
            )
        folder = TableFolder(Path(path), writable=mode == "r+")
        try:
            state = folder.load()  # before its settings: it may find a newer manifest
            settings = folder.manifest.settings
            check_encoder(settings.encoder, encoder, str(path))
            if folder.writable:
                folder.remove_strays()
            return cls(settings, folder, state)
        except BaseException:
            folder.close()
            raise

    @property
    def path(self) -> Path | None:
        """The folder, or None in memory."""
        return None if self._folder is None else self._folder.path

    @property
    def writable(self) -> bool:
        """Whether the table can be changed through this object."""
        return self._state is not None and (self._folder is None or self._folder.writable)

    @property
    def encoder(self) -> str | None:
        """The fingerprint of the encoder, if it was given."""
        state = self._state
        return self._settings.encoder if state is None else state.encoder

    @property
    def version(self) -> str:
        """Tells this state of a stored table from every other, and from other tables."""
        if self._folder is None:
            return f"in memory {id(self._open_state())}"
        manifest = self._folder.manifest
        return f"{manifest.identity} {manifest.generation}"

    @property
    def next_id(self) -> int:
        """The id of the next item that is added without one."""
        return self._open_state().next_id

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
        """Add items; an id that the table has already is replaced, as is one given twice.

        When it returns, the items are in the table, and on disk if the table has a folder.

        Args:
            codes: the buckets of each item [n, k], different ones, in any order. An item that is in
                fewer than k has -1 behind its last one.
            embeddings: [n, dim].
            ids: whole numbers, or strings in a table of those; None lets the table count.
            payloads: for each item a small dict that JSON can hold, or None.
            encoder: the fingerprint of the encoder that made codes and embeddings, compared with
                the table's. Without one on either side they are taken on trust.
            notes: what to note with the items, as :meth:`note` does: whoever opens the table finds
                both or neither, whatever happens meanwhile.
            expected_notes: what some notes are as you know them, None for one that is not there.

        Returns:
            The ids [n].

        Raises:
            InputError: shapes, buckets, numbers, ids, encoder or notes do not fit; nothing was
                added.
            ChangedNotesError: a note is not what was expected; nothing was added.
            StorageError: the files could not be written; nothing was added.
        """
        check_vectors(self.encoder, encoder)
        items = arguments.read_items(self._settings, codes, embeddings, ids, payloads)
        with self._changing() as state:
            check_vectors(state.encoder, encoder)  # which another thread may have changed
            items = arguments.with_ids(items, state.next_id)
            counted = counted_changes(self._known_notes, len(items.codes))
            changed = arguments.changed_notes(
                self._known_notes, {**(notes or {}), **counted}, expected_notes
            )
            if len(items.codes):
                self._state = changes.add(self._settings, self._folder, state, items, changed)
                if changed is not None:
                    self._memory_notes = changed
                self._state = changes.tidy(self._settings, self._folder, self._state)
            elif changed is not None:
                self._store_notes(state, changed)
        return items.user_ids()

    def delete(self, ids: Any) -> int:
        """Delete items; ids that the table does not have are passed over.

        Returns:
            How many were deleted.
        """
        wanted = read_ids(ids, self._settings.ids)
        with self._changing() as state:
            changed = state.without(*state.locate(wanted))
            gone = state.live - changed.live
            if gone:
                noted = arguments.changed_notes(
                    self._known_notes, counted_changes(self._known_notes, gone)
                )
                self._state = changes.store(self._folder, state, changed, noted)
                if noted is not None:
                    self._memory_notes = noted
                self._state = changes.tidy(self._settings, self._folder, self._state)
        return gone

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

        Args:
            ordered_buckets: the buckets of each query in the order in which it opens them [q, m],
                as ``flowhash.ordered_buckets`` gives them; with ``recall`` the query's activations
                [q, d] themselves.
            queries: their embeddings [q, dim].
            top: how many to return.
            probe: how many buckets to open, one number or one for each query [q]; k by default.
            at_least: open further buckets, in order, until so many items are found.
            recall: open as many as it takes to find this share of the ``top`` nearest of all items,
                on average over queries like those of :meth:`calibrate`, which comes first. One
                opens everything. A table of one bucket needs no calibration.
            where: ids that may be found: a list or set of ids, or a boolean array that has True at
                the place of each (whole-number) id.
            threads: how many threads at the most; all cores by default.
            payloads: whether to return payloads too.
            buckets: whether to return the buckets that each hit is in, too.
            encoder: the fingerprint of the queries' encoder, compared as in :meth:`add`.

        Raises:
            InputError: arguments that do not fit.
            DamagedFileError: the search met a damaged file.
        """
        state = self._open_state()
        check_vectors(state.encoder, encoder)
        if recall is not None:
            recall = read_recall(recall)
            check_recall(probe, where)
            if self.buckets > 1:
                known = required_calibration(self.calibration)
                warn_if_old(known, changes_since(known, self._known_notes, state.live), 2)
            ordered_buckets, probe, at_least = self._opened_for(
                state, ordered_buckets, recall, top, at_least, threads
            )
        hits, places = self._search(
            state, ordered_buckets, queries, top, probe, at_least, where, threads
        )
        hits.recall = recall
        if payloads:
            hits.payloads = payloads_at(state, places)
        if buckets:
            hits.buckets = buckets_at(state, places, self.active)
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
        """Find out how many buckets a recall takes, so that :meth:`search` can be asked for one.

        The true neighbours of the queries are searched among all items. The result is noted in the
        table. Queries that set the thresholds promise the recall on average for further queries
        like them, not for each, and not for others.

        Args:
            activations: of the queries [q, d]; a thousand do well.
            queries: their embeddings [q, dim].
            tops: numbers of neighbours whose recall is asked for later, or one; a search for
                another number takes the next larger of them.
            own: the ids of the queries [q] where they are items of the table, which then do not
                find themselves. A network that was trained on them is surer of them than of others.
            threads: how many threads at the most; all cores by default.
            encoder: the fingerprint of the queries' encoder, compared as in :meth:`add`.

        Raises:
            InputError: arguments that do not fit, or too few queries or items.
            StorageError: it could not be noted.
        """
        found = calibrated(self, activations, queries, tops, own, threads, encoder)
        with self._changing() as state:
            noted = {RECALL_NOTE: found.to_json(), CHANGES: None}
            changed = arguments.changed_notes(self._known_notes, noted)
            if changed is not None:
                self._store_notes(state, changed)
        return found

    @property
    def calibration(self) -> RecallCalibration | None:
        """What :meth:`calibrate` found, if it was called."""
        self._open_state()
        notes, kept = self._known_notes, self._calibration
        if kept is None or kept[0] is not notes:  # notes are replaced, never changed
            kept = self._calibration = (notes, noted_calibration(notes))
        return kept[1]

    def health(
        self,
        activations: ArrayLike | None = None,
        queries: ArrayLike | None = None,
        *,
        own: Any = None,
        threads: int | None = None,
        encoder: str | None = None,
    ) -> HealthReport:
        """How even the buckets are, what a recall takes now and took then, and what to do.

        Without queries, what a recall scans is told from the loads of the buckets alone, and what
        it reaches is not known. A few hundred queries, or stored items, measure both.

        Args:
            activations: of queries [q, d], 30 or more.
            queries: their embeddings [q, dim].
            own: the ids of the queries [q] where they are items of the table.
            threads: how many threads at the most; all cores by default.
            encoder: the fingerprint of the queries' encoder, compared as in :meth:`add`.

        Raises:
            InputError: arguments that do not fit.
        """
        return examine(self, activations, queries, own, threads, encoder)

    def compact(self) -> None:
        """Merge everything into one segment and drop what was deleted: the fastest to search."""
        with self._changing() as state:
            self._state = changes.compact(self._settings, self._folder, state)

    def recode(
        self,
        codes_of: Callable[[NDArray[np.float32]], NDArray[np.int32]],
        encoder: str | None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Give every item a new code, in one step: that of a hash network trained further, say.

        Ids, embeddings and payloads stay; what was deleted is dropped, as by :meth:`compact`.
        Searches go on meanwhile among the old codes. If it fails or is killed, the table is as it
        was. Readers take the new codes, and the encoder with them, when they :meth:`refresh`. On
        disk the table needs its space twice until it is done.

        Args:
            codes_of: makes codes [n, k], as :meth:`add` takes them, of stored embeddings
                [n, dim] float32, a block of them at a time. It may search the table, not change it.
            encoder: the fingerprint of the encoder that the codes come from; None for none.
            notes: what to note in the same step, as in :meth:`add`.

        Raises:
            InputError: codes, encoder or notes do not fit, or ``codes_of`` changed the table.
            DamagedFileError: an embedding, id or payload is damaged.
            StorageError: the files could not be written.
        """
        replace(self._settings, encoder=encoder).check()
        with self._changing() as state:
            known = self._known_notes
            # Other buckets need another calibration.
            changed = arguments.changed_notes(
                known, {RECALL_NOTE: None, CHANGES: None, **(notes or {})}
            )

            def codes(embeddings: NDArray[np.float32]) -> NDArray[np.int32]:
                found = codes_of(embeddings)
                if self._state is not state or self._known_notes is not known:
                    raise InputError(
                        "codes_of changed or closed the table that is given new codes; the codes "
                        "are as they were. Change it before or after"
                    )
                return found

            after = changes.recode(self._settings, self._folder, state, codes, encoder, changed)
            self._take(after)
            if changed is not None:
                self._memory_notes = changed

    def notes(self) -> dict[str, Any]:
        """What was noted about this state of the table: values of JSON, by their names."""
        self._open_state()
        return copy.deepcopy(self._known_notes)

    def note(self, name: str, value: Any) -> None:
        """Note something about the table, durably; it stays until it is changed.

        Args:
            name: of the note; an earlier one of this name is replaced.
            value: what JSON can hold, up to 64 KiB; None removes the note.

        Raises:
            InputError: it is something else, or too large.
            StorageError: it could not be written; the notes are as they were.
        """
        with self._changing() as state:
            changed = arguments.changed_notes(self._known_notes, {name: value})
            if changed is not None:
                self._store_notes(state, changed)

    def adopt(self, folders: Sequence[Path], notes: Mapping[str, Any] | None = None) -> int:
        """Take over the segments of other tables, in one step; later ones replace earlier ids.

        The table is on disk, opened to be changed. What it has under the same ids is replaced.

        Args:
            folders: of tables with the same settings; they stay as they are. Files are copied only
                where the file system has no links.
            notes: what to note in the same step, as in :meth:`add`.

        Returns:
            How many items were taken over, those that later ones replace not counted.

        Raises:
            InputError: a table has other settings.
            StorageError: the files could not be taken over; the table is as it was.
        """
        with self._changing() as state:
            if self._folder is None:
                raise InputError(
                    "a table in memory has no folder to take files into; create it on disk"
                )
            counted = {}
            if RECALL_NOTE in self._known_notes:
                files = [file for path in folders for file in read_manifest(path).segments]
                rows = sum(file.rows for file in files)
                counted = counted_changes(self._known_notes, rows)
            changed = arguments.changed_notes(self._known_notes, {**(notes or {}), **counted})
            self._state, count = changes.adopt(
                self._settings, self._folder, state, folders, changed
            )
        return count

    def merge_segments(self) -> None:
        """Merge segments where many of like size have gathered, as ``add`` does."""
        with self._changing() as state:
            self._state = changes.tidy(self._settings, self._folder, state)

    def stats(self) -> Stats:
        """Loads of buckets, measured and expected SUF, bytes; measured anew when it changed."""
        state, kept = self._open_state(), self._stats
        if kept is None or kept[0]() is not state:
            kept = self._stats = (weakref.ref(state), table_stats(self._settings, state))
        return kept[1]

    def check(self) -> list[str]:
        """Read everything and compare it with its checksums; a line for each fault found."""
        return state_faults(self._settings, self._open_state())

    def bucket(self, bucket: int) -> NDArray[Any]:
        """The ids of the items in a bucket."""
        number = plain_integer(bucket)
        if type(number) is not int or not 0 <= number < self.buckets:
            raise InputError(
                f"bucket is {bucket!r}; expected a whole number from 0 to {self.buckets - 1}"
            )
        found = [segment.ids_at(rows) for segment, rows in self._bucket_rows(number)]
        return np.concatenate([no_ids(self._settings.ids), *found])

    def buckets_of(self, item: int | str) -> NDArray[np.int32]:
        """The buckets of an item, ascending [1 to k]; KeyError if there is no such item."""
        return _code_at(*self._locate(item))

    def batches(self, size: int = 8192, payloads: bool = True) -> Iterator[Stored]:
        """All items of one state, some at a time: to copy a table, or to carry it elsewhere.

        Args:
            size: items of a batch, at the most.
            payloads: whether to read them too; they are None otherwise.
        """
        if size < 1:
            raise InputError(f"size is {size}; expected one or more items")
        for part in self._open_state().parts:
            rows = part.live_rows()
            for start in range(0, len(rows), size):
                yield _stored_at(part.segment, rows[start : start + size], payloads)

    def stored_between(self, first: int, last: int) -> Iterator[Stored]:
        """The items at places ``first`` to ``last``, a piece for each segment; without payloads.

        Places count through all segments in the order in which they are stored. Inside a segment
        items lie in the order of their codes, so that neighbours share buckets.
        """
        for part in self._open_state().parts:
            low, high = max(0, first), min(part.live, last)
            if low < high:
                rows = part.live_rows()[low:high] if len(part.alive) else np.arange(low, high)
                yield _stored_at(part.segment, rows, payloads=False)
            first, last = first - part.live, last - part.live

    # Of the methods with ``lost``: what is drawn and cannot be read is told to it and left out;
    # without it, the first such item raises DamagedFileError.

    def sample(self, count: int, seed: int, lost: Lost | None = None) -> tuple[int, list[Item]]:
        """How many items there are, and a random sample of them; the same for the same seed."""
        state = self._open_state()
        pieces: list[Piece] = [
            (part.segment, part.live_rows() if len(part.alive) else range(part.live))
            for part in state.parts
        ]
        return state.live, _read(_drawn(pieces, count, seed), _item_at, lost)

    def bucket_items(
        self, bucket: int, count: int, seed: int, lost: Lost | None = None
    ) -> list[Item]:
        """A random sample of the items in a bucket."""
        return _read(_drawn(self._bucket_rows(bucket), count, seed), _item_at, lost)

    def bucket_payloads(
        self, bucket: int, count: int, seed: int, lost: Lost | None = None
    ) -> tuple[int, list[dict[str, Any] | None]]:
        """How many items a bucket holds, and the payloads of a random sample of them."""
        rows = self._bucket_rows(bucket)
        load = sum(len(part) for _, part in rows)
        return load, _read(_drawn(rows, count, seed), Segment.payload_at, lost)

    def bucket_loads(self) -> NDArray[np.int64]:
        """How many items each bucket holds [d]."""
        state = self._open_state()
        return bucket_sizes(self._settings, state, [part.alive for part in state.parts])

    def codes_of(self, ids: list[Any]) -> list[list[int] | None]:
        """The buckets of each item; None for those that are not there (any more)."""
        state = self._open_state()
        parts, rows = state.locate(read_ids(ids, self.id_kind))
        places = (parts << ROW_BITS) | rows  # -1 where both are
        codes = buckets_at(state, places, self.active)
        return [code[code >= 0].tolist() if code[0] >= 0 else None for code in codes]

    def embeddings_of(self, ids: ArrayLike) -> NDArray[np.float32]:
        """The embeddings of items, as stored [n, dim]; KeyError where one is not there."""
        state, wanted = self._open_state(), read_ids(ids, self.id_kind)
        parts, rows = state.locate(wanted)
        if len(parts) and parts.min() < 0:
            raise KeyError(wanted[int(np.argmin(parts))])
        found = np.empty((len(rows), self.dim), np.float32)
        for place, (part, row) in enumerate(zip(parts.tolist(), rows.tolist(), strict=True)):
            found[place] = state.parts[part].segment.embedding_at(row)
        return found

    def refresh(self) -> bool:
        """See what a writer has committed since this table was opened; whether that was anything.

        Searches that are running keep the state they started with. Where all items have new codes
        (:meth:`recode`), their encoder is the table's from then on.
        """
        with self._writing:
            state = self._open_state()
            if self._folder is None or self._folder.writable:
                return False
            newer = self._folder.refresh(state)
            if newer is not None:
                self._take(newer)
            return newer is not None

    def close(self) -> None:
        """Let go of files and lock; closing twice is fine."""
        with self._writing:
            self._state = None
            self._searcher = None
            if self._folder is not None:
                self._folder.close()

    def __delitem__(self, item: int | str) -> None:
        self._locate(item)  # KeyError for what is not there, of any kind
        if not self.delete([item]):
            raise KeyError(item)  # somebody else deleted it meanwhile

    def __enter__(self) -> HashTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def __len__(self) -> int:
        return self._open_state().live

    def __contains__(self, item: object) -> bool:
        try:
            self._locate(item)
        except KeyError:
            return False
        return True

    def __getitem__(self, item: int | str) -> Item:
        return _item_at(*self._locate(item))

    def __iter__(self) -> Iterator[int | str]:
        for part in self._open_state().parts:
            yield from part.segment.ids_at(part.live_rows()).tolist()

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else f"at {self.path}"
        if self._state is None:
            return f"<HashTable {where}, closed>"
        settings = self._settings
        return (
            f"<HashTable {where}: {self._state.live} items, buckets={settings.buckets}, "
            f"dim={settings.dim}, active={settings.active}, metric={settings.metric!r}>"
        )

    def _search(
        self, state: TableState, ordered_buckets: ArrayLike, queries: ArrayLike, top: int,
        probe: Any, at_least: int | None, where: Any, threads: int | None,
    ) -> tuple[Hits, NDArray[np.int64]]:  # fmt: skip
        """Hits in a state without their payloads, and their places in it."""
        settings = self._settings
        order, asked = arguments.read_queries(settings, ordered_buckets, queries)
        probe = arguments.read_probe(probe, settings.active, len(asked))
        top = plain_integer(top)
        arguments.check_search(settings.buckets, order, top, probe, at_least, threads)
        found = self._searcher_of(state, where).search(order, asked, top, probe, at_least, threads)
        ids = found.keys
        if settings.ids == STRING:
            ids = names_at(state, found.places)
        hits = Hits(ids, found.distances, found.counts, found.scanned, found.opened)
        return hits, found.places

    def _opened_for(
        self, state: TableState, activations: ArrayLike, recall: float, top: int,
        at_least: int | None, threads: int | None,
    ) -> tuple[NDArray[np.int32], int | NDArray[np.int32], int | None]:  # fmt: skip
        """The buckets of each query in order, and how many of them a recall takes: ``probe``.

        And ``at_least``, or None where those hold so many items already: then no others follow.
        """
        if self.buckets == 1:
            return *only_bucket(activations, 1), at_least
        found, searcher = required_calibration(self.calibration), self._searcher_of(state, None)
        made = read_activations(activations, self.buckets)
        how = (made, searcher.shares, found.temperature, found.threshold(recall, top))
        order, opened = open_by_share(*how, threads=threads)
        if at_least is None or holds_enough(
            searcher.loads, order, opened, self.active, whole_number("at_least", at_least, 1)
        ):
            # One number for one query: what is read of it is read quickly.
            return order, int(opened[0]) if len(opened) == 1 else opened, None
        return *open_by_share(*how, everything=True, threads=threads), at_least

    @property
    def _known_notes(self) -> dict[str, Any]:
        return self._memory_notes if self._folder is None else self._folder.manifest.notes

    def _store_notes(self, state: TableState, notes: dict[str, Any]) -> None:
        if self._folder is None:
            self._memory_notes = notes
        else:
            changes.store(self._folder, state, state, notes)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[TableState]:
        """The state to change, while nobody else changes it."""
        with self._writing:
            state = self._open_state()
            folder = self._folder
            if folder is None:
                yield state
                self._searcher = None
                return
            if folder.writer is not None and not folder.writable:
                raise LockedTableError(
                    f"{self.path} was opened to be changed by process {folder.writer}; this is "
                    f"process {os.getpid()}, forked from it, and a table has one writer. Change it "
                    "there, or close it there and open it here, after the fork; searching it here "
                    "is fine"
                )
            if not folder.writable:
                raise StorageError(
                    f"{self.path} was opened to be searched only; use HashTable.open(path, "
                    'mode="r+") to change it'
                )
            generation = folder.manifest.generation
            try:
                yield state
                self._searcher = None  # which would keep the old state in memory
            except BaseException:
                # Interrupted after the change was committed: go on from what is on disk.
                if folder.manifest.generation != generation:
                    self._take(folder.load(self._state))
                raise

    def _take(self, state: TableState) -> None:
        """Go on with a state whose encoder may be another one."""
        self._state = state
        self._settings = replace(self._settings, encoder=state.encoder)

    def _after_fork(self) -> None:
        """In a process that was just forked: hold nobody up, and be held up by nobody."""
        self._writing = threading.RLock()  # the thread that may have held it is not in this process
        folder, state = self._folder, self._state
        if state is not None:
            self._take(state)
        if folder is None:
            return
        folder.close()
        # Forked in the middle of a commit, or of a refresh, it has the new manifest and the old
        # state, and would never look again: let it know a generation that there is not.
        manifest = folder.manifest
        if state and (
            tuple(part.file for part in state.parts) != manifest.segments
            or state.encoder != manifest.settings.encoder
        ):
            folder.manifest = replace(manifest, generation=-1)

    def _searcher_of(self, state: TableState, where: Any) -> Searcher:
        """What searches a state; kept, because single queries would notice its making."""
        kept = self._searcher
        if where is None and kept is not None and kept.state is state:
            return kept
        allowed = [part.alive for part in state.parts]
        if where is not None:
            allowed = arguments.allowed_rows(self._settings, state, where)
        searcher = Searcher(self._settings, state, allowed)
        if where is None and self._state is state:
            self._searcher = searcher
        return searcher

    def _open_state(self) -> TableState:
        state = self._state
        if state is None:
            again = "" if self._folder is None else "; open it again with HashTable.open"
            raise StorageError(f"this table is closed{again}")
        return state

    def _locate(self, item: Any) -> tuple[Segment, int]:
        """The segment and row of one id; KeyError if there is none."""
        state = self._open_state()
        try:
            wanted = read_ids([item], self._settings.ids)
        except InputError:
            raise KeyError(item) from None
        parts, rows = state.locate(wanted)
        if parts[0] < 0:
            raise KeyError(item)
        return state.parts[int(parts[0])].segment, int(rows[0])

    def _bucket_rows(self, bucket: int) -> list[tuple[Segment, NDArray[np.int64]]]:
        found = []
        for part in self._open_state().parts:
            rows = part.segment.bucket_rows(bucket)
            found.append((part.segment, rows[part.alive[rows] == 1] if len(part.alive) else rows))
        return found


def search_state(
    table: HashTable, state: TableState, ordered_buckets: ArrayLike, queries: ArrayLike, top: int,
    *, probe: int | ArrayLike | None, at_least: int | None, threads: int | None,
) -> tuple[Hits, NDArray[np.int64]]:  # fmt: skip
    """:meth:`HashTable.search` in one state, of any moment, so that more can be read there.

    Returns:
        The hits, and the place of each in the state, -1 where there is none [q, top].
    """
    return table._search(state, ordered_buckets, queries, top, probe, at_least, None, threads)


def opened_in_state(
    table: HashTable, state: TableState, activations: ArrayLike, recall: float, top: int,
    at_least: int | None, threads: int | None = None,
) -> tuple[NDArray[np.int32], int | NDArray[np.int32], int | None]:  # fmt: skip
    """The buckets of each query in order, how many of them a recall takes, in one state.

    And ``at_least``, or None where those hold as many items. It does not warn where the calibration
    is old.
    """
    return table._opened_for(state, activations, recall, top, at_least, threads)


_tables: weakref.WeakSet[HashTable] = weakref.WeakSet()


def _after_fork() -> None:
    for table in list(_tables):
        table._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def state_of(table: HashTable) -> TableState:
    """The state of the moment; it never changes."""
    return table._open_state()


def _drawn(pieces: Sequence[Piece], count: int, seed: int) -> list[tuple[Segment, int]]:
    """A random sample of rows, in their order."""
    ends = np.cumsum([len(rows) for _, rows in pieces])
    wanted = draw_sample(int(ends[-1]) if len(ends) else 0, count, seed)
    numbers = np.searchsorted(ends, wanted, side="right")
    found = []
    for place, number in zip(wanted.tolist(), numbers.tolist(), strict=True):
        segment, rows = pieces[number]
        found.append((segment, int(rows[place - (int(ends[number]) - len(rows))])))
    return found


def _read(
    drawn: list[tuple[Segment, int]], read: Callable[[Segment, int], Read], lost: Lost | None
) -> list[Read]:
    """What ``read`` gives for each row; rows that are damaged are told to ``lost``, if given."""
    found = []
    for segment, row in drawn:
        try:
            one = read(segment, row)
        except DamagedFileError as error:
            if lost is None:
                raise
            lost(_item_without_payload(segment, row), error)
            continue
        found.append(one)
    return found


def _item_without_payload(segment: Segment, row: int) -> int | str | None:
    """The id of a row that cannot be read, if its payload is all that is damaged."""
    try:
        segment.codes_at(np.array([row]))
        segment.embedding_at(row)
        return segment.id_at(row)
    except DamagedFileError:
        return None


def _code_at(segment: Segment, row: int) -> NDArray[np.int32]:
    code: NDArray[np.int32] = segment.codes_at(np.array([row]))[0]
    return code[code >= 0]


def _item_at(segment: Segment, row: int) -> Item:
    code = _code_at(segment, row)
    return Item(segment.id_at(row), code, segment.embedding_at(row), segment.payload_at(row))


def _stored_at(segment: Segment, rows: NDArray[np.int64], payloads: bool) -> Stored:
    """Rows of a segment, ascending."""
    first, last = int(rows[0]), int(rows[-1]) + 1
    return Stored(
        segment.ids_at(rows),
        segment.codes_at(rows),
        segment.sound_embeddings(first, last)[rows - first],
        [segment.payload_at(row) if payloads else None for row in rows.tolist()],
    )


def names_at(state: TableState, places: NDArray[np.int64]) -> NDArray[Any]:
    """The strings at places [q, top], None where there is no hit."""
    names = np.full(places.shape, None, object)
    for index, place in np.ndenumerate(places):
        if place >= 0:
            part, row = split_place(int(place))
            names[index] = state.parts[part].segment.id_at(row)
    return names


def buckets_at(state: TableState, places: NDArray[np.int64], active: int) -> NDArray[np.int32]:
    """The buckets of the items at places [...] -> [..., k]; -1 where there is none (any more)."""
    found = np.full((*places.shape, active), -1, np.int32)
    parts = np.where(places < 0, -1, places >> ROW_BITS)
    for number in set(parts.ravel().tolist()) - {-1}:
        there = parts == number
        found[there] = state.parts[number].segment.codes_at(places[there] & ROW_MASK)
    return found


def payloads_at(state: TableState, places: NDArray[np.int64]) -> list[list[dict[str, Any] | None]]:
    """The payloads at places, a list for each query, as long as it has hits."""
    found = []
    for line in places.tolist():
        hits = [split_place(place) for place in line if place >= 0]
        found.append([state.parts[part].segment.payload_at(row) for part, row in hits])
    return found
