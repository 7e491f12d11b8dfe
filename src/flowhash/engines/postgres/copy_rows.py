"""Items as the server's rows, in bytes: one for each bucket of each item.

The bytes of a row are written by compiled loops, once as ``COPY ... (FORMAT binary)`` reads them,
and once without lengths, as the server's own functions give them, for checksums.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import kernel
from flowhash.table import NO_STRINGS, Strings

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
FIELDS = 5
INTEGER = 23  # the server's number for the type integer


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one table, in their order.

    Attributes:
        buckets: of each row [m] int32.
        codes: all buckets of its item, ascending [m, k] int32.
        keys: ids that are numbers [m] int64; hashes otherwise.
        names: ids that are strings; empty otherwise.
        payloads: JSON texts, empty for none; without offsets if no row has any.
        embeddings: [m, dim] float32.
        halves: whether the server keeps float16.
    """

    buckets: NDArray[np.int32]
    codes: NDArray[np.int32]
    keys: NDArray[np.int64]
    names: Strings
    payloads: Strings
    embeddings: NDArray[np.float32]
    halves: bool

    def __len__(self) -> int:
        return len(self.buckets)

    def copied(self) -> NDArray[np.uint8]:
        """The rows as ``COPY`` reads them."""
        return self._bytes(True)

    def digest(self) -> str:
        """A checksum that the server can compute too, from what it has stored."""
        return hashlib.sha256(self._bytes(False).data).hexdigest()

    def _bytes(self, framed: bool) -> NDArray[np.uint8]:
        kind = ">f2" if self.halves else ">f4"
        with np.errstate(over="ignore"):
            vectors = np.ascontiguousarray(self.embeddings, kind).view(np.uint8)
        parts = _Parts(
            self.buckets, self.codes, self.keys, self.names, self.payloads,
            vectors.reshape(len(self), -1), self.embeddings.shape[1],
        )  # fmt: skip
        ends = row_ends(parts, framed)
        out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        fill(parts, framed, ends, out)
        return out


class _Parts(NamedTuple):
    """The arrays of rows, for kernels."""

    buckets: NDArray[np.int32]
    codes: NDArray[np.int32]
    keys: NDArray[np.int64]
    names: Strings
    payloads: Strings
    vectors: NDArray[np.uint8]
    dim: int


@kernel
def row_ends(parts: _Parts, framed: bool) -> NDArray[np.int64]:
    """Where each row's bytes end [m]."""
    ends = np.empty(parts.buckets.shape[0], np.int64)
    active = parts.codes.shape[1]
    fixed = 4 + 4 + parts.vectors.shape[1] + (2 + 4 * FIELDS if framed else 0)
    if active > 1:
        fixed += 20 + 8 * (active - 1)
    at = 0
    for row in range(ends.shape[0]):
        at += fixed
        if parts.names.offsets.shape[0] > 0:
            at += parts.names.offsets[row + 1] - parts.names.offsets[row]
        else:
            at += 8
        if parts.payloads.offsets.shape[0] > 0:
            at += parts.payloads.offsets[row + 1] - parts.payloads.offsets[row]
        ends[row] = at
    return ends


@kernel
def put(out: NDArray[np.uint8], at: int, value: int, size: int) -> int:
    """Write a number, its highest byte first; where the next one goes."""
    for byte in range(size):
        out[at + byte] = (value >> (8 * (size - 1 - byte))) & 0xFF
    return at + size


@kernel
def put_text(out: NDArray[np.uint8], at: int, texts: Strings, row: int) -> int:
    """Write a text."""
    for position in range(texts.offsets[row], texts.offsets[row + 1]):
        out[at] = texts.content[position]
        at += 1
    return at


@kernel
def fill(parts: _Parts, framed: bool, ends: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """Write all rows."""
    active = parts.codes.shape[1]
    width = parts.vectors.shape[1]
    at = 0
    for row in range(ends.shape[0]):
        if framed:
            at = put(out, at, FIELDS, 2)
            at = put(out, at, 4, 4)
        at = put(out, at, parts.buckets[row], 4)
        if parts.names.offsets.shape[0] > 0:
            if framed:
                at = put(out, at, parts.names.offsets[row + 1] - parts.names.offsets[row], 4)
            at = put_text(out, at, parts.names, row)
        else:
            if framed:
                at = put(out, at, 8, 4)
            at = put(out, at, parts.keys[row], 8)
        if active > 1:
            if framed:
                at = put(out, at, 20 + 8 * (active - 1), 4)
            for word in (1, 0, INTEGER, active - 1, 1):  # an array of one dimension, from 1
                at = put(out, at, word, 4)
            for column in range(active):
                if parts.codes[row, column] != parts.buckets[row]:
                    at = put(out, at, 4, 4)
                    at = put(out, at, parts.codes[row, column], 4)
        elif framed:
            at = put(out, at, -1, 4)
        size = 0
        if parts.payloads.offsets.shape[0] > 0:
            size = parts.payloads.offsets[row + 1] - parts.payloads.offsets[row]
        if framed:
            at = put(out, at, size if size > 0 else -1, 4)
        if size > 0:
            at = put_text(out, at, parts.payloads, row)
        if framed:
            at = put(out, at, 4 + width, 4)
        at = put(out, at, parts.dim, 2)
        at = put(out, at, 0, 2)
        for column in range(width):
            out[at + column] = parts.vectors[row, column]
        at += width


def chosen_texts(texts: Strings, rows: NDArray[np.int64]) -> Strings:
    """The texts of some rows, one after the other."""
    if not len(texts.offsets):
        return NO_STRINGS
    return Strings(*gather(texts.content, texts.offsets, rows))


@kernel
def gather(
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
