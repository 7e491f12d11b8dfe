"""A table as one looks at it: its settings, its items, its figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import InputError, StorageError
from flowhash.table import answers, arguments
from flowhash.table.check import state_faults
from flowhash.table.described import Described
from flowhash.table.folder import Folder
from flowhash.table.hits import Item, Stored
from flowhash.table.ids import read_ids
from flowhash.table.manifest import Settings
from flowhash.table.state import State
from flowhash.table.stats import Stats, table_stats


class TableView(Described):
    """The part of a table that reads: every method works on one state, whole."""

    def __init__(self, settings: Settings, folder: Folder | None, state: State) -> None:
        super().__init__(settings)
        self._folder = folder
        self._state: State | None = state

    @property
    def path(self) -> Path | None:
        """The folder, or None in memory."""
        return None if self._folder is None else self._folder.path

    @property
    def writable(self) -> bool:
        """Whether the table can be changed through this object."""
        return self._state is not None and (self._folder is None or self._folder.writable)

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

    def stats(self) -> Stats:
        """Loads of buckets, measured and expected SUF, bytes."""
        return table_stats(self._settings, self._open_state())

    def check(self) -> list[str]:
        """Read everything and compare it with its checksums; a line for each fault found."""
        return state_faults(self._settings, self._open_state())

    def bucket(self, bucket: int) -> NDArray[Any]:
        """The ids of the items in a bucket."""
        number = arguments.whole_number(bucket)
        if type(number) is not int or not 0 <= number < self.buckets:
            raise InputError(
                f"bucket is {bucket!r}; expected a whole number from 0 to {self.buckets - 1}"
            )
        found = []
        for part in self._open_state().parts:
            rows = part.segment.bucket_rows(number)
            alive = part.alive[rows] == 1 if len(part.alive) else slice(None)
            found.append(part.segment.ids_at(rows[alive]))
        return np.concatenate([answers.no_ids(self._settings.ids), *found])

    def buckets_of(self, item: int | str) -> NDArray[np.int32]:
        """The code of an item, ascending [k]; KeyError if there is no such item."""
        state = self._open_state()
        part, row = self._locate(state, item)
        code: NDArray[np.int32] = state.parts[part].segment.codes_at(np.array([row]))[0]
        return code

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
                chosen = rows[start : start + size]
                first, last = int(chosen[0]), int(chosen[-1]) + 1
                segment = part.segment
                texts = [segment.payload_at(row) if payloads else None for row in chosen.tolist()]
                yield Stored(
                    segment.ids_at(chosen),
                    segment.codes_at(chosen),
                    segment.sound_embeddings(first, last)[chosen - first],
                    texts,
                )

    def __len__(self) -> int:
        return self._open_state().live

    def __contains__(self, item: object) -> bool:
        try:
            self._locate(self._open_state(), item)
        except KeyError:
            return False
        return True

    def __getitem__(self, item: int | str) -> Item:
        state = self._open_state()
        part, row = self._locate(state, item)
        segment = state.parts[part].segment
        code = segment.codes_at(np.array([row]))[0]
        return Item(segment.id_at(row), code, segment.embedding_at(row), segment.payload_at(row))

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

    def _open_state(self) -> State:
        state = self._state
        if state is None:
            again = "" if self._folder is None else "; open it again with HashTable.open"
            raise StorageError(f"this table is closed{again}")
        return state

    def _locate(self, state: State, item: Any) -> tuple[int, int]:
        """The part and row of one id."""
        try:
            wanted = read_ids([item], self._settings.ids)
        except InputError:
            raise KeyError(item) from None
        parts, rows = state.locate(wanted)
        if parts[0] < 0:
            raise KeyError(item)
        return int(parts[0]), int(rows[0])
