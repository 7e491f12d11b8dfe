"""Many queries against one table, in parts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.argument_checks import whole_number
from flowhash.bulk.parquet_files import (
    EncodedFiles,
    open_encoded,
    read_columns,
    rows_of,
    write_answers,
)
from flowhash.bulk.runners import Runner
from flowhash.bulk.work_folder import (
    Place,
    StoredTable,
    Work,
    WorkPlan,
    even_sizes,
    identity_of,
    part_path,
    part_rows,
)
from flowhash.data import npz_array, npz_names
from flowhash.errors import Advice, Argument, InputError
from flowhash.extras import require
from flowhash.table import (
    Strings,
    TableSettings,
    changes_since,
    check_probe,
    check_recall,
    check_vectors,
    opened_in_state,
    pack_strings,
    required_calibration,
    state_of,
    warn_if_old,
)

ROWS = 25_000  # queries of a part: so many that a bucket is multiplied with hundreds of them
ANSWERS = 1 << 22  # places for hits of a part, which bound its memory
ORDER = "order.npy"
KINDS = {  # of the arrays that say which buckets to open
    "buckets": ("iu", "whole numbers [n, m], the buckets of each query in the order to open them"),
    "activations": ("f", "floats [n, d], the network's outputs for each query"),
}


@dataclass(frozen=True)
class Search:
    """A job: the answers of the table to the queries of a part."""

    table: StoredTable
    queries: tuple[Path, ...]  # the files of all of them
    out: Place
    sizes: tuple[int, ...]  # queries of each part
    top: int
    probe: int
    recall: float | None

    def open(self) -> OpenedTable:
        """Map table, queries and the order in which they are asked."""
        order = np.load(self.out.folder / FOLDER / ORDER, mmap_mode="r", allow_pickle=False)
        return OpenedTable(
            self.table.open(), MappedQueries(self.queries, self.recall is not None), order,
            np.cumsum([0, *self.sizes]),
        )  # fmt: skip

    def do(self, opened: OpenedTable, part: int, threads: int | None) -> int:
        """Ask the queries of one part."""
        queries = opened.queries
        first, last = opened.starts[part], opened.starts[part + 1]
        rows: NDArray[np.int64] = np.asarray(opened.order[first:last])
        order = queries.take(queries.orders, rows)[:, : self.probe]
        probe: int | NDArray[np.int32] = self.probe
        if self.recall is not None:
            state = state_of(opened.table)
            order, probe, _ = opened_in_state(
                opened.table, state, order, self.recall, self.top, None, threads
            )
        hits = opened.table.search(
            order, queries.take(queries.embeddings, rows), self.top, probe=probe, threads=threads
        )
        hits.recall = self.recall
        names = queries.take(queries.ids, rows) if queries.named else None
        write_answers(self.out, part, rows, names, hits, self.probe)
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
    recall: float | None = None,
    rows: int | None = None,
    restart: bool = False,
    show: bool = False,
) -> Work:
    """Search a table with queries in files, and write the answers as parquet.

    Args:
        table: its folder.
        queries: a folder of ``bulk encode`` or one file of it, or an ``.npz`` file with the arrays
            buckets [n, m] and embeddings [n, dim], and perhaps ids [n]. With ``recall`` it has
            activations [n, d] in place of the buckets.
        out: folder for the answers; the same call goes on where it was stopped.
        runner: who does it.
        top: how many hits a query gets.
        probe: how many buckets it opens; k by default.
        recall: open as many as this takes, as in :meth:`flowhash.HashTable.search`.
        rows: queries of a part.
        restart: drop what is in ``out`` and begin anew.
        show: whether to show a bar.

    Raises:
        InputError: queries and table do not fit, or ``out`` holds something else.
    """
    out, queries = out.absolute(), queries.absolute()
    known = StoredTable.of(table)
    settings = known.settings
    if recall is not None:
        _check_recall(known, recall, whole_number("top", top, 1), probe)
        probe = settings.buckets
    probe = None if probe is None else whole_number("probe", probe, 1)
    most = part_rows(rows, max(1, min(ROWS, ANSWERS // whole_number("top", top, 1))))
    name = "buckets" if recall is None else "activations"
    encoded = _encoded(queries, settings, name)
    files = (queries,) if encoded is None else encoded.files
    if encoded is None:
        sizes = MappedQueries(files, recall is not None).sizes()
    else:
        sizes = (sum(encoded.rows), encoded.widths[name], encoded.widths["embedding"])
    if recall is not None and sizes[1] != settings.buckets:
        raise InputError(
            f"the queries of {queries} have {sizes[1]} activations each, but the table has "
            f"{settings.buckets} buckets; encode them with the encoder of the table"
        )
    if probe is None:  # a table may have room for more buckets an item than queries name
        probe = max(1, min(settings.active, sizes[1]))
    check_probe(probe, settings.buckets)
    _check_sizes(queries, sizes, probe, settings.dim)
    count = sizes[0]
    plan = WorkPlan(
        "search",
        {"table": known.identity(), "queries": identity_of(files)},
        {
            "top": top,
            **({"probe": probe} if recall is None else {"recall": recall}),
            **asdict(settings),
        },
        even_sizes(count, most),
    )
    with Work(out, plan, restart=restart) as work:
        if work.plan.finished and not work.missing():
            return work
        mapped = _mapped(encoded, files, out, runner, restart, show, name)
        first = MappedQueries(mapped, recall is not None).first_buckets()
        _write_order(work.place, out / FOLDER / ORDER, first, plan.sizes)
        job = Search(known, mapped, work.place, tuple(plan.sizes), top, probe, recall)
        work.carry_out(job, runner, "search", show)
        work.finish()
        shutil.rmtree(out / FOLDER, ignore_errors=True)
    return work


def _check_recall(table: StoredTable, recall: float, top: int, probe: int | None) -> None:
    """Refuse a recall that the table cannot promise, before there is a folder."""
    check_recall(probe, None)
    with table.open() as opened:
        if opened.buckets == 1:
            return
        found = required_calibration(opened.calibration)
        found.threshold(recall, top)
        warn_if_old(found, changes_since(found, opened.notes(), len(opened)), 3)


def _encoded(queries: Path, settings: TableSettings, name: str) -> EncodedFiles | None:
    """The parquet files of queries, which must fit the table; None for an ``.npz`` file."""
    if queries.is_file() and queries.suffix.lower() not in (".npz", ".parquet"):
        raise InputError(
            f"{queries} is neither a folder of `bulk encode` nor an .npz or .parquet file of one;",
            Advice.ENCODE_FIRST,
        )
    if queries.suffix.lower() == ".npz":
        if not queries.is_file():
            raise InputError(f"{queries} is not a file; give queries as `bulk encode` writes them")
        return None
    try:
        encoded = open_encoded(queries, (name, "embedding"))
    except InputError as error:
        if name != "activations" or "no column activations" not in str(error):
            raise
        raise InputError(
            f"{queries} has no activations, which tell how many buckets a recall takes; encode the "
            "queries with",
            Argument("activations", "True"),
        ) from error
    check_vectors(settings.encoder, encoded.encoder)
    if encoded.buckets not in (None, settings.buckets):
        raise InputError(
            f"{queries} is of an encoder with {encoded.buckets} buckets, but the table has "
            f"{settings.buckets}; encode the queries with the encoder of the table"
        )
    return encoded


def _mapped(
    encoded: EncodedFiles | None, files: tuple[Path, ...], out: Path, runner: Runner, restart: bool,
    show: bool, name: str,
) -> tuple[Path, ...]:  # fmt: skip
    """Files of queries that can be mapped; parquet is unpacked first."""
    folder = out / FOLDER
    if encoded is None:
        folder.mkdir(exist_ok=True)
        return files
    plan = WorkPlan("unpack", {"queries": identity_of(files)}, {}, list(encoded.rows))
    with Work(folder, plan, ".npz", restart) as work:
        job = Unpacking(encoded.files, work.place, encoded.ids is not None, name)
        work.carry_out(job, runner, "read queries", show)
        return tuple(work.path(part) for part in range(len(plan.sizes)))


def _write_order(place: Place, path: Path, first: NDArray[Any], sizes: list[int]) -> None:
    """Write which queries each part has: those of the same first buckets, rows ascending."""
    order = np.argsort(first, kind="stable").astype(np.int64)
    start = 0
    for size in sizes:
        order[start : start + size].sort()  # neighbouring rows are read together
        start += size
    with place.new_file(path) as unfinished, unfinished.open("wb") as file:
        np.save(file, order, allow_pickle=False)


FOLDER = "_queries"  # in the folder of the answers


@dataclass(frozen=True)
class Unpacking:
    """A job: the parquet files of queries as ``.npz`` files."""

    files: tuple[Path, ...]  # one a part
    out: Place
    named: bool  # whether the queries have ids
    order: str  # the column that says which buckets to open: buckets, or activations

    def open(self) -> None:
        """Nothing is shared between files."""

    def do(self, opened: None, part: int, threads: int | None) -> int:
        """Unpack one file."""
        source = self.files[part]
        names = [self.order, "embedding", *(["id"] if self.named else [])]
        kind = np.int32 if self.order == "buckets" else np.float32
        table = read_columns(source, names)
        arrays = {
            self.order: rows_of(source, self.order, table.column(self.order), kind),
            "embeddings": rows_of(source, "embedding", table.column("embedding"), np.float32),
        }
        if self.named:
            arrays |= _ids(source, table.column("id"))
        path = part_path(self.out.folder, part, ".npz")
        with self.out.new_file(path) as unfinished, unfinished.open("wb") as file:
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


class MappedQueries:
    """Queries in ``.npz`` files, one after another, mapped; rows are counted through them.

    Args:
        files: with the arrays buckets [n, m] int32, embeddings [n, dim] float32 and perhaps ids
            [n], or id_bytes and id_offsets for strings that were unpacked.
        activations: whether they have activations [n, d] float32 in place of the buckets.
    """

    def __init__(self, files: Sequence[Path], activations: bool) -> None:
        name = "activations" if activations else "buckets"
        self.orders = [_array(path, name) for path in files]
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
        self._starts = np.cumsum([0, *(len(part) for part in self.orders)])
        for path, order, embeddings in zip(files, self.orders, self.embeddings, strict=True):
            _check(path, name, order, embeddings)
        self._activations = activations

    def __len__(self) -> int:
        return int(self._starts[-1])

    def sizes(self) -> tuple[int, int, int]:
        """How many queries, buckets or activations of each, and numbers of each."""
        return len(self), self.orders[0].shape[1], self.embeddings[0].shape[1]

    def first_buckets(self) -> NDArray[Any]:
        """The bucket that each query opens first, of activations about so [n]."""
        if self._activations:
            return np.concatenate([part.argmax(axis=1) for part in self.orders])
        return np.concatenate([part[:, 0] for part in self.orders])

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


def _check_sizes(place: Path, sizes: tuple[int, int, int], probe: int, dim: int) -> None:
    """Refuse queries that the table cannot answer; ``sizes`` are those of MappedQueries."""
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
            f"is {probe}, but {place} names only {width} buckets a query; open fewer, or encode "
            "the queries with",
            Argument("probe", str(probe)),
            "probe",
        )


def _array(path: Path, name: str) -> NDArray[Any]:
    names = npz_names(path)
    if name not in names:
        order = "activations" if name == "activations" else "buckets"
        raise InputError(
            f"{path} has {', '.join(names) or 'nothing'}; expected the arrays {order} and "
            "embeddings, and perhaps ids"
        )
    return npz_array(path, name)


def _check(path: Path, name: str, order: NDArray[Any], embeddings: NDArray[Any]) -> None:
    kinds, words = KINDS[name]
    if order.ndim != 2 or order.dtype.kind not in kinds or not order.shape[1]:
        raise InputError(
            f"{path}: {name} has shape {order.shape} and dtype {order.dtype}; expected {words}"
        )
    if embeddings.ndim != 2 or len(embeddings) != len(order) or embeddings.dtype.kind not in "fiu":
        raise InputError(
            f"{path}: embeddings has shape {embeddings.shape} and dtype {embeddings.dtype}; "
            f"expected numbers [{len(order)}, dim], one row for each of the {name}"
        )
