"""Arrays in files: ``.npy`` and ``.npz``, mapped where they can be, and parquet; no pickles."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import DamagedFileError, InputError
from flowhash.extras import require

EMBEDDINGS = ("embeddings", "embedding", "X", "data")
LABELS = ("labels", "label", "y")
LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip's member: its name and extra field follow


def read_npy(path: Path) -> NDArray[Any]:
    """The array of an ``.npy`` file, mapped: read from disk as it is used."""
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError, OSError) as error:
        raise DamagedFileError(
            f"{path} cannot be read as an array of numbers or text: {error}; save it again with "
            "numpy.save, without Python objects"
        ) from error


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
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (zipfile.BadZipFile, OSError) as error:
        raise damaged_npz(path, error) from error


def has_labels(path: Path) -> bool:
    """Whether an ``.npz`` or parquet file has labels under one of the usual names."""
    if path.suffix.lower() == ".npz":
        names = npz_names(path)
    elif path.suffix.lower() in (".parquet", ".pq"):
        names = _parquet_names(path)
    else:
        names = []
    return any(name in names for name in LABELS)


def damaged_npz(path: Path, error: Exception) -> DamagedFileError:
    """What is raised for an ``.npz`` file that cannot be read."""
    return DamagedFileError(
        f"{path} cannot be read as an .npz file: {error}; it was cut short or holds something else "
        "than arrays of numbers or text. Save or download it again"
    )


def npz_array(path: Path, key: str) -> NDArray[Any]:
    """One array of an ``.npz`` file: mapped where it is stored uncompressed, else loaded."""
    mapped = map_npz(path, key)
    if mapped is not None:
        return mapped
    try:
        with np.load(path, allow_pickle=False) as archive:
            return np.asarray(archive[key])
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise damaged_npz(path, error) from error


def map_npz(path: Path, key: str) -> NDArray[Any] | None:
    """An array of an ``.npz`` file mapped in place, or None where it is compressed."""
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            entry = archive.getinfo(key + ".npy")
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                return None
            file.seek(entry.header_offset)
            magic, name, extra = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
            if magic != b"PK\x03\x04":
                raise ValueError(f"no member where {key}.npy should begin")
            start = file.seek(name + extra, 1)
            shape, is_fortran, dtype = _npy_header(file)
            offset = file.tell()
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            if dtype.hasobject:
                raise InputError(
                    f"{path}: {key} holds Python objects, which are not read; save it as text or "
                    "numbers, for example values.astype(str)"
                )
            if offset + size != start + entry.file_size:
                raise ValueError(f"{key}.npy does not have the size that its header tells")
        if size == 0:
            return np.zeros(shape, dtype)
        order: Any = "F" if is_fortran else "C"
        return np.asarray(np.memmap(path, dtype, "r", offset, shape, order))
    except InputError:
        raise
    except (ValueError, EOFError, OSError, KeyError, struct.error, zipfile.BadZipFile) as error:
        raise damaged_npz(path, error) from error


def _npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of the array that begins here in ``file``."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def read_parquet(
    path: Path, embedding: str | None, label: str | None, with_labels: bool
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Items of a column of lists of numbers, and labels of another column."""
    arrow = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    try:
        names = _parquet_names(path)
        column = _chosen(path, names, embedding, EMBEDDINGS, "items")
        columns = [column]
        if with_labels:
            columns.append(_chosen(path, names, label, LABELS, "labels"))
        table = parquet.read_table(path, columns=columns)
        labels = _parquet_labels(path, table.column(columns[1])) if with_labels else None
        return _parquet_rows(path, column, table.column(column).combine_chunks(), arrow), labels
    except (arrow.ArrowException, OSError) as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError(
            f"{path} cannot be read as a parquet file: {error}; write it again"
        ) from error


def _parquet_names(path: Path) -> list[str]:
    """The columns of a parquet file."""
    arrow = require("pyarrow", "parquet")
    try:
        return list(require("pyarrow.parquet", "parquet").read_schema(path).names)
    except (arrow.ArrowException, OSError) as error:
        raise DamagedFileError(
            f"{path} cannot be read as a parquet file: {error}; write it again"
        ) from error


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
        raise InputError(f"{path}: the column {name} does not hold numbers: {error}") from error
    return np.asarray(numbers, np.float32).reshape(len(column), dim)


def _chosen(
    path: Path, names: list[str], asked: str | None, usual: tuple[str, ...], what: str
) -> str:
    """The key or column that is asked for, or the first usual one that is there."""
    wanted = usual if asked is None else (asked,)
    for name in wanted:
        if name in names:
            return name
    option = "embedding" if what == "items" else "label"
    raise InputError(
        f"{path} has {', '.join(names) or 'nothing'}; looked for {what} under "
        f"{' or '.join(wanted)}. Name the right one with {option}="
    )
