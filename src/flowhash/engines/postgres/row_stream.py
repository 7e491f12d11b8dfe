"""``RowStream``: the rows of a hash table as PostgreSQL reads them, by bucket, then by id.

That is the order of the server's primary key. The bytes of a row are written by compiled loops,
once as ``COPY ... (FORMAT binary)`` reads them, and once without lengths, as the server's own
functions give them, for checksums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from flowhash.compile import kernel
from flowhash.engines.postgres.connection_pool import Connection
from flowhash.engines.postgres.schema import COLUMNS, Names
from flowhash.table import NO_STRINGS, STRING, HashTable, Segment, Strings, state_of

ROWS, BYTES = 1 << 15, 1 << 24  # of what is handled together, at the most
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
FIELDS = 5
INTEGER = 23  # the server's number for the type integer


class RowStream:
    """A state of a table as a sequence of rows, read some at a time.

    Args:
        table: open; what is added later is not seen.
        first_id: added to ids that are numbers.

    Attributes:
        starts: the first row of each bucket, and the number of all rows [d + 1].
        largest: no embedding is longer.
        has_short_codes: whether an item may be in fewer than k buckets.
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
        self.has_short_codes = self._state.has_short_codes
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

    def rows(self, start: int, stop: int) -> CopyRows:
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
    ) -> CopyRows:
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
        with np.errstate(over="ignore"):
            vectors = np.ascontiguousarray(joined[2], ">f2" if self._halves else ">f4")
        return CopyRows(
            buckets,
            joined[0],
            joined[1] if self._strings else joined[1] + self._first_id,
            _one(names, counts, back),
            _one(payloads, counts, back),
            vectors.view(np.uint8),
            vectors.shape[1],
        )


def _of_segment(segment: Segment, rows: NDArray[np.int64]) -> tuple[Any, ...]:
    segment.ensure("ids", "names", "name_offsets", "payloads", "payload_offsets")
    return (
        segment.codes_at(rows),
        segment.arrays.ids[rows],
        _chosen_texts(segment.names, rows),
        _chosen_texts(segment.payloads, rows),
        _in_any_order(segment, rows),
    )


def _in_any_order(segment: Segment, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Embeddings; neighbouring rows are read as one, and then put in order."""
    low, high = int(rows.min()), int(rows.max()) + 1
    if high - low <= 2 * len(rows):
        return segment.sound_embeddings(low, high)[rows - low]
    return segment.sound_embeddings_at(rows)


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
    return _chosen_texts(Strings(content, offsets), back)


def copy_rows(connection: Connection, names: Names, groups: Iterable[NDArray[np.uint8]]) -> None:
    """Send rows, in groups of their bytes, to the server."""
    command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        names.table, sql.SQL(COLUMNS)
    )
    with connection.cursor() as cursor, cursor.copy(command) as stream:
        stream.write(HEADER)
        for group in groups:
            stream.write(group.data)
        stream.write(TRAILER)


class CopyRows(NamedTuple):
    """Rows of one table, in their order.

    Attributes:
        buckets: of each row [m] int32.
        codes: all buckets of its item, ascending, then -1 [m, k] int32.
        keys: ids that are numbers [m] int64; hashes otherwise.
        names: ids that are strings; empty otherwise.
        payloads: JSON texts, empty for none; without offsets if no row has any.
        vectors: embeddings, as the server keeps their numbers [m, bytes] uint8.
        dim: how many numbers those are.
    """

    buckets: NDArray[np.int32]
    codes: NDArray[np.int32]
    keys: NDArray[np.int64]
    names: Strings
    payloads: Strings
    vectors: NDArray[np.uint8]
    dim: int

    def copied(self) -> NDArray[np.uint8]:
        """The rows as ``COPY`` reads them."""
        return self._bytes(True)

    def digest(self) -> str:
        """A checksum that the server can compute too, from what it has stored."""
        return hashlib.sha256(self._bytes(False).data).hexdigest()

    def _bytes(self, framed: bool) -> NDArray[np.uint8]:
        count, active = self.codes.shape
        size = 4 + 4 + self.vectors.shape[1] + (2 + 4 * FIELDS if framed else 0)
        if active > 1:
            size += 20 + 8 * (active - 1)
        if not len(self.names.offsets):
            size += 8  # the id, a number
        texts = len(self.names.content) + len(self.payloads.content)
        out = np.empty(count * size + texts, np.uint8)
        return out[: _fill(self, framed, out)]


@kernel
def _put(out: NDArray[np.uint8], at: int, value: int, size: int) -> int:
    """Write a number, its highest byte first; where the next one goes."""
    for byte in range(size):
        out[at + byte] = (value >> (8 * (size - 1 - byte))) & 0xFF
    return at + size


@kernel
def _put_text(out: NDArray[np.uint8], at: int, texts: Strings, row: int) -> int:
    """Write a text."""
    for position in range(texts.offsets[row], texts.offsets[row + 1]):
        out[at] = texts.content[position]
        at += 1
    return at


@kernel
def _fill(rows: CopyRows, framed: bool, out: NDArray[np.uint8]) -> int:
    """Write all rows; how many bytes they take."""
    active = rows.codes.shape[1]
    width = rows.vectors.shape[1]
    at = 0
    for row in range(rows.buckets.shape[0]):
        if framed:
            at = _put(out, at, FIELDS, 2)
            at = _put(out, at, 4, 4)
        at = _put(out, at, rows.buckets[row], 4)
        if rows.names.offsets.shape[0] > 0:
            if framed:
                at = _put(out, at, rows.names.offsets[row + 1] - rows.names.offsets[row], 4)
            at = _put_text(out, at, rows.names, row)
        else:
            if framed:
                at = _put(out, at, 8, 4)
            at = _put(out, at, rows.keys[row], 8)
        if active > 1:
            others = -1
            for column in range(active):
                others += rows.codes[row, column] >= 0
            if framed:
                at = _put(out, at, 20 + 8 * others if others else 12, 4)
            for word in (min(others, 1), 0, INTEGER):  # an array of one dimension, or of none
                at = _put(out, at, word, 4)
            if others:
                at = _put(out, at, others, 4)
                at = _put(out, at, 1, 4)  # counted from 1
            for column in range(active):
                bucket = rows.codes[row, column]
                if bucket >= 0 and bucket != rows.buckets[row]:
                    at = _put(out, at, 4, 4)
                    at = _put(out, at, bucket, 4)
        elif framed:
            at = _put(out, at, -1, 4)
        size = 0
        if rows.payloads.offsets.shape[0] > 0:
            size = rows.payloads.offsets[row + 1] - rows.payloads.offsets[row]
        if framed:
            at = _put(out, at, size if size > 0 else -1, 4)
        if size > 0:
            at = _put_text(out, at, rows.payloads, row)
        if framed:
            at = _put(out, at, 4 + width, 4)
        at = _put(out, at, rows.dim, 2)
        at = _put(out, at, 0, 2)
        for column in range(width):
            out[at + column] = rows.vectors[row, column]
        at += width
    return at


def _chosen_texts(texts: Strings, rows: NDArray[np.int64]) -> Strings:
    """The texts of some rows, one after the other."""
    if not len(texts.offsets):
        return NO_STRINGS
    return Strings(*_gather(texts.content, texts.offsets, rows))


@kernel
def _gather(
    content: NDArray[np.uint8], offsets: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Copy texts in the order of ``rows``."""
    ends = np.zeros(rows.shape[0] + 1, np.int64)
    for place in range(rows.shape[0]):
        ends[place + 1] = ends[place] + offsets[rows[place] + 1] - offsets[rows[place]]
    out = np.empty(ends[-1], np.uint8)
    for place in range(rows.shape[0]):
        start = offsets[rows[place]]
        for position in range(ends[place + 1] - ends[place]):
            out[ends[place] + position] = content[start + position]
    return out, ends
