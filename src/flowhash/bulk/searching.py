"""Very many queries on one table: those of a bucket together, each part with few buckets."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.bulk.answers import write_answers
from flowhash.bulk.columns import new_file
from flowhash.bulk.encoded import Encoded, open_encoded
from flowhash.bulk.job import Runner
from flowhash.bulk.plan import Place, Plan, even_sizes, identity_of
from flowhash.bulk.queries import FOLDER, MappedQueries, Queries, Unpacking, check_queries
from flowhash.bulk.stored import StoredTable
from flowhash.bulk.work import Work
from flowhash.errors import InputError
from flowhash.table.settings import Settings, check_vectors

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
    queries: Queries
    out: Place
    sizes: tuple[int, ...]
    top: int
    probe: int

    def open(self) -> Opened:
        """Map table, queries and the order in which they are asked."""
        order = np.load(self.out.folder / FOLDER / ORDER, mmap_mode="r", allow_pickle=False)
        return Opened(self.table.open(), self.queries.open(), order, np.cumsum([0, *self.sizes]))

    def do(self, opened: Opened, part: int, threads: int | None) -> int:
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
class Opened:
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
        sizes = Queries(files).open().sizes()
    else:
        sizes = (sum(encoded.rows), encoded.widths["buckets"], encoded.widths["embedding"])
    check_queries(queries, sizes, probe, settings.dim)
    count = sizes[0]
    most = rows or max(1, min(ROWS, ANSWERS // top))
    plan = Plan(
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


def _encoded(queries: Path, settings: Settings) -> Encoded | None:
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
    encoded: Encoded | None, files: tuple[Path, ...], out: Path, runner: Runner, restart: bool,
    show: bool,
) -> Queries:  # fmt: skip
    """Queries as files that can be mapped; parquet is unpacked first."""
    folder = out / FOLDER
    if encoded is None:
        folder.mkdir(exist_ok=True)
        return Queries(files)
    plan = Plan("unpack", {"queries": identity_of(files)}, {}, list(encoded.rows))
    with Work(folder, plan, ".npz", restart) as work:
        job = Unpacking(encoded.files, work.place, encoded.ids is not None)
        work.carry_out(job, runner, "read queries", show)
        return Queries(tuple(work.path(part) for part in range(len(plan.sizes))))


def _write_order(place: Place, path: Path, first: NDArray[Any], sizes: list[int]) -> None:
    """Write which queries each part has: those of the same first buckets, rows ascending."""
    order = np.argsort(first, kind="stable").astype(np.int64)
    start = 0
    for size in sizes:
        order[start : start + size].sort()  # neighbouring rows are read together
        start += size
    with new_file(place, path) as unfinished, unfinished.open("wb") as file:
        np.save(file, order, allow_pickle=False)
