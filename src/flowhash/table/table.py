"""The hash table: what users hold in their hands."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.errors import InputError, LockedTableError, StorageError
from flowhash.table import answers, arguments, change
from flowhash.table.arrays import METRICS
from flowhash.table.browse import Browsing
from flowhash.table.fingerprint import check_encoder, check_vectors
from flowhash.table.folder import Folder
from flowhash.table.hits import Hits
from flowhash.table.ids import STRING, read_ids
from flowhash.table.manifest import Settings
from flowhash.table.search import Searcher
from flowhash.table.state import State


class HashTable(Browsing):
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

    def __init__(self, settings: Settings, folder: Folder | None, state: State) -> None:
        super().__init__(settings, folder, state)
        self._writing = threading.RLock()
        self._searcher: tuple[State, Searcher] | None = None
        self._metric = METRICS[settings.metric]
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
            active: k, how many buckets an item is in.
            metric: "euclidean" (squared), "cosine" (1 - cosine) or "inner" (minus the product).
            dtype: "float32", or "float16" to store embeddings in half the space, rounded.
            ids: "int64" or "string".
            encoder: the fingerprint of the encoder that makes codes and embeddings.

        Raises:
            InputError: a setting that cannot be.
            StorageError: the folder is not empty or cannot be written.
        """
        number = arguments.whole_number
        settings = Settings(
            number(buckets), number(dim), number(active), metric, dtype, ids, encoder
        )
        settings.check()
        if path is None:
            return cls(settings, None, State())
        return cls(settings, Folder.create(Path(path), settings), State())

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
        folder = Folder(Path(path), writable=mode == "r+")
        try:
            settings = folder.manifest.settings
            check_encoder(settings.encoder, encoder, str(path))
            state = folder.load()
            if folder.writable:
                folder.remove_strays()
            return cls(settings, folder, state)
        except BaseException:
            folder.close()
            raise

    def add(
        self,
        codes: ArrayLike,
        embeddings: ArrayLike,
        ids: Any = None,
        payloads: Sequence[dict[str, Any] | None] | None = None,
        *,
        encoder: str | None = None,
    ) -> NDArray[Any]:
        """Add items; an id that the table has already is replaced, as is one given twice.

        When it returns, the items are in the table, and on disk if the table has a folder.

        Args:
            codes: the k buckets of each item [n, k], in any order.
            embeddings: [n, dim].
            ids: whole numbers, or strings in a table of those; None lets the table count.
            payloads: for each item a small dict that JSON can hold, or None.
            encoder: the fingerprint of the encoder that made codes and embeddings, compared with
                the table's. Without one on either side they are taken on trust.

        Returns:
            The ids [n].

        Raises:
            InputError: shapes, buckets, numbers, ids or encoder do not fit; nothing was added.
            StorageError: the files could not be written; nothing was added.
        """
        check_vectors(self._settings.encoder, encoder)
        items = arguments.read_items(self._settings, codes, embeddings, ids, payloads)
        with self._changing() as state:
            items = arguments.with_ids(items, state.next_id)
            if len(items.codes):
                self._state = change.add(self._settings, self._folder, state, items)
                self._state = change.tidy(self._settings, self._folder, self._state)
        return items.user_ids()

    def delete(self, ids: Any) -> int:
        """Delete items; ids that the table does not have are passed over.

        Returns:
            How many were deleted.
        """
        wanted = read_ids(ids, self._settings.ids)
        with self._changing() as state:
            parts, rows = state.locate(wanted)
            changed = state.without(parts, rows)
            gone = state.live - changed.live
            if gone:
                self._state = change.store_deleted(self._folder, state, changed)
                self._state = change.tidy(self._settings, self._folder, self._state)
        return gone

    def compact(self) -> None:
        """Merge everything into one segment and drop what was deleted: the fastest to search."""
        with self._changing() as state:
            self._state = change.compact(self._settings, self._folder, state)

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
            ordered_buckets: the buckets of each query in the order in which it opens them [q, m],
                as ``flowhash.ordered_buckets`` gives them.
            queries: their embeddings [q, dim].
            top: how many to return.
            probe: how many buckets to open; k by default.
            at_least: open further buckets, in order, until so many items are found.
            where: ids that may be found: a list or set of ids, or a boolean array that has True at
                the place of each (whole-number) id.
            threads: how many threads at the most; all cores by default.
            payloads: whether to return payloads too.
            encoder: the fingerprint of the queries' encoder, compared as in :meth:`add`.

        Raises:
            InputError: arguments that do not fit.
            DamagedFileError: the search met a damaged file.
        """
        check_vectors(self._settings.encoder, encoder)
        state = self._open_state()
        hits, places = self._search(
            state, ordered_buckets, queries, top, probe, at_least, where, threads
        )
        if payloads:
            hits.payloads = answers.payloads_at(state, places)
        return hits

    def _search(
        self, state: State, ordered_buckets: ArrayLike, queries: ArrayLike, top: int,
        probe: int | None, at_least: int | None, where: Any, threads: int | None,
    ) -> tuple[Hits, NDArray[np.int64]]:  # fmt: skip
        """Hits in a state without their payloads, and their places in it."""
        settings = self._settings
        order, asked = arguments.read_queries(settings, ordered_buckets, queries)
        probe = settings.active if probe is None else arguments.whole_number(probe)
        top = arguments.whole_number(top)
        arguments.check_search(order, top, probe, at_least, threads)
        found = self._searcher_of(state, where).search(order, asked, top, probe, at_least, threads)
        ids = found.keys
        if settings.ids == STRING:
            ids = answers.names_at(state, found.places)
        hits = Hits(ids, found.distances, found.counts, found.scanned, found.opened)
        return hits, found.places

    def refresh(self) -> bool:
        """See what a writer has committed since this table was opened; whether that was anything.

        Searches that are running keep the state they started with.
        """
        with self._writing:
            state = self._open_state()
            if self._folder is None or self._folder.writable:
                return False
            newer = self._folder.refresh(state)
            self._state = newer or state
            return newer is not None

    def close(self) -> None:
        """Let go of files and lock; closing twice is fine."""
        with self._writing:
            self._state = None
            self._searcher = None
            if self._folder is not None:
                self._folder.close()

    def __delitem__(self, item: int | str) -> None:
        self._locate(self._open_state(), item)  # KeyError for what is not there, of any kind
        if not self.delete([item]):
            raise KeyError(item)  # somebody else deleted it meanwhile

    def __enter__(self) -> HashTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[State]:
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
                    self._state = folder.load(self._state)
                raise

    def _after_fork(self) -> None:
        """In a process that was just forked: hold nobody up, and be held up by nobody."""
        self._writing = threading.RLock()  # the thread that may have held it is not in this process
        folder, state = self._folder, self._state
        if folder is None:
            return
        folder.close()
        # Forked in the middle of a commit, or of a refresh, it has the new manifest and the old
        # state, and would never look again: let it know a generation that there is not.
        if state and tuple(part.file for part in state.parts) != folder.manifest.segments:
            folder.manifest = replace(folder.manifest, generation=-1)

    def _searcher_of(self, state: State, where: Any) -> Searcher:
        """What searches a state; kept, because single queries would notice its making."""
        kept = self._searcher
        if where is None and kept is not None and kept[0] is state:
            return kept[1]
        allowed = [part.alive for part in state.parts]
        if where is not None:
            allowed = arguments.allowed_rows(self._settings, state, where)
        settings = self._settings
        searcher = Searcher(
            state.parts, allowed, self._metric, settings.active, settings.buckets,
            state.largest, state.residual,
        )  # fmt: skip
        if where is None and self._state is state:
            self._searcher = (state, searcher)
        return searcher


def search_state(
    table: HashTable, state: State, ordered_buckets: ArrayLike, queries: ArrayLike, top: int,
    *, probe: int | None, at_least: int | None, threads: int | None,
) -> tuple[Hits, NDArray[np.int64]]:  # fmt: skip
    """Search one state of a table, so that more can be read of what is found there.

    Args:
        table: whose state it is.
        state: of any moment.
        ordered_buckets: as those of :meth:`HashTable.search`, like the others [q, m].
        queries: [q, dim].
        top: how many hits.
        probe: how many buckets to open; None opens k.
        at_least: how many items to find, or None.
        threads: how many at the most, or None.

    Returns:
        The hits, and the place of each in the state, -1 where there is none [q, top].
    """
    return table._search(state, ordered_buckets, queries, top, probe, at_least, None, threads)


_tables: weakref.WeakSet[HashTable] = weakref.WeakSet()


def _after_fork() -> None:
    for table in list(_tables):
        table._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
