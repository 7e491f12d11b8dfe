"""The parquet files of bulk work: their columns, items that were encoded, answers to queries.

Arrays become columns and back without a look at single rows.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.bulk.work_folder import Place, part_path, read_plan
from flowhash.errors import DamagedFileError, InputError, StorageError, reason
from flowhash.extras import require
from flowhash.table import Hits

FACTS = b"flowhash"  # the key of our JSON in a file's metadata
# Columns that are of one type in all files.
ALIKE = ("id", "code", "embedding", "buckets", "activations")


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


def write_columns(
    place: Place, part: int, columns: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    """Write the parquet file of a part in one step, with facts about it in its metadata."""
    arrow = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    table = arrow.table(dict(columns)).replace_schema_metadata({FACTS: json.dumps(facts)})
    with place.new_file(part_path(place.folder, part)) as unfinished:
        parquet.write_table(
            table, unfinished, compression="NONE", use_dictionary=False, write_statistics=False,
            write_page_checksum=True,
        )  # fmt: skip


def read_columns(path: Path, names: list[str] | None = None) -> Any:
    """Columns of a parquet file, compared with their checksums; an arrow table.

    Raises:
        DamagedFileError: it is missing or damaged; the message names it.
        InputError: it has no such columns: it was written anew since :func:`open_encoded`.
    """
    parquet = require("pyarrow.parquet", "parquet")
    checked = {"page_checksum_verification": True}
    with naming_damage(path), parquet.ParquetFile(path, **checked) as file:
        _check_columns(path, file.schema_arrow, names or ())
        return file.read(columns=names)


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
        raise DamagedFileError(
            f"{path} cannot be read as a parquet file: {reason(error)}; remove it and run the "
            "command that made it again, which makes only what is missing"
        ) from error


def rows_of(path: Path, name: str, column: Any, dtype: Any) -> NDArray[Any]:
    """A column of lists of a fixed size as an array [n, width]."""
    width = _width(path, name, column.type)  # again: the file may have been written anew
    column = column.combine_chunks()
    values = column.flatten()
    if column.null_count or values.null_count:
        raise InputError(
            f"{path}: the column {name} has gaps; expected lists of numbers, all of one length"
        )
    numbers = np.asarray(values.to_numpy(zero_copy_only=False))
    if numbers.dtype.kind not in ("iu" if np.dtype(dtype).kind == "i" else "iuf"):
        raise InputError(
            f"{path}: the column {name} holds {numbers.dtype}, not {np.dtype(dtype)}; write it "
            "with the right type"
        )
    return np.require(numbers, dtype, ["C"]).reshape(len(column), width)


@dataclass(frozen=True)
class EncodedFiles:
    """Encoded items in files; None is what the files do not say."""

    place: Path  # the folder or file, for messages
    files: tuple[Path, ...]  # in their order
    rows: tuple[int, ...]  # of each file
    sizes: tuple[int, ...]  # bytes of each file, unpacked
    widths: dict[str, int]  # of the lists of each column: code has k numbers, embedding dim
    ids: str | None  # "int64" or "string"
    buckets: int | None  # d
    encoder: str | None  # the fingerprint
    payloads: bool  # whether all files have them
    # Whether embeddings are the vectors themselves, but moved by the encoder, so that their angles
    # and products are other ones.
    moved: bool


def open_encoded(place: Path, wanted: Sequence[str]) -> EncodedFiles:
    """Look at the files; nothing but their ends is read.

    Args:
        place: a folder of parquet files, or one.
        wanted: columns that they must have.

    Raises:
        InputError: nothing is there, columns are missing, or the files do not fit each other.
        StorageError: the work that writes them is not finished.
        DamagedFileError: a file cannot be read; the message names it.
    """
    files = _files(place)
    heads = [(path, *read_head(path)) for path in files]
    first, schema, _, facts, _ = heads[0]
    for path, other, _, noted, _ in heads:
        _check_columns(path, other, wanted)
        differs = [
            name for name in ALIKE
            if name in schema.names
            and (name not in other.names or other.field(name).type != schema.field(name).type)
        ]  # fmt: skip
        if differs or noted != facts:
            raise InputError(
                f"{path} does not fit {first}: {differs[0] if differs else 'the encoder'} is "
                "another; give files of one `flowhash bulk encode`"
            )
    rows = tuple(count for _, _, count, _, _ in heads)
    if not sum(rows):
        raise InputError(f"{place} has no rows; encode at least one item")
    return EncodedFiles(
        place, tuple(files), rows, tuple(size for *_, size in heads), _widths(first, schema),
        _id_kind(first, schema), facts.get("buckets"), facts.get("encoder"),
        all("payload" in other.names for _, other, *_ in heads), bool(facts.get("moved")),
    )  # fmt: skip


def _check_columns(path: Path, schema: Any, wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in schema.names]
    if missing:
        raise InputError(
            f"{path} has no column {missing[0]}, only {', '.join(schema.names) or 'none'}; "
            "expected files of `flowhash bulk encode`"
        )


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise InputError(f"{place} does not exist; expected a folder of `flowhash bulk encode`")
    plan = read_plan(place)
    files = sorted(path for path in place.glob("*.parquet") if path.name[0] not in "._")
    if plan is not None and plan.command != "encode":
        raise InputError(
            f"{place} holds what `flowhash bulk {plan.command}` found; expected a folder of "
            "`flowhash bulk encode`"
        )
    if plan is not None and len(files) < len(plan.sizes):
        raise StorageError(
            f"{place} has {len(files)} of {len(plan.sizes)} parts; run `flowhash bulk encode` "
            "again, which makes those that are missing"
        )
    if not files:
        raise InputError(f"{place} has no parquet files; expected a folder of `bulk encode`")
    return files


def _widths(path: Path, schema: Any) -> dict[str, int]:
    return {
        name: _width(path, name, schema.field(name).type)
        for name in ALIKE
        if name != "id" and name in schema.names
    }


def _width(path: Path, name: str, kind: Any) -> int:
    arrow = require("pyarrow", "parquet")
    if not arrow.types.is_fixed_size_list(kind):
        raise InputError(
            f"{path}: the column {name} has type {kind}; expected lists of a fixed size, such as "
            "fixed_size_list<float>[64]"
        )
    return int(kind.list_size)


def _id_kind(path: Path, schema: Any) -> str | None:
    arrow = require("pyarrow", "parquet")
    if "id" not in schema.names:
        return None
    kind = schema.field("id").type
    if arrow.types.is_integer(kind):
        return "int64"
    if arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
        return "string"
    raise InputError(f"{path}: the column id has type {kind}; expected whole numbers or strings")


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of a bulk search, or the neighbours of a bulk join.

    Attributes:
        queries: the ids of the queries, or the items whose neighbours these are [n]; None for
            queries without ids.
        hits: what was found for each, as :class:`flowhash.table.Hits` has it.
    """

    queries: NDArray[Any] | None
    hits: Hits


def write_answers(
    place: Place, part: int, rows: NDArray[np.int64], names: NDArray[Any] | None, hits: Hits,
    opened: int,
) -> None:  # fmt: skip
    """Write the answers of a part: a line a query, with the row that it had.

    Only where a query did not open ``opened`` buckets, as the plan of the work says, there is a
    column of how many it did.
    """
    columns = {"row": plain(rows)}
    if names is not None:
        columns["query"] = plain(names)
    columns |= {
        "ids": lists(hits.ids, hits.counts),
        "distances": lists(hits.distances, hits.counts),
        "scanned": plain(hits.scanned),
    }
    if hits.recall is not None or (hits.opened != opened).any():  # else the same for all
        columns["opened"] = plain(hits.opened)
    write_columns(place, part, columns, {"kind": "answers"})


def read_answers(folder: str | Path) -> Answers:
    """All answers that ``bulk search`` or ``bulk neighbours`` wrote, by row.

    Args:
        folder: where they are; the work must be finished.

    Raises:
        InputError: the folder holds no answers.
        StorageError: the work is not finished.
        DamagedFileError: a part is missing or damaged; the message names it.
    """
    folder = Path(folder)
    plan = read_plan(folder)
    if plan is None or plan.command not in ("search", "neighbours"):
        raise InputError(
            f"{folder} holds no answers; expected a folder of `flowhash bulk search` or "
            "`flowhash bulk neighbours`"
        )
    if not plan.finished:
        raise StorageError(f"{folder} is not finished; run the same command again, it goes on")
    count, top = plan.rows, int(plan.settings["top"])
    text = plan.settings["ids"] == "string"
    hits = Hits(
        np.full((count, top), None, object) if text else np.full((count, top), -1, np.int64),
        np.full((count, top), np.inf, np.float32),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        # An item opens its own buckets to find its neighbours.
        np.full(count, plan.settings.get("probe", plan.settings["active"]), np.int32),
        recall=plan.settings.get("recall"),
    )
    queries: NDArray[Any] | None = None
    for part in range(len(plan.sizes)):
        table = read_columns(part_path(folder, part))
        rows = table.column("row").to_numpy()
        _fill(hits, table, rows)
        if "query" in table.column_names:
            names = table.column("query").to_numpy()
            queries = np.empty(count, names.dtype) if queries is None else queries
            queries[rows] = names
    return Answers(queries, hits)


def _fill(hits: Hits, table: Any, rows: NDArray[np.int64]) -> None:
    """Put the answers of one part where they belong."""
    ids, distances = (table.column(name).combine_chunks() for name in ("ids", "distances"))
    counts = ids.value_lengths().to_numpy()
    hits.counts[rows] = counts
    hits.scanned[rows] = table.column("scanned").to_numpy()
    if "opened" in table.column_names:
        hits.opened[rows] = table.column("opened").to_numpy()
    lines, places = np.nonzero(np.arange(hits.ids.shape[1]) < counts[:, None])
    hits.ids[rows[lines], places] = ids.flatten().to_numpy(zero_copy_only=False)
    hits.distances[rows[lines], places] = distances.flatten().to_numpy()
