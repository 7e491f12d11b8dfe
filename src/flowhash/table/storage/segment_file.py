"""The file of a segment, a safetensors file: written in pieces, mapped, verified."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from flowhash.durable_files import open_regular_file
from flowhash.errors import DamagedFileError, reason
from flowhash.table.ids import NO_STRINGS, STRING, Strings
from flowhash.table.segments.arrays import (
    BLOCK,
    LAYOUTS,
    WORDS,
    Arrays,
    block_checksums,
)
from flowhash.table.segments.quantised_plane import empty_quantised, quantise
from flowhash.table.segments.segment import Segment, SegmentFile
from flowhash.table.segments.segment_draft import SegmentDraft, upper_roots
from flowhash.table.table_settings import TableSettings
from flowhash.threads import in_shards

ALIGNMENT = 64
LARGEST_HEADER = 1 << 16
KINDS = {
    "I64": "<i8",
    "F32": "<f4",
    "I32": "<i4",
    "F16": "<f2",
    "U16": "<u2",
    "I8": "|i1",
    "U8": "|u1",
    "U32": "<u4",
}
NAMES = {np.dtype(kind): name for name, kind in KINDS.items()}
METADATA = {"format": "flowhash-segment", "version": "1"}
PADDING = "padding."  # arrays whose names begin so fill gaps
PIECE_BYTES = 1 << 24  # embeddings are copied and written in pieces of about this size


@dataclass(frozen=True)
class ArrayEntry:
    """An array to be written: its content comes in pieces, in order."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Iterable[NDArray[Any]]

    @property
    def size(self) -> int:
        """Bytes of the whole array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def whole(name: str, array: NDArray[Any]) -> ArrayEntry:
    """An array that is there at once."""
    return ArrayEntry(name, array.dtype, array.shape, [array])


class _Summing:
    """Writes bytes through and sums up blocks as they fill."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.rest = np.empty(0, np.uint8)  # of a block that is not full
        self.sums: list[NDArray[np.uint32]] = []

    def write(self, data: NDArray[np.uint8]) -> None:
        self.file.write(data.data)
        lacking = -len(self.rest) % BLOCK
        if lacking:
            self.rest = np.concatenate([self.rest, data[:lacking]])
            if len(self.rest) < BLOCK:
                return
            self._sum_up(self.rest)
        stop = len(data) - (len(data) - lacking) % BLOCK
        self._sum_up(data[lacking:stop])
        self.rest = data[stop:].copy()

    def finish(self) -> NDArray[np.uint32]:
        self._sum_up(self.rest)
        return np.concatenate(self.sums)

    def _sum_up(self, data: NDArray[np.uint8]) -> None:
        words = np.require(data.view(np.uint64), None, ["ALIGNED", "WRITEABLE"])  # as compiled for
        sums = np.empty(-(-len(data) // BLOCK), np.uint32)

        def work(start: int, stop: int) -> None:
            block_checksums(words[start * WORDS : stop * WORDS], sums[start:stop])

        in_shards(work, len(sums))
        self.sums.append(sums)


def write_container(file: IO[bytes], entries: list[ArrayEntry]) -> tuple[int, int, int]:
    """Write arrays one after another, then their checksums.

    Returns:
        To know the file again: its size, and the CRC-32 of its header and of its checksums.
    """
    placed = list(_with_padding(entries))
    total = sum(entry.size for entry in placed)
    count = -(-total // BLOCK)
    header = _header([*placed, ArrayEntry("checksums", np.dtype("<u4"), (count,), [])])
    file.write(len(header).to_bytes(8, "little") + header)
    summing = _Summing(file)
    for entry in placed:
        written = 0
        for piece in entry.pieces:
            data = np.ascontiguousarray(piece, entry.dtype).reshape(-1).view(np.uint8)
            summing.write(data)
            written += len(data)
        if written != entry.size:
            raise AssertionError(f"{entry.name}: {written} bytes, {entry.size} were announced")
    sums = summing.finish().astype("<u4")
    file.write(sums.tobytes())
    size = 8 + len(header) + total + sums.nbytes
    return size, zlib.crc32(header), zlib.crc32(sums.tobytes())


def _with_padding(entries: list[ArrayEntry]) -> Iterator[ArrayEntry]:
    """The entries, with zeros between them so that each starts at a multiple of ALIGNMENT."""
    place = 0
    for number, entry in enumerate(entries):
        yield entry
        gap = -(place + entry.size) % ALIGNMENT
        place += entry.size + gap
        if gap:
            yield whole(f"{PADDING}{number}", np.zeros(gap, np.uint8))


def _header(entries: list[ArrayEntry]) -> bytes:
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


# Of a mapped file: its arrays, where they lie, all of its data as words, and its checksums.
Container = tuple[
    dict[str, NDArray[Any]], dict[str, tuple[int, int]], NDArray[np.uint64], NDArray[np.uint32]
]


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


def map_container(path: Path, expected: SegmentFile) -> Container:
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


def _read_arrays(path: Path, mapped: Any, header: bytes, expected: SegmentFile) -> Container:
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
    return arrays, spans, words, sums


def write_segment(file: IO[bytes], name: str, plan: SegmentDraft) -> SegmentFile:
    """Write a segment into its file of this name.

    Norms come behind the embeddings because they are computed while those are copied.
    """
    count, dim, layout = len(plan.rows), plan.settings.dim, plan.layout
    upper_type = next(iter(layout.planes.values()))
    norms = np.empty(count, np.float32)
    largest = np.zeros(2)
    has_quantised = layout.is_quantised(dim)
    quanta = empty_quantised(count, 0)[1]
    kept: list[NDArray[np.int8]] = []
    # What was given is in memory, four times as large; segments that are merged need not be.
    keeps = has_quantised and all(source.segment is None for source in plan.sources)

    step = max(1, PIECE_BYTES // (dim * 2))
    ranges = [(start, min(count, start + step)) for start in range(0, count, step)]

    def copy_shard(
        start: int, highs: NDArray[np.uint16], lows: NDArray[np.uint16],
        plane: NDArray[np.int8], first: int, last: int,
    ) -> NDArray[np.float64]:  # fmt: skip
        part, rows = slice(first, last), slice(start + first, start + last)
        squares = plan.copy_range(rows.start, rows.stop, highs[part], lows[part], norms[rows])
        if len(plane):
            quantise(highs[part], lows[part], plane[part], quanta[rows])
        return squares

    def uppers() -> Iterator[NDArray[Any]]:
        for start, stop in ranges:
            highs, lows = layout.empty_planes(stop - start, dim)
            plane = empty_quantised(stop - start if keeps else 0, dim)[0]
            work = partial(copy_shard, start, highs, lows, plane)
            np.max([largest, *in_shards(work, stop - start)], axis=0, out=largest)
            if keeps:
                kept.append(plane)
            yield highs.view(upper_type)

    def lowers() -> Iterator[NDArray[Any]]:
        # Taken once more from where they come from: kept, they would take half of the memory that
        # the whole segment does.
        for start, stop in ranges:
            lows = np.empty((stop - start, dim), np.uint16)
            plan.copy_lows(start, stop, lows)
            yield lows

    def quantised() -> Iterator[NDArray[Any]]:
        yield from kept
        for start, stop in [] if keeps else ranges:
            plane, _ = empty_quantised(stop - start, dim)
            plan.copy_quantised(start, stop, plane, quanta[start:stop])
            yield plane

    entries = [
        whole("ids", plan.keys),
        whole("order", plan.order),
        whole("offsets", plan.offsets),
    ]
    for (plane, kind), pieces in zip(layout.planes.items(), (uppers(), lowers()), strict=False):
        entries.append(ArrayEntry(plane, kind, (count, dim), pieces))
    entries.append(whole("norms", norms))
    if has_quantised:
        entries.append(ArrayEntry("quantised", np.dtype(np.int8), (count, dim), quantised()))
        entries.append(whole("quanta", quanta))
    if len(plan.codes):
        entries += [whole("codes", plan.codes), whole("postings", plan.postings)]
    for text in ("name", "payload"):
        strings = plan.strings(f"{text}s")
        if len(strings.offsets):
            entries.append(whole(f"{text}_offsets", strings.offsets))
            entries.append(whole(f"{text}s", strings.content))
    written = write_container(file, entries)
    listed = len(plan.postings) if len(plan.postings) < plan.codes.size else None
    return SegmentFile(name, count, *written, *upper_roots(largest, dim), entries=listed,
                       quantised=has_quantised)  # fmt: skip


def map_segment(path: Path, entry: SegmentFile, settings: TableSettings) -> Segment:
    """A segment from its file; nothing is read but the header, the checksums and the offsets.

    Raises:
        DamagedFileError: the file is not what was written.
    """
    found, spans, words, sums = map_container(path, entry)
    _check_arrays(path, found, entry, settings)
    upper = next(iter(LAYOUTS[settings.dtype].planes))
    names = (upper, "lows", "norms", "ids", "postings", "codes", "quantised", "quanta")
    nothing = empty_quantised(0, settings.dim)
    arrays = Arrays(
        highs=found[upper].view(np.uint16),
        lows=found.get("lows", np.empty((0, settings.dim), np.uint16)),
        norms=found["norms"],
        ids=found["ids"],
        # Kernels trust them, so that nobody may write to them after they were checked.
        offsets=found["offsets"].copy(),
        postings=found.get("postings", np.empty(0, np.int32)),
        codes=found.get("codes", np.empty((0, 1), np.int32)),
        words=words,
        sums=sums,
        verified=np.zeros(len(sums) + (settings.buckets if settings.active > 1 else 0), np.uint8),
        starts=np.array([spans.get(name, (0, 0))[0] for name in names]),
        quantised=found.get("quantised", nothing[0]),
        quanta=found.get("quanta", nothing[1]),
    )
    strings = {
        name: Strings(found[f"{name}s"], found[f"{name}_offsets"])
        if f"{name}s" in found
        else NO_STRINGS
        for name in ("name", "payload")
    }
    segment = Segment(
        arrays,
        found["order"],
        strings["name"],
        strings["payload"],
        float(entry.largest),
        float(entry.residual),
        file=str(path),
        spans=spans,
    )
    _check_offsets(segment, settings)
    return segment


def _check_arrays(
    path: Path, found: dict[str, NDArray[Any]], entry: SegmentFile, settings: TableSettings
) -> None:
    """A header that was changed together with its checksum must not lead out of the arrays.

    Each is there, of the right kind and shape, and no other: kernels tell by an array that is there
    what a segment is like.
    """
    rows = entry.rows
    expected: dict[str, tuple[tuple[int, ...], DTypeLike]] = {
        "ids": ((rows,), np.int64),
        "order": ((rows,), np.int32),
        "offsets": ((settings.buckets + 1,), np.int64),
        "norms": ((rows,), np.float32),
    }
    for name, kind in LAYOUTS[settings.dtype].planes.items():
        expected[name] = ((rows, settings.dim), kind)
    if settings.active > 1:
        expected["codes"] = ((rows, settings.active), np.int32)
        entries = rows * settings.active if entry.entries is None else entry.entries
        expected["postings"] = ((entries,), np.int32)
    if entry.quantised:
        if not LAYOUTS[settings.dtype].is_quantised(settings.dim):
            raise DamagedFileError(
                f"{path}: rows of {settings.dim} numbers of {settings.dtype} have no quantised "
                "plane; restore the file from a copy"
            )
        expected["quantised"] = ((rows, settings.dim), np.int8)
        expected["quanta"] = ((rows, 2), np.uint16)
    texts = {"name": settings.ids == STRING, "payload": "payloads" in found}
    for name in [name for name, there in texts.items() if there]:
        content = found.get(f"{name}s", np.empty(0))
        expected[f"{name}_offsets"] = ((rows + 1,), np.int64)
        expected[f"{name}s"] = ((content.size,), np.uint8)
    for name, (shape, dtype) in expected.items():
        array = found.get(name)
        if array is None or array.shape != shape or array.dtype != dtype:
            raise DamagedFileError(
                f"{path}: {name} should be {np.dtype(dtype)} {shape}, as the manifest says; "
                "restore the file from a copy"
            )
    others = [name for name in found.keys() - expected if not name.startswith(PADDING)]
    if others:
        raise DamagedFileError(
            f"{path}: it has an array {others[0]!r:.80}, which no such table has; restore the file "
            "from a copy"
        )


def _check_offsets(segment: Segment, settings: TableSettings) -> None:
    """The offsets are read at once: every search needs them, and they lead everywhere."""
    segment.ensure("offsets")
    offsets = segment.arrays.offsets
    total = len(segment.arrays.postings) if settings.active > 1 else segment.rows
    # Compared, not subtracted: a difference may be so large that its sign is lost.
    if offsets[0] != 0 or offsets[-1] != total or (offsets[1:] < offsets[:-1]).any():
        raise DamagedFileError(
            f"{segment.file}: its bucket offsets make no sense; restore the file from a copy"
        )
