"""Many queries against one table, in parts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.bulk.answer_files import write_answers
from flowhash.bulk.encoded_files import EncodedFiles, open_encoded
from flowhash.bulk.parquet_columns import new_file, read_columns, rows_of
from flowhash.bulk.runners import Runner
from flowhash.bulk.work_folder import (
    Place,
    StoredTable,
    Work,
    WorkPlan,
    even_sizes,
    identity_of,
    part_name,
)
from flowhash.data import npz_array, npz_names
from flowhash.errors import InputError
from flowhash.extras import require
from flowhash.table import Strings, TableSettings, check_vectors, pack_strings

ROWS = 25_000  # queries of a part: so many that a bucket is multiplied with hundreds of them
ANSWERS = 1 << 22  # places for hits of a part, which bound its memory
ORDER = "order.npy"


@dataclass(frozen=True)
class Search:
    """A job: the answers of the table to the queries of a part.

    Attributes:
        table: what is searched.
        queries: all of them.
        out: where answers go.
        sizes: queries of each part.
        top: hits of a query.
        probe: buckets that a query opens.
    """

    table: StoredTable
    queries: QueryRows
    out: Place
    sizes: tuple[int, ...]
    top: int
    probe: int

    def open(self) -> OpenedTable:
        """Map table, queries and the order in which they are asked."""
        order = np.load(self.out.folder / FOLDER / ORDER, mmap_mode="r", allow_pickle=False)
        return OpenedTable(
            self.table.open(), self.queries.open(), order, np.cumsum([0, *self.sizes])
        )

    def do(self, opened: OpenedTable, part: int, threads: int | None) -> int:
        """Ask the queries of one part."""
        queries = opened.queries
        first, last = opened.starts[part], opened.starts[part + 1]
        rows: NDArray[np.int64] = np.asarray(opened.order[first:last])
        order = queries.take(queries.buckets, rows)[:, : self.probe]
        hits = opened.table.search(
            order, queries.take(queries.embeddings, rows), self.top, probe=self.probe,
            threads=threads,
        )  # fmt: skip
        names = queries.take(queries.ids, rows) if queries.named else None
        write_answers(self.out, part, rows, names, hits)
        return len(rows)


@dataclass(frozen=True, eq=False)
class OpenedTable:
    """What the parts of a search share."""

    table: Any
    queries: MappedQueries
    order: NDArray[np.int64]
    starts: NDArray[np.int64]

    def close(self) -> None:
        """Let go of the table."""
        self.table.close()


def search(
    table: Path,
    queries: Path,
    out: Path,
    runner: Runner,
    *,
    top: int = 10,
    probe: int | None = None,
    rows: int | None = None,
    restart: bool = False,
    show: bool = False,
) -> Work:
    """Search a table with queries in files, and write the answers as parquet.

    Args:
        table: its folder.
        queries: a folder of ``bulk encode`` or one file of it, or an ``.npz`` file with the arrays
            buckets [n, m] and embeddings [n, dim], and perhaps ids [n].
        out: folder for the answers; the same call goes on where it was stopped.
        runner: who does it.
        top: how many hits a query gets.
        probe: how many buckets it opens; k by default.
        rows: queries of a part.
        restart: drop what is in ``out`` and begin anew.
        show: whether to show a bar.

    Raises:
        InputError: queries and table do not fit, or ``out`` holds something else.
    """
    out, queries = out.absolute(), queries.absolute()
    known = StoredTable.of(table)
    settings = known.settings
    probe = settings.active if probe is None else probe
    if top < 1 or probe < 1 or (rows is not None and rows < 1):
        raise InputError(f"top is {top}, probe {probe}, rows {rows}; expected 1 or more")
    encoded = _encoded(queries, settings)
    files = (queries,) if encoded is None else encoded.files
    if encoded is None:
        sizes = QueryRows(files).open().sizes()
    else:
        sizes = (sum(encoded.rows), encoded.widths["buckets"], encoded.widths["embedding"])
    check_queries(queries, sizes, probe, settings.dim)
    count = sizes[0]
    most = rows or max(1, min(ROWS, ANSWERS // top))
    plan = WorkPlan(
        "search",
        {"table": known.identity(), "queries": identity_of(files)},
        {"top": top, "probe": probe, **asdict(settings)},
        even_sizes(count, most),
    )
    work = Work(out, plan, restart=restart)
    with work:
        if work.plan.finished and not work.missing():
            return work
        mapped = _mapped(encoded, files, out, runner, restart, show)
        _write_order(work.place, out / FOLDER / ORDER, mapped.open().first_buckets(), plan.sizes)
        job = Search(known, mapped, work.place, tuple(plan.sizes), top, probe)
        work.carry_out(job, runner, "search", show)
        work.finish()
        shutil.rmtree(out / FOLDER, ignore_errors=True)
    return work


def _encoded(queries: Path, settings: TableSettings) -> EncodedFiles | None:
    """The parquet files of queries, which must fit the table; None for an ``.npz`` file."""
    if queries.is_file() and queries.suffix.lower() not in (".npz", ".parquet"):
        raise InputError(
            f"{queries} is neither a folder of `bulk encode` nor an .npz or .parquet file of one; "
            "items that are not encoded yet need --encoder"
        )
    if queries.suffix.lower() == ".npz":
        if not queries.is_file():
            raise InputError(f"{queries} is not a file; give queries as `bulk encode` writes them")
        return None
    encoded = open_encoded(queries, ("buckets", "embedding"))
    check_vectors(settings.encoder, encoded.encoder)
    if encoded.buckets not in (None, settings.buckets):
        raise InputError(
            f"{queries} is of an encoder with {encoded.buckets} buckets, but the table has "
            f"{settings.buckets}; encode the queries with the encoder of the table"
        )
    return encoded


def _mapped(
    encoded: EncodedFiles | None, files: tuple[Path, ...], out: Path, runner: Runner, restart: bool,
    show: bool,
) -> QueryRows:  # fmt: skip
    """Queries as files that can be mapped; parquet is unpacked first."""
    folder = out / FOLDER
    if encoded is None:
        folder.mkdir(exist_ok=True)
        return QueryRows(files)
    plan = WorkPlan("unpack", {"queries": identity_of(files)}, {}, list(encoded.rows))
    with Work(folder, plan, ".npz", restart) as work:
        job = Unpacking(encoded.files, work.place, encoded.ids is not None)
        work.carry_out(job, runner, "read queries", show)
        return QueryRows(tuple(work.path(part) for part in range(len(plan.sizes))))


def _write_order(place: Place, path: Path, first: NDArray[Any], sizes: list[int]) -> None:
    """Write which queries each part has: those of the same first buckets, rows ascending."""
    order = np.argsort(first, kind="stable").astype(np.int64)
    start = 0
    for size in sizes:
        order[start : start + size].sort()  # neighbouring rows are read together
        start += size
    with new_file(place, path) as unfinished, unfinished.open("wb") as file:
        np.save(file, order, allow_pickle=False)


FOLDER = "_queries"  # in the folder of the answers


@dataclass(frozen=True)
class Unpacking:
    """A job: the parquet files of queries as ``.npz`` files.

    Attributes:
        files: one a part.
        out: where they go.
        named: whether the queries have ids.
    """

    files: tuple[Path, ...]
    out: Place
    named: bool

    def open(self) -> None:
        """Nothing is shared between files."""

    def do(self, opened: None, part: int, threads: int | None) -> int:
        """Unpack one file."""
        source = self.files[part]
        names = ["buckets", "embedding", *(["id"] if self.named else [])]
        table = read_columns(source, names)
        arrays = {
            "buckets": rows_of(source, "buckets", table.column("buckets"), np.int32),
            "embeddings": rows_of(source, "embedding", table.column("embedding"), np.float32),
        }
        if self.named:
            arrays |= _ids(source, table.column("id"))
        path = self.out.folder / f"{part_name(part)}.npz"
        with new_file(self.out, path) as unfinished, unfinished.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        return int(table.num_rows)


def _ids(path: Path, column: Any) -> dict[str, NDArray[Any]]:
    """Ids as arrays of a file: numbers, or all strings as bytes one after another."""
    arrow = require("pyarrow", "parquet")
    if column.null_count:
        raise InputError(
            f"{path}: {column.null_count} queries have no id; give every query one, or leave the "
            "column id out"
        )
    if arrow.types.is_integer(column.type):
        return {"ids": column.to_numpy()}
    packed = pack_strings(text.encode() for text in column.to_pylist())
    return {"id_bytes": packed.content, "id_offsets": packed.offsets}


@dataclass(frozen=True, eq=False)
class Texts:
    """Strings one after another, of which only those that are asked for are read."""

    packed: Strings

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Some of them [n] object."""
        found = np.empty(len(rows), object)
        found[:] = [self.packed.at(row).decode() for row in rows.tolist()]
        return found


@dataclass(frozen=True)
class QueryRows:
    """Queries in ``.npz`` files, one after another.

    Attributes:
        files: with the arrays buckets [n, m] int32, embeddings [n, dim] float32 and perhaps ids
            [n], or id_bytes and id_offsets for strings that were unpacked.
    """

    files: tuple[Path, ...]

    def open(self) -> MappedQueries:
        """Map the files."""
        return MappedQueries(self.files)


class MappedQueries:
    """The arrays of all files, mapped; rows are counted through them."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.buckets = [_array(path, "buckets") for path in files]
        self.embeddings = [_array(path, "embeddings") for path in files]
        names = npz_names(files[0])
        self.ids: list[NDArray[Any] | Texts] = []
        if "id_offsets" in names:
            self.ids = [
                Texts(Strings(_array(path, "id_bytes"), _array(path, "id_offsets")))
                for path in files
            ]
        elif "ids" in names:
            self.ids = [_array(path, "ids") for path in files]
        self.named = bool(self.ids)
        self._starts = np.cumsum([0, *(len(part) for part in self.buckets)])
        for path, buckets, embeddings in zip(files, self.buckets, self.embeddings, strict=True):
            _check(path, buckets, embeddings)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def sizes(self) -> tuple[int, int, int]:
        """How many queries, buckets of each, and numbers of each."""
        return len(self), self.buckets[0].shape[1], self.embeddings[0].shape[1]

    def first_buckets(self) -> NDArray[Any]:
        """The bucket that each query opens first [n]."""
        return np.concatenate([part[:, 0] for part in self.buckets])

    def take(self, arrays: Sequence[NDArray[Any] | Texts], rows: NDArray[np.int64]) -> NDArray[Any]:
        """Rows, which ascend, of arrays that lie one after another."""
        edges = np.searchsorted(rows, self._starts)
        pieces = [
            array[rows[first:last] - start]
            for array, start, first, last in zip(
                arrays, self._starts[:-1], edges[:-1], edges[1:], strict=True
            )
            if first < last
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def check_queries(place: Path, sizes: tuple[int, int, int], probe: int, dim: int) -> None:
    """Refuse queries that the table cannot answer, before the work begins.

    Args:
        place: what the message calls them.
        sizes: how many they are, how many buckets each names, and how many numbers it has.
        probe: how many buckets are to be opened.
        dim: of the table.
    """
    count, width, size = sizes
    if not count:
        raise InputError(f"{place} has no queries; give at least one")
    if size != dim:
        raise InputError(
            f"the queries of {place} have {size} numbers each, but the table has dim={dim}; encode "
            "them with the encoder of the table"
        )
    if probe > width:
        raise InputError(
            f"--probe is {probe}, but {place} names only {width} buckets a query; encode the "
            f"queries with --probe {probe}, or open fewer"
        )


def _array(path: Path, name: str) -> NDArray[Any]:
    names = npz_names(path)
    if name not in names:
        raise InputError(
            f"{path} has {', '.join(names) or 'nothing'}; expected the arrays buckets and "
            "embeddings, and perhaps ids"
        )
    return npz_array(path, name)


def _check(path: Path, buckets: NDArray[Any], embeddings: NDArray[Any]) -> None:
    if buckets.ndim != 2 or buckets.dtype.kind not in "iu" or not buckets.shape[1]:
        raise InputError(
            f"{path}: buckets has shape {buckets.shape} and dtype {buckets.dtype}; expected whole "
            "numbers [n, m], the buckets of each query in the order to open them"
        )
    if (
        embeddings.ndim != 2
        or len(embeddings) != len(buckets)
        or embeddings.dtype.kind not in "fiu"
    ):
        raise InputError(
            f"{path}: embeddings has shape {embeddings.shape} and dtype {embeddings.dtype}; "
            f"expected numbers [{len(buckets)}, dim], one row for each of the buckets"
        )
