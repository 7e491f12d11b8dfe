"""Arrays as columns of parquet files and back, without a look at single rows."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.bulk.work_folder import Place
from flowhash.durable_files import flush_folder, naming
from flowhash.errors import DamagedFileError, InputError
from flowhash.extras import require

FACTS = b"flowhash"  # the key of our JSON in a file's metadata


def matrix(values: NDArray[Any]) -> Any:
    """Rows of one length as a column of lists [n, width]."""
    arrow = require("pyarrow", "parquet")
    flat = arrow.array(np.ascontiguousarray(values).reshape(-1))
    return arrow.FixedSizeListArray.from_arrays(flat, values.shape[1])


def lists(values: NDArray[Any], counts: NDArray[np.int64]) -> Any:
    """The first ``counts[i]`` values of each row as a column of lists [n, most]."""
    arrow = require("pyarrow", "parquet")
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    flat = values.reshape(-1)
    if offsets[-1] != len(flat):
        flat = values[np.arange(values.shape[1]) < counts[:, None]]
    return arrow.ListArray.from_arrays(arrow.array(offsets), plain(flat))


def plain(values: NDArray[Any] | Sequence[Any]) -> Any:
    """A column of numbers or strings."""
    arrow = require("pyarrow", "parquet")
    text = not isinstance(values, np.ndarray) or values.dtype.kind in "OU"
    return arrow.array(values, arrow.string()) if text else arrow.array(values)


@contextlib.contextmanager
def new_file(place: Place, path: Path) -> Iterator[Path]:
    """A name to write to; what is there when the block ends is on disk under ``path``, whole."""
    unfinished = place.unfinished(path)
    try:
        with naming(path):
            yield unfinished
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            place.check()
            unfinished.replace(path)
            flush_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def write_columns(
    place: Place, path: Path, columns: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    """Write a parquet file of a work in one step, with facts about it in its metadata."""
    arrow = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    table = arrow.table(dict(columns)).replace_schema_metadata({FACTS: json.dumps(facts)})
    with new_file(place, path) as unfinished:
        parquet.write_table(
            table, unfinished, compression="NONE", use_dictionary=False, write_statistics=False,
            write_page_checksum=True,
        )  # fmt: skip


def read_columns(path: Path, names: Sequence[str] | None = None) -> Any:
    """Columns of a parquet file, compared with their checksums; an arrow table.

    Raises:
        DamagedFileError: it is missing or damaged; the message names it.
        InputError: it has no such columns.
    """
    parquet = require("pyarrow.parquet", "parquet")
    checked = {"page_checksum_verification": True}
    with naming_damage(path), parquet.ParquetFile(path, **checked) as file:
        missing = [name for name in names or () if name not in file.schema_arrow.names]
        if missing:
            raise InputError(
                f"{path} has no column {missing[0]}, only "
                f"{', '.join(file.schema_arrow.names) or 'none at all'}; expected a file of "
                "`flowhash bulk encode`"
            )
        return file.read(columns=None if names is None else list(names))


def read_head(path: Path) -> tuple[Any, int, dict[str, Any], int]:
    """The schema of a parquet file, its rows, what we have noted in it, and its bytes unpacked."""
    parquet = require("pyarrow.parquet", "parquet")
    with naming_damage(path):
        head = parquet.read_metadata(path)
        facts = json.loads((head.metadata or {}).get(FACTS, b"{}"))
        size = sum(head.row_group(group).total_byte_size for group in range(head.num_row_groups))
        return head.schema.to_arrow_schema(), int(head.num_rows), dict(facts), size


@contextlib.contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Whatever goes wrong with reading a file is said with its name."""
    arrow = require("pyarrow", "parquet")
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise DamagedFileError(f"{path} is no file; remove it, or give other files")
    try:
        yield
    except (DamagedFileError, InputError):
        raise
    except (arrow.ArrowException, OSError, ValueError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DamagedFileError(
            f"{path} cannot be read as a parquet file: {reason}; remove it and run the command "
            "that made it again, which makes only what is missing"
        ) from error


def rows_of(path: Path, name: str, column: Any, dtype: Any) -> NDArray[Any]:
    """A column of lists, all of one length, as an array [n, width]."""
    arrow = require("pyarrow", "parquet")
    column = column.combine_chunks()
    kind = column.type
    if arrow.types.is_fixed_size_list(kind):
        width = kind.list_size
    elif arrow.types.is_list(kind) or arrow.types.is_large_list(kind):
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        width = int(lengths[0]) if len(lengths) == 1 else -1
    else:
        width = -1
    values = column.flatten() if width >= 0 else column
    if width < 0 or column.null_count or values.null_count:
        raise InputError(
            f"{path}: the column {name} has type {kind}; expected lists of numbers, all of one "
            "length, without gaps"
        )
    numbers = np.asarray(values.to_numpy(zero_copy_only=False))
    if numbers.dtype.kind not in ("iu" if np.dtype(dtype).kind == "i" else "iuf"):
        raise InputError(
            f"{path}: the column {name} holds {numbers.dtype}, not {np.dtype(dtype)}; write it "
            "with the right type"
        )
    return np.require(numbers, dtype, ["C"]).reshape(len(column), width)
