"""The rows of a hash table in the order of the server's primary key: by bucket, then by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.engines.postgres.copy_rows import Rows, chosen_texts
from flowhash.table import NO_STRINGS, STRING, HashTable, Strings, state_of

ROWS, BYTES = 1 << 15, 1 << 24  # of what is handled together, at the most


class RowStream:
    """A state of a table as a sequence of rows, read some at a time.

    Args:
        table: open; what is added later is not seen.
        first_id: added to ids that are numbers.

    Attributes:
        starts: the first row of each bucket, and the number of all rows [d + 1].
        largest: no embedding is longer.
        at_once: rows that are handled together: few where they are large.
    """

    def __init__(self, table: HashTable, first_id: int = 0) -> None:
        self._state = state_of(table)
        self._first_id = first_id
        self._strings = table.id_kind == STRING
        self._halves = table.dtype == "float16"
        self._kept: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None
        self.starts = np.zeros(table.buckets + 1, np.int64)
        np.cumsum(table.bucket_loads(), out=self.starts[1:])
        self.largest = self._state.largest
        texts = sum(
            len(part.segment.names.content) + len(part.segment.payloads.content)
            for part in self._state.parts
        )
        stored = max(1, sum(part.segment.rows for part in self._state.parts))
        self.at_once = max(1, min(ROWS, BYTES // (4 * table.dim + 64 + texts // stored)))

    def has_zeros(self) -> bool:
        """Whether an id has a zero character, which PostgreSQL cannot store."""
        return any(bool((part.segment.names.content == 0).any()) for part in self._state.parts)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def pieces(self, start: int, most: int, apart: bool) -> list[tuple[int, int]]:
        """Ranges of rows from ``start`` on, of at most ``most`` rows.

        A range never ends inside a bucket unless it began there, so that (bucket, id) tells where
        it ends; ``apart`` keeps every bucket in ranges of its own.
        """
        found = []
        ends = self.starts[1:]
        while start < len(self):
            bucket = int(np.searchsorted(ends, start, side="right"))
            stop = int(ends[bucket])
            if stop - start > most:
                stop = start + most
            elif not apart:
                last = int(np.searchsorted(ends, start + most, side="right")) - 1
                stop = int(ends[max(last, bucket)])
            found.append((start, stop))
            start = stop
        return found

    def buckets_of(self, start: int, stop: int) -> tuple[int, int]:
        """The first and the last bucket of a range of rows."""
        first, last = np.searchsorted(self.starts[1:], [start, stop - 1], side="right").tolist()
        return first, last

    def rows(self, start: int, stop: int) -> Rows:
        """The rows of a range."""
        buckets, parts, rows = [], [], []
        first, last = self.buckets_of(start, stop)
        for bucket in range(first, last + 1):
            numbers, places = self._bucket(bucket)
            begin = int(self.starts[bucket])
            some = slice(max(0, start - begin), max(0, stop - begin))
            parts.append(numbers[some])
            rows.append(places[some])
            buckets.append(np.full(len(rows[-1]), bucket, np.int32))
        return self._gathered(np.concatenate(buckets), np.concatenate(parts), np.concatenate(rows))

    def _bucket(self, bucket: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The parts and rows of a bucket's items, in the order of their ids."""
        if self._kept is not None and self._kept[0] == bucket:
            return self._kept[1:]
        numbers, places, ids = [], [], []
        for number, part in enumerate(self._state.parts):
            rows = part.segment.bucket_rows(bucket)
            rows = rows[part.alive[rows] == 1] if len(part.alive) else rows
            numbers.append(np.full(len(rows), number, np.int64))
            places.append(rows)
            ids.append(part.segment.ids_at(rows))
        # Strings of Python sort as their bytes do, which is the server's order too.
        order = np.argsort(np.concatenate(ids), kind="stable")
        self._kept = (bucket, np.concatenate(numbers)[order], np.concatenate(places)[order])
        return self._kept[1:]

    def _gathered(
        self, buckets: NDArray[np.int32], numbers: NDArray[np.int64], places: NDArray[np.int64]
    ) -> Rows:
        """Rows of several segments as one."""
        turn, found = [], []
        for number, part in enumerate(self._state.parts):
            mine = np.flatnonzero(numbers == number)
            if len(mine):
                turn.append(mine)
                found.append(_of_segment(part.segment, places[mine]))
        codes, keys, names, payloads, embeddings = zip(*found, strict=True)
        counts = [len(mine) for mine in turn]
        back = np.argsort(np.concatenate(turn))
        joined = [np.concatenate(arrays) for arrays in (codes, keys, embeddings)]
        if len(found) > 1:
            joined = [array[back] for array in joined]
        return Rows(
            buckets,
            joined[0],
            joined[1] if self._strings else joined[1] + self._first_id,
            _one(names, counts, back),
            _one(payloads, counts, back),
            joined[2],
            self._halves,
        )


def _of_segment(segment: Any, rows: NDArray[np.int64]) -> tuple[Any, Any, Strings, Strings, Any]:
    segment.ensure("ids", "names", "name_offsets", "payloads", "payload_offsets")
    return (
        segment.codes_at(rows),
        segment.arrays.ids[rows],
        chosen_texts(segment.names, rows),
        chosen_texts(segment.payloads, rows),
        _in_any_order(segment, rows),
    )


def _in_any_order(segment: Any, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Embeddings; neighbouring rows are read as one, and then put in order."""
    low, high = int(rows.min()), int(rows.max()) + 1
    if high - low <= 2 * len(rows):
        near: NDArray[np.float32] = segment.sound_embeddings(low, high)[rows - low]
        return near
    far: NDArray[np.float32] = segment.sound_embeddings_at(rows)
    return far


def _one(texts: Sequence[Strings], counts: Sequence[int], back: NDArray[np.int64]) -> Strings:
    """Texts of several segments in the order ``back``; a segment without any has empty ones."""
    if not any(len(part.offsets) for part in texts):
        return NO_STRINGS
    if len(texts) == 1:
        return texts[0]
    lengths = [
        np.diff(part.offsets) if len(part.offsets) else np.zeros(count, np.int64)
        for part, count in zip(texts, counts, strict=True)
    ]
    offsets = np.zeros(len(back) + 1, np.int64)
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    content = np.concatenate([part.content for part in texts])
    return chosen_texts(Strings(content, offsets), back)
