"""A segment: rows that never change, which of them live, and all segments as one state."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import DamagedFileError
from flowhash.table.ids import Ids, Strings, find_rows
from flowhash.table.segments.arrays import (
    BLOCK,
    BROKEN,
    LAYOUTS,
    Arrays,
    PlaneLayout,
    damaged_rows,
    first_damaged,
    least_bucket,
)


@dataclass(frozen=True)
class DeletedFile:
    """Which rows of a segment are deleted."""

    file: str
    rows: int
    size: int
    crc32: int


@dataclass(frozen=True)
class SegmentFile:
    """A segment's file, and what it takes to know it again."""

    file: str
    rows: int
    size: int
    header_crc32: int
    sums_crc32: int
    largest: float
    residual: float
    deleted: DeletedFile | None = None
    entries: int | None = None  # of all bucket lists, where some rows have fewer than k buckets
    quantised: bool = False  # whether there is a quantised plane


NO_ROWS = np.empty(0, np.uint8)


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows and what is needed to search, find and return them.

    Attributes:
        arrays: what kernels read.
        order: rows in the order of their keys [n] int32.
        names: the ids, if they are strings; otherwise empty.
        payloads: JSON texts, empty bytes for none; without offsets if no row has a payload.
        largest: the largest |x|.
        residual: the largest length of what upper halves leave out of a row.
        file: the name of its file, or "" in memory.
        spans: first and last byte of each array in the file.
        sound: arrays whose numbers were found to lead nowhere outside.
    """

    arrays: Arrays
    order: NDArray[np.int32]
    names: Strings
    payloads: Strings
    largest: float
    residual: float
    file: str = ""
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    sound: set[str] = field(default_factory=set)

    @property
    def rows(self) -> int:
        """How many rows there are, deleted ones too."""
        return len(self.arrays.ids)

    @property
    def layout(self) -> PlaneLayout:
        """How embeddings are stored."""
        return LAYOUTS["float32" if len(self.arrays.lows) else "float16"]

    @property
    def is_quantised(self) -> bool:
        """Whether it can be searched by its quantised plane."""
        return len(self.arrays.quantised) == self.rows

    def check(self, fault: int) -> None:
        """Raise what a kernel reported, if it is not -1."""
        if fault != -1:
            self.fail(fault)

    def fail(self, fault: int) -> NoReturn:
        """Raise what a kernel found damaged: a block of the file, or BROKEN."""
        if fault == BROKEN:
            raise DamagedFileError(
                f"{self.file}: a number in it leads nowhere, or a text is none; the file was not "
                "written by FlowHash as it is. Restore the table from a copy"
            )
        where = fault * BLOCK
        error = DamagedFileError(
            f"{self.file}: bytes {where} to {where + BLOCK} of its data ({self.arrays_at(fault)}) "
            "do not match their checksum; nothing was answered from them. Restore the file from a "
            "copy; `flowhash table check` lists all damage"
        )
        error.block = int(fault)
        raise error

    def arrays_at(self, block: int) -> str:
        """The names of the arrays that a block of the file belongs to."""
        first, last = block * BLOCK, (block + 1) * BLOCK
        spans = self.spans.items()
        return ", ".join(name for name, (start, stop) in spans if start < last and stop > first)

    def first_damaged(self, start: int, stop: int) -> int:
        """The first damaged block among bytes of the file, or -1."""
        arrays = self.arrays
        return first_damaged(arrays.words, arrays.sums, arrays.verified, start, stop)

    def sound_block(self, block: int) -> bool:
        """Whether a block of the file matches its checksum, now that it may have been restored."""
        return self.first_damaged(block * BLOCK, (block + 1) * BLOCK) == -1

    def ensure(self, *names: str) -> None:
        """Check whole arrays before they are read outside of the search kernels."""
        for name in names:
            self.check(self.first_damaged(*self.spans.get(name, (0, 0))))
            if self.file and name not in self.sound:
                if not self._in_range(name):
                    self.fail(BROKEN)
                self.sound.add(name)

    def _in_range(self, name: str) -> bool:
        """Whether the numbers of an array that lead to others stay inside them."""
        buckets = len(self.arrays.offsets) - 1
        limits = {
            "order": (self.order, 0, self.rows),
            "codes": (self.arrays.codes, least_bucket(self.arrays), buckets),
            "postings": (self.arrays.postings, 0, self.rows),
        }
        if name in limits:
            array, least, limit = limits[name]
            return not array.size or bool(array.min() >= least and array.max() < limit)
        texts = {"name_offsets": self.names, "payload_offsets": self.payloads}
        return name not in texts or texts_fit(texts[name])

    def find(self, ids: Ids, alive: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The live row of each id, -1 where there is none."""
        self.ensure("ids", "order", "names", "name_offsets")
        rows = np.empty(len(ids), np.int64)
        find_rows(self.arrays.ids, self.order, self.names, ids.keys, ids.names, alive, rows)
        return rows

    def id_at(self, row: int) -> int | str:
        """The id of a row."""
        if len(self.names.offsets):
            return self._text("name", self.names, row)
        self.ensure("ids")
        return int(self.arrays.ids[row])

    def ids_at(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """The ids of rows: int64, or objects of strings."""
        if not len(self.names.offsets):
            self.ensure("ids")
            return self.arrays.ids[rows]
        self.ensure("names", "name_offsets")
        return np.array([self._text("name", self.names, row) for row in rows.tolist()], object)

    def embedding_at(self, row: int) -> NDArray[np.float32]:
        """The embedding of a row as float32, a copy."""
        line: NDArray[np.float32] = self.sound_embeddings(row, row + 1)[0]
        return line

    def embeddings(self, rows: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """The embeddings of rows as float32, however they are stored, unchecked [m, dim]."""
        highs = self.arrays.highs[rows]
        if not len(self.arrays.lows):
            return highs.view(np.float16).astype(np.float32)
        lower = self.arrays.lows[rows].astype(np.uint32)
        floors = (highs - (lower >> 15)).astype(np.uint32)
        return ((floors << np.uint32(16)) | lower).view(np.float32)

    def sound_embeddings(self, start: int, stop: int) -> NDArray[np.float32]:
        """The embeddings of neighbouring rows, compared with their checksums first [m, dim]."""
        self.check(damaged_rows(self.arrays, start, stop, False))
        return self.embeddings(slice(start, stop))

    def sound_embeddings_at(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The embeddings of any rows as float32, all of the segment's compared first [m, dim]."""
        self.ensure(*self.layout.planes)
        return self.embeddings(rows)

    def codes_at(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """The codes of rows, -1 behind the last bucket of one that has fewer than k [m, k]."""
        if len(self.arrays.codes):
            self.ensure("codes")
            return self.arrays.codes[rows]
        buckets = np.searchsorted(self.arrays.offsets, rows, side="right") - 1
        return buckets.astype(np.int32)[:, None]

    def payload_at(self, row: int) -> dict[str, Any] | None:
        """The payload of a row, or None."""
        if not len(self.payloads.offsets):
            return None
        text = self._text("payload", self.payloads, row)
        if not text:
            return None
        try:
            payload = json.loads(text)
        except RecursionError as error:  # older versions took it
            raise DamagedFileError(
                f"{self.file or 'the table'}: the payload of {self.id_at(row)!r:.80} is nested too "
                "deeply to be read; add that item anew, with another payload"
            ) from error
        except ValueError:
            payload = None
        if not isinstance(payload, dict):
            self.fail(BROKEN)
        return payload

    def bucket_rows(self, bucket: int) -> NDArray[np.int64]:
        """The rows of a bucket, deleted ones too, ascending."""
        start, stop = self.arrays.offsets[bucket], self.arrays.offsets[bucket + 1]
        if not len(self.arrays.postings):
            return np.arange(start, stop)
        self.ensure("postings")
        return self.arrays.postings[start:stop].astype(np.int64)

    def bytes(self) -> int:
        """What the arrays take, in memory or in the file."""
        arrays = self.arrays
        if self.file:
            return int(arrays.words.nbytes + arrays.sums.nbytes)
        parts: list[NDArray[Any]] = [*arrays, self.order, *self.names, *self.payloads]
        return sum(part.nbytes for part in parts)

    def _text(self, name: str, texts: Strings, row: int) -> str:
        """One text of a collection, checked, and the two offsets that lead to it."""
        begin, _ = self.spans.get(f"{name}_offsets", (0, 0))
        self.check(self.first_damaged(begin + row * 8, begin + row * 8 + 16))
        start, _ = self.spans.get(f"{name}s", (0, 0))
        first, last = int(texts.offsets[row]), int(texts.offsets[row + 1])
        if not 0 <= first <= last <= len(texts.content):
            self.fail(BROKEN)
        self.check(self.first_damaged(start + first, start + last))
        try:
            return texts.at(row).decode()
        except UnicodeDecodeError:
            self.fail(BROKEN)


def texts_fit(texts: Strings) -> bool:
    """Whether the offsets of texts ascend and stay inside their bytes."""
    offsets = texts.offsets
    if not len(offsets):
        return True
    ascending = not (offsets[1:] < offsets[:-1]).any()
    return bool(offsets[0] == 0 and offsets[-1] <= len(texts.content) and ascending)


@dataclass(frozen=True, eq=False)
class LiveSegment:
    """A segment and its live rows.

    Attributes:
        segment: the rows.
        alive: 1 for live rows [n] uint8; empty if all are.
        live: how many.
        file: its entry in the manifest; None in memory.
    """

    segment: Segment
    alive: NDArray[np.uint8]
    live: int
    file: SegmentFile | None = None

    def without(self, rows: NDArray[np.int64]) -> LiveSegment:
        """This part with more rows deleted; each of ``rows`` is alive and named once."""
        alive = self.alive.copy() if len(self.alive) else np.ones(self.segment.rows, np.uint8)
        alive[rows] = 0
        return LiveSegment(self.segment, alive, self.live - len(rows), self.file)

    def live_rows(self) -> NDArray[np.int64]:
        """The rows that are alive, ascending."""
        return np.flatnonzero(self.alive) if len(self.alive) else np.arange(self.segment.rows)


@dataclass(frozen=True, eq=False)
class TableState:
    """All rows of one moment.

    Attributes:
        parts: the segments.
        next_id: the next id to assign.
        encoder: the fingerprint of the encoder that the codes come from, or None. It changes with
            them, so that whoever searches a state knows which queries fit it.
    """

    parts: tuple[LiveSegment, ...] = ()
    next_id: int = 0
    encoder: str | None = None

    @cached_property
    def live(self) -> int:
        """How many items there are."""
        return sum(part.live for part in self.parts)

    @cached_property
    def largest(self) -> float:
        """The largest |x| of all rows."""
        return max((part.segment.largest for part in self.parts), default=0.0)

    @cached_property
    def residual(self) -> float:
        """The largest length of what upper halves leave out of a row."""
        return max((part.segment.residual for part in self.parts), default=0.0)

    @cached_property
    def has_short_codes(self) -> bool:
        """Whether a row, live or not, has fewer than k buckets."""
        return any(least_bucket(part.segment.arrays) < 0 for part in self.parts)

    def locate(self, ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The part and row of each id; both -1 where there is none."""
        parts = np.full(len(ids), -1, np.int64)
        rows = np.full(len(ids), -1, np.int64)
        for number, part in enumerate(self.parts):
            found = part.segment.find(ids, part.alive)
            here = found >= 0
            parts[here] = number
            rows[here] = found[here]
        return parts, rows

    def without(self, parts: NDArray[np.int64], rows: NDArray[np.int64]) -> TableState:
        """The state after deleting located rows; places of -1 are left out."""
        changed = list(self.parts)
        for number in np.unique(parts[parts >= 0]).tolist():
            changed[number] = changed[number].without(np.unique(rows[parts == number]))
        return replace(self, parts=tuple(part for part in changed if part.live))
