"""The file of a segment: a safetensors file whose every kilobyte has a checksum.

Eight bytes with the length of a JSON header, the header, then the arrays, each starting at a
multiple of 64 bytes (arrays named ``padding.…`` fill the gaps), and last an array ``checksums``.
The safetensors library reads it too. docs/format.md has it byte for byte.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import DamagedFileError, reason
from flowhash.regular_file import open_regular_file
from flowhash.table.blocks import BLOCK, block_checksums

ALIGNMENT = 64
LARGEST_HEADER = 1 << 16
KINDS = {
    "I64": "<i8",
    "F32": "<f4",
    "I32": "<i4",
    "F16": "<f2",
    "U16": "<u2",
    "U8": "|u1",
    "U32": "<u4",
}
NAMES = {np.dtype(kind): name for name, kind in KINDS.items()}
METADATA = {"format": "flowhash-segment", "version": "1"}
PADDING = "padding."  # arrays whose names begin so fill gaps


@dataclass(frozen=True)
class Entry:
    """An array to be written: its content comes in pieces, in order."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Iterable[NDArray[Any]]

    @property
    def size(self) -> int:
        """Bytes of the whole array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def whole(name: str, array: NDArray[Any]) -> Entry:
    """An array that is there at once."""
    return Entry(name, array.dtype, array.shape, [array])


@dataclass(frozen=True)
class Written:
    """What the manifest keeps of a file, to know it again."""

    size: int
    header_crc32: int
    sums_crc32: int


class _Summing:
    """Writes bytes through and sums up blocks as they fill."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.rest = b""
        self.sums: list[NDArray[np.uint32]] = []

    def write(self, data: NDArray[np.uint8]) -> None:
        self.file.write(data.data)
        joined = data
        if self.rest:
            joined = np.frombuffer(self.rest + data.tobytes(), np.uint8)
        full = len(joined) // BLOCK * BLOCK
        self._add(joined[:full])
        self.rest = joined[full:].tobytes()

    def finish(self) -> NDArray[np.uint32]:
        self._add(np.frombuffer(self.rest, np.uint8))
        return np.concatenate([np.empty(0, np.uint32), *self.sums])

    def _add(self, data: NDArray[np.uint8]) -> None:
        # Copied, because kernels want aligned and writable words.
        words = np.frombuffer(bytearray(data), np.uint64)
        sums = np.empty(-(-len(data) // BLOCK), np.uint32)
        block_checksums(words, sums)
        self.sums.append(sums)


def write_container(file: IO[bytes], entries: list[Entry]) -> Written:
    """Write arrays one after another, then their checksums."""
    placed = list(_with_padding(entries))
    total = sum(entry.size for entry in placed)
    count = -(-total // BLOCK)
    header = _header([*placed, Entry("checksums", np.dtype("<u4"), (count,), [])])
    file.write(len(header).to_bytes(8, "little") + header)
    summing = _Summing(file)
    for entry in placed:
        written = 0
        for piece in entry.pieces:
            data = np.ascontiguousarray(piece, entry.dtype).reshape(-1).view(np.uint8)
            summing.write(data)
            written += len(data)
        if written != entry.size:
            raise AssertionError(f"{entry.name}: {written} bytes came, {entry.size} were announced")
    sums = summing.finish().astype("<u4")
    file.write(sums.tobytes())
    size = 8 + len(header) + total + sums.nbytes
    return Written(size, zlib.crc32(header), zlib.crc32(sums.tobytes()))


def _with_padding(entries: list[Entry]) -> Iterator[Entry]:
    """The entries, with zeros between them so that each starts at a multiple of ALIGNMENT."""
    place = 0
    for number, entry in enumerate(entries):
        yield entry
        gap = -(place + entry.size) % ALIGNMENT
        place += entry.size + gap
        if gap:
            yield whole(f"{PADDING}{number}", np.zeros(gap, np.uint8))


def _header(entries: list[Entry]) -> bytes:
    """The JSON header, filled with spaces so that the arrays start at a multiple of ALIGNMENT."""
    fields: dict[str, Any] = {"__metadata__": METADATA}
    place = 0
    for entry in entries:
        fields[entry.name] = {
            "dtype": NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [place, place + entry.size],
        }
        place += entry.size
    text = json.dumps(fields, separators=(",", ":")).encode()
    return text + b" " * (-(8 + len(text)) % ALIGNMENT)


@dataclass(frozen=True)
class Container:
    """A mapped file: its arrays, where they lie, and its checksums."""

    arrays: dict[str, NDArray[Any]]
    spans: dict[str, tuple[int, int]]
    words: NDArray[np.uint64]
    sums: NDArray[np.uint32]


def map_file(file: IO[bytes]) -> Any:
    """A whole file as a buffer that is not read before it is used.

    Kernels are compiled for writable arrays, and nobody writes to these. So the mapping is for
    reading only, and the buffer only looks writable: a mapping that could be written to would have
    to fit into memory.
    """
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    buffer: Any = (ctypes.c_uint8 * len(mapped)).from_address(address)
    buffer.mapped = mapped  # kept as long as any array on it
    return buffer


def map_container(path: Path, expected: Written) -> Container:
    """Map a file and check its size, header and checksums; its data is checked when it is read.

    Raises:
        DamagedFileError: it is missing or not what was written.
    """
    try:
        with open_regular_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.size or not size:
                raise DamagedFileError(
                    f"{path} has {size} bytes; {expected.size} were written. It was cut short or "
                    "changed: restore it from a copy"
                )
            mapped = map_file(file)
    except FileNotFoundError as error:
        raise DamagedFileError(
            f"{path} is missing; the manifest names it. Restore it from a copy"
        ) from error
    length = int.from_bytes(bytes(mapped[:8]), "little")
    header = bytes(mapped[8 : 8 + length]) if length <= LARGEST_HEADER else b""
    if not header or zlib.crc32(header) != expected.header_crc32 or (8 + length) % ALIGNMENT:
        raise DamagedFileError(f"{path}: its header is damaged; restore the file from a copy")
    return _read_arrays(path, mapped, header, expected)


def _read_arrays(path: Path, mapped: Any, header: bytes, expected: Written) -> Container:
    """The arrays that a header names: one behind the other, the checksums of all of them last.

    Kernels trust what is said here, so that nothing may lie elsewhere, nor in two places.
    """
    base = 8 + len(header)
    place = 0
    arrays: dict[str, NDArray[Any]] = {}
    spans: dict[str, tuple[int, int]] = {}
    try:
        fields = json.loads(header)
        if fields.pop("__metadata__") != METADATA:
            raise ValueError("unknown metadata")
        for name, field in fields.items():
            dtype, shape = np.dtype(KINDS[field["dtype"]]), field["shape"]
            if not all(type(length) is int and length >= 0 for length in shape):
                raise ValueError(f"{name} has an impossible shape")
            count = math.prod(shape)
            stop = place + count * dtype.itemsize
            if field["data_offsets"] != [place, stop] or base + stop > expected.size:
                raise ValueError(f"{name} does not lie behind the array before it")
            if place % ALIGNMENT and not name.startswith(PADDING):
                raise ValueError(f"{name} is not aligned")
            arrays[name] = np.frombuffer(mapped, dtype, count, base + place).reshape(shape)
            spans[name] = (place, stop)
            place = stop
        sums = arrays.pop("checksums")
        end = spans.pop("checksums")[0]
        if base + end + sums.nbytes != expected.size:
            raise ValueError("the checksums are not at its end")
        if sums.dtype != np.uint32 or sums.shape != (-(-end // BLOCK),):
            raise ValueError("the number of checksums is wrong")
    except (
        AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError,
    ) as error:  # fmt: skip
        raise DamagedFileError(
            f"{path}: its header makes no sense ({reason(error)}); restore the file from a copy"
        ) from error
    words = np.frombuffer(mapped, "<u8", end // 8, base)
    if zlib.crc32(sums.data) != expected.sums_crc32:
        raise DamagedFileError(f"{path}: its checksums are damaged; restore the file from a copy")
    return Container(arrays, spans, words, sums)
