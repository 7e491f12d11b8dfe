"""A table from encoded files: segments are built side by side, and taken over in one step."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowhash.bulk.parquet_files import EncodedFiles, open_encoded, read_columns, rows_of
from flowhash.bulk.runners import Runner
from flowhash.bulk.work_folder import (
    ADOPTING,
    Interrupted,
    Place,
    StoredTable,
    Work,
    WorkPlan,
    identity_of,
    part_path,
    part_rows,
)
from flowhash.durable_files import flush_folder, naming
from flowhash.errors import Argument, InputError, StorageError
from flowhash.indexing import TableChoices
from flowhash.table import (
    HashTable,
    TableFolder,
    TableSettings,
    check_vectors,
)

FOLDER = "_bulk"  # in the table's folder: the plan, and segments that are not yet the table's
NOTE = "bulk index"  # of the table: the work whose segments it has, until that is finished
SEGMENT_BYTES = 1 << 28  # of embeddings in a segment
FILE_BYTES = 1 << 28  # of files that become one: payloads may be larger than embeddings


USUAL = TableChoices()


def index(
    encoded: Path,
    out: Path,
    runner: Runner,
    choices: TableChoices = USUAL,
    *,
    rows: int | None = None,
    compact: bool = False,
    restart: bool = False,
    show: bool = False,
) -> tuple[int, Work]:
    """Put encoded items into a table, as adding the files one after another would.

    Args:
        encoded: a folder of ``bulk encode``, or one file of it.
        out: the table's folder; one that is there is added to.
        runner: who builds the segments.
        choices: of a new table.
        rows: items of a segment, about; 256 MiB of files by default.
        compact: merge everything into one segment at the end.
        restart: drop segments that were built before, and begin anew.
        show: whether to show a bar.

    Returns:
        How many items the table has, and the work.

    Raises:
        InputError: the items do not fit the table.
        StorageError: files cannot be read or written.
    """
    items = open_encoded(encoded, COLUMNS)
    groups, sizes = _groups(items, rows)
    with _open_table(out, items, choices) as table:
        settings = StoredTable.of(out).settings
        place = out.absolute() / FOLDER
        plan = WorkPlan("index", {"encoded": identity_of(items.files)}, asdict(settings), sizes)
        with Work(place, plan, "", restart, takes_over=True) as work:
            if work.plan.finished:
                work.before = work.done = work.plan.rows
            else:
                job = Building(groups, settings, work.place, items.payloads, items.encoder)
                _adopt(table, work, job, runner, show)
            try:
                _drop_parts(table, work)
                table.merge_segments()
                if compact:
                    table.compact()
            except KeyboardInterrupt:
                raise Interrupted("the table has all items, but is not tidied up") from None
        return len(table), work


def _adopt(table: HashTable, work: Work, job: Building, runner: Runner, show: bool) -> None:
    """Build what is missing, and make all of it the table's, once.

    The table says whether an earlier command got so far, and died then: its note of the work is
    committed with the segments.
    """
    token = work.plan.token
    if table.notes().get(NOTE) != token:
        _refuse_old_note(work)
        work.carry_out(job, runner, "build segments", show)
        parts = [work.path(part) for part in range(len(work.plan.sizes))]
        try:
            table.adopt(parts, {NOTE: token})
        except KeyboardInterrupt:
            inside = table.notes().get(NOTE) == token
            where = "in the table" if inside else "built, none is in the table"
            raise Interrupted(f"all segments are {where}") from None
    work.finish()


def _refuse_old_note(work: Work) -> None:
    """Refuse work of an earlier version that may be in the table, or not: it noted that apart."""
    try:
        unsure = json.loads((work.folder / ADOPTING).read_bytes())["token"] == work.plan.token
    except (OSError, KeyError, TypeError, ValueError):
        return  # cut short before it was flushed: nothing was committed after it
    if unsure:
        raise StorageError(
            f"{work.folder}: an earlier FlowHash was interrupted as it put the items into the "
            "table; to put them in once more, give",
            advice=Argument("restart", "True"),
        )


def _drop_parts(table: HashTable, work: Work) -> None:
    """Remove what is in the table by now, and the note that it is."""
    (work.folder / ADOPTING).unlink(missing_ok=True)
    for part in range(len(work.plan.sizes)):
        shutil.rmtree(work.path(part), ignore_errors=True)
    table.note(NOTE, None)


def _groups(
    items: EncodedFiles, rows: int | None
) -> tuple[tuple[tuple[Path, ...], ...], list[int]]:
    """Neighbouring files that become one segment, and the rows of each group."""
    most = part_rows(rows, max(1, SEGMENT_BYTES // (4 * items.widths["embedding"])))
    groups: list[list[Path]] = []
    sizes: list[int] = []
    held = 0
    for path, count, size in zip(items.files, items.rows, items.sizes, strict=True):
        too_large = rows is None and held + size > FILE_BYTES
        if not groups or sizes[-1] + count > most or too_large:
            groups.append([])
            sizes.append(0)
            held = 0
        groups[-1].append(path)
        sizes[-1] += count
        held += size
    return tuple(tuple(path.absolute() for path in group) for group in groups), sizes


def _open_table(out: Path, items: EncodedFiles, choices: TableChoices) -> HashTable:
    """The table that is there, which must fit, or a new one."""
    buckets = items.buckets or choices.buckets
    if (out / "manifest.json").exists():
        table = HashTable.open(out, "r+")
        wanted = {
            "buckets": buckets, "dim": items.widths["embedding"], "active": items.widths["code"],
            "id_kind": items.ids, "metric": choices.metric, "dtype": choices.dtype,
        }  # fmt: skip
        try:
            check_vectors(table.encoder, items.encoder)
            for name, value in wanted.items():
                has = getattr(table, name)
                room = name == "active" and has > value  # for second buckets
                if value is not None and value != has and not room:
                    raise InputError(
                        f"{out} has {name}={has}, but {name}={value} came with "
                        f"{items.place}; give another table, or items that fit"
                    )
        except BaseException:
            table.close()
            raise
        return table
    if buckets is None:
        raise InputError(
            f"{items.place} does not say how many buckets there are, because `bulk encode` did not "
            "write it; give",
            Argument("buckets", "...", "TableChoices({})"),
        )
    assert items.ids is not None
    if items.moved and choices.metric in ("cosine", "inner"):
        raise InputError(
            f"metric is {choices.metric!r}, but the encoder of {items.place} subtracts a mean from "
            "the vectors, whose angles and products are then other ones; choose euclidean"
        )
    return HashTable.create(
        out, buckets=buckets, dim=items.widths["embedding"], active=items.widths["code"],
        metric=choices.metric or "euclidean", dtype=choices.dtype or "float32", ids=items.ids,
        encoder=items.encoder,
    )  # fmt: skip


COLUMNS = ["id", "code", "embedding"]


@dataclass(frozen=True)
class Building:
    """A job: each part is a table of one segment."""

    files: tuple[tuple[Path, ...], ...]  # of each part, in their order
    settings: TableSettings
    out: Place
    payloads: bool  # whether the files have any
    encoder: str | None  # the fingerprint of the files

    def open(self) -> None:
        """Nothing is shared between parts."""

    def do(self, opened: None, part: int, threads: int | None) -> int:
        """Build one table, and give it its name when it is on disk."""
        path = part_path(self.out.folder, part, "")
        unfinished = self.out.unfinished(path)
        try:
            with naming(path):
                unfinished.mkdir()
            rows = self._build(unfinished, self.files[part])
            self.out.check()
            try:
                unfinished.rename(path)
            except OSError:
                if not path.exists():  # then another worker was faster
                    raise
            flush_folder(self.out.folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return rows

    def _build(self, path: Path, files: tuple[Path, ...]) -> int:
        names = [*COLUMNS, *(["payload"] if self.payloads else [])]
        tables = [(file, read_columns(file, names)) for file in files]
        codes = [rows_of(file, "code", table.column("code"), np.int32) for file, table in tables]
        vectors = [
            rows_of(file, "embedding", table.column("embedding"), np.float32)
            for file, table in tables
        ]
        ids = [_ids(file, table.column("id"), self.settings.ids) for file, table in tables]
        texts: list[Any] = []
        for file, table in tables:
            texts += _payloads(file, table.column("payload")) if self.payloads else []
        count = sum(len(some) for some in codes)
        del tables, table  # payloads are in memory twice otherwise, and may be pictures
        # Not made: the driver may have taken it away.
        folder = TableFolder.create(path, self.settings, make=False)
        with HashTable(self.settings, folder, folder.load()) as made:
            try:
                made.add(
                    np.concatenate(codes), np.concatenate(vectors), np.concatenate(ids),
                    texts or None, encoder=self.encoder,
                )  # fmt: skip
            except InputError as error:
                raise InputError(f"{files[0]}: {error}") from error
        return count


def _ids(path: Path, column: Any, kind: str) -> Any:
    if column.null_count:
        raise InputError(f"{path}: {column.null_count} rows have no id; give every row one")
    return column.to_numpy() if kind == "int64" else np.array(column.to_pylist(), object)


def _payloads(path: Path, column: Any) -> list[Any]:
    try:
        return [None if text is None else json.loads(text) for text in column.to_pylist()]
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: a payload is not JSON ({error}); expected an object or nothing"
        ) from error
