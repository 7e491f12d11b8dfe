"""Arrays in files: ``.npy`` and ``.npz``, mapped where they can be, and parquet; no pickles."""

from __future__ import annotations

import contextlib
import math
import mmap
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.durable_files import memory, open_regular_file, reading
from flowhash.errors import (
    Argument,
    DamagedFileError,
    InputError,
    StorageError,
    reason,
)
from flowhash.extras import require

EMBEDDINGS = ("embeddings", "embedding", "X", "data")
LABELS = ("labels", "label", "y")
LARGEST = 1 << 56  # numbers of an array; no disk holds as many
UNPACKED = 1 << 30  # bytes that may come of any compressed file, however small it is
CHUNK = 1 << 20  # bytes of a compressed array that are unpacked at once
BATCH = 1 << 26  # bytes of a parquet file that are read at once
MOST_ROWS = 1 << 16
DENSEST = 100  # times that larger ones may grow
NO_PARQUET = ("cannot be read as a parquet file", "write it again")
LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip's member: its name and extra field follow


def read_npy(path: Path) -> NDArray[Any]:
    """The array of an ``.npy`` file, mapped: read from disk as it is used."""
    cannot = "cannot be read as an array of numbers or text"
    advice = "save it again with numpy.save, without Python objects"
    with reading(path, cannot, advice), open_regular_file(path) as file:
        head = _npy_head(file, str(path))
        offset, size = file.tell(), path.stat().st_size
        if head.bytes > size - offset:
            raise ValueError(f"its header tells of {head.bytes} bytes, {size - offset} follow")
        return _mapped(path, offset, head)


def read_npz(
    path: Path, embedding: str | None, label: str | None, with_labels: bool
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Items, mapped where they are stored uncompressed, and labels of an ``.npz`` file."""
    names = npz_names(path)
    items = npz_array(path, _chosen(path, names, embedding, EMBEDDINGS, "items"))
    if not with_labels:
        return items, None
    return items, np.array(npz_array(path, _chosen(path, names, label, LABELS, "labels")))


def npz_names(path: Path) -> list[str]:
    """The keys of an ``.npz`` file."""
    with _opened_npz(path) as (archive, _):
        return [name.removesuffix(".npy") for name in archive.namelist()]


@contextlib.contextmanager
def _opened_npz(path: Path) -> Iterator[tuple[zipfile.ZipFile, BinaryIO]]:
    """An ``.npz`` file and its bytes, to be read and nothing else; see :func:`reading`."""
    advice = (
        "it was cut short or holds something else than arrays of numbers or text. Save or download "
        "it again"
    )
    with (
        reading(path, "cannot be read as an .npz file", advice),
        open_regular_file(path) as file,
        zipfile.ZipFile(file) as archive,
    ):
        yield archive, file


def has_labels(path: Path) -> bool:
    """Whether an ``.npz`` or parquet file has labels under one of the usual names."""
    names: list[str] = []
    if path.suffix.lower() == ".npz":
        names = npz_names(path)
    elif path.suffix.lower() in (".parquet", ".pq"):
        names = _parquet_names(path)
    return any(name in names for name in LABELS)


def npz_array(path: Path, key: str) -> NDArray[Any]:
    """One array of an ``.npz`` file: mapped where it is stored uncompressed, else loaded."""
    mapped = map_npz(path, key)
    if mapped is not None:
        return mapped
    with _unpacked(path, key) as (member, head):
        _check_memory(path, head.bytes)
        flat = np.empty(math.prod(head.shape), head.dtype)  # the only copy of it in memory
        content, done = memoryview(flat.view(np.uint8)), 0  # type: ignore[arg-type]
        while count := member.readinto(content[done : done + CHUNK]):  # type: ignore[attr-defined]
            done += count
        if done != head.bytes or member.read(1):
            raise ValueError(f"{key}.npy does not have the size that its header tells")
        return flat.reshape(head.shape, order="F" if head.is_fortran else "C")


def npy_chunks(path: Path, key: str) -> Iterator[bytes]:
    """A compressed array of an ``.npz`` file as the parts of an ``.npy`` file, unpacked.

    Raises:
        DamagedFileError: it is not what its header tells, or made to fill the disk.
    """
    with _unpacked(path, key) as (member, _):
        member.seek(0)
        while chunk := member.read(CHUNK):
            yield chunk  # what the caller raises while it uses one does not come here


@contextlib.contextmanager
def _unpacked(path: Path, key: str) -> Iterator[tuple[IO[bytes], ArrayHeader]]:
    """A compressed array of an ``.npz`` file, to be read after its header and nothing else."""
    with _opened_npz(path) as (archive, _):
        entry = archive.getinfo(key + ".npy")
        if entry.flag_bits & 1:
            raise ValueError("it is encrypted")
        if entry.compress_type != zipfile.ZIP_DEFLATED:
            raise ValueError(f"it is compressed by a method ({entry.compress_type}) that numpy "
                             "does not use")  # fmt: skip
        _check_density(path, entry.file_size, entry.compress_size)
        with archive.open(entry) as member:
            head = _npy_head(member, f"{path}: {key}")
            if member.tell() + head.bytes != entry.file_size:
                raise ValueError(f"{key}.npy does not have the size that its header tells")
            yield member, head


def _check_density(path: Path, size: int, packed: int) -> None:
    """Refuse to unpack what was made to fill memory or disk; measured numbers are denser."""
    if size > UNPACKED and size > DENSEST * packed:
        raise DamagedFileError(
            f"{path} has {packed} bytes that unpack to {size}; it was made to fill memory or disk. "
            "If you trust it, save it again with numpy.savez, uncompressed, which is mapped and "
            "not loaded"
        )


def _check_memory(path: Path, size: int) -> None:
    """Refuse to load what leaves no room to work with it."""
    if size > memory() // 2:
        raise StorageError(
            f"{path} unpacks to {size} bytes, and at most {memory() // 2}, half the memory, are "
            "loaded. Save it again with numpy.savez, uncompressed, which is mapped and not loaded"
        )


def map_npz(path: Path, key: str) -> NDArray[Any] | None:
    """An array of an ``.npz`` file mapped in place, or None where it is compressed."""
    with _opened_npz(path) as (archive, file):
        entry = archive.getinfo(key + ".npy")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            return None
        file.seek(entry.header_offset)
        magic, name, extra = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
        if magic != b"PK\x03\x04":
            raise ValueError(f"no member where {key}.npy should begin")
        start = file.seek(name + extra, 1)
        head = _npy_head(file, f"{path}: {key}")
        if file.tell() + head.bytes != start + entry.file_size:
            raise ValueError(f"{key}.npy does not have the size that its header tells")
        return _mapped(path, file.tell(), head)


class ArrayHeader(NamedTuple):
    """What the header of an ``.npy`` file tells of the array that follows it."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """How many bytes follow."""
        return math.prod(self.shape) * self.dtype.itemsize


def _npy_head(file: IO[bytes], name: str) -> ArrayHeader:
    """The header of the array ``name`` that begins here in ``file``."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"its header has version {version}")
    read = np.lib.format.read_array_header_1_0
    head = ArrayHeader(*(read if version == (1, 0) else np.lib.format.read_array_header_2_0)(file))
    if head.dtype.hasobject:
        raise InputError(
            f"{name} holds Python objects, which are not read; save it as text or numbers, for "
            "example values.astype(str). Labels that are missing (None) would become a class: "
            "leave these rows out where you learn"
        )
    if any(isinstance(side, bool) or side < 0 for side in head.shape):
        raise ValueError(f"its header tells of the shape {head.shape}")
    if math.prod(max(side, 1) for side in head.shape) >= LARGEST:  # also of an array without rows
        raise ValueError(f"its header tells of the shape {head.shape}")
    if math.prod(head.shape[:1]) and not head.bytes:
        # No bytes at all could stand for any number of rows.
        raise ValueError(f"its rows, of the shape {head.shape} and type {head.dtype}, are empty")
    return head


def _mapped(path: Path, offset: int, head: ArrayHeader) -> NDArray[Any]:
    if not head.bytes:
        return np.zeros(head.shape, head.dtype)
    order: Any = "F" if head.is_fortran else "C"
    return np.asarray(np.memmap(path, head.dtype, "r", offset, head.shape, order))


def release_pages(array: NDArray[Any]) -> None:
    """Give back the memory that the pages of a mapped, read-only file take.

    Pages that were looked at count as memory of the process until the system wants it back, so that
    one pass over a file seems to hold all of it. What is looked at again comes from the system's
    cache. Arrays that are not mapped stay as they are, and so do maps that can be written to:
    what was changed in a private copy would be lost.
    """
    base: object = array
    while isinstance(base, np.ndarray):
        below = base.base
        if isinstance(base, np.memmap) and base.mode == "r" and isinstance(below, mmap.mmap):
            if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
                below.madvise(mmap.MADV_DONTNEED)
            return
        base = below


def read_parquet(
    path: Path, embedding: str | None, label: str | None, with_labels: bool
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Items of a column of lists of numbers, and labels of another column."""
    arrow = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    with reading(path, *NO_PARQUET):
        names = _parquet_names(path)
        column = _chosen(path, names, embedding, EMBEDDINGS, "items")
        columns = [column]
        if with_labels:
            columns.append(_chosen(path, names, label, LABELS, "labels"))
        table = _parquet_table(path, columns, parquet, arrow)
        labels = _parquet_labels(path, table.column(columns[1])) if with_labels else None
        return _parquet_rows(path, column, table.column(column).combine_chunks(), arrow), labels


def _parquet_table(path: Path, columns: list[str], parquet: Any, arrow: Any) -> Any:
    """The columns as a table, read in parts: a run of equal numbers takes a few bytes.

    What the file tells of its columns is not asked for: pyarrow ends the process where that was
    forged.
    """
    packed, size = path.stat().st_size, 0
    with parquet.ParquetFile(path) as file:
        first = next(file.iter_batches(1, columns=columns), None)
        rows = BATCH // max(first.nbytes, 1) if first is not None else 1
        parts = []
        for part in file.iter_batches(min(max(rows, 1), MOST_ROWS), columns=columns):
            size += part.nbytes
            _check_density(path, size, packed)
            _check_memory(path, size)
            parts.append(part)
        empty = file.schema_arrow.empty_table().select(columns)
        return arrow.Table.from_batches(parts, empty.schema)


def _parquet_names(path: Path) -> list[str]:
    """The columns of a parquet file."""
    with reading(path, *NO_PARQUET):
        return list(require("pyarrow.parquet", "parquet").read_schema(path).names)


def _parquet_labels(path: Path, column: Any) -> NDArray[Any]:
    if column.null_count:
        raise InputError(
            f"{path}: {column.null_count} rows have no label; drop them, or give them one"
        )
    if str(column.type).startswith("dictionary"):
        column = column.cast(column.type.value_type)
    return np.asarray(column.to_numpy())


def _parquet_rows(path: Path, name: str, column: Any, arrow: Any) -> NDArray[np.float32]:
    """A column of lists, all of one length, as float32 [n, dim]."""
    kind = column.type
    is_fixed = arrow.types.is_fixed_size_list(kind)
    if not (is_fixed or arrow.types.is_list(kind) or arrow.types.is_large_list(kind)):
        raise InputError(
            f"{path}: the column {name} has type {kind}; expected lists of numbers, one a row"
        )
    values = column.flatten()
    lengths = np.unique(arrow.compute.list_value_length(column).to_numpy(zero_copy_only=False))
    if column.null_count or values.null_count or lengths.size > 1:
        raise InputError(
            f"{path}: the column {name} has gaps or lists of several lengths; expected lists of "
            "one length without gaps"
        )
    dim = int(lengths[0]) if lengths.size else 0
    try:
        numbers = values.cast(arrow.float32(), safe=False).to_numpy(zero_copy_only=False)
    except arrow.ArrowException as error:
        raise InputError(
            f"{path}: the column {name} does not hold numbers: {reason(error)}"
        ) from error
    return np.asarray(numbers, np.float32).reshape(len(column), dim)


def _chosen(
    path: Path, names: list[str], asked: str | None, usual: tuple[str, ...], what: str
) -> str:
    """The key or column that is asked for, or the first usual one that is there."""
    wanted = usual if asked is None else (asked,)
    for name in wanted:
        if name in names:
            return name
    raise InputError(
        f"{path} has {reason(', '.join(names) or 'nothing')}; looked for {what} under "
        f"{' or '.join(wanted)}. Name the right one with",
        Argument("embedding" if what == "items" else "label"),
    )
