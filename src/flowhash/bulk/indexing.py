"""Encoded items into one table: segments are built in parallel, and taken over in one step."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from flowhash.bulk.building import COLUMNS, Building
from flowhash.bulk.encoded import Encoded, open_encoded
from flowhash.bulk.job import Runner
from flowhash.bulk.plan import Plan, identity_of
from flowhash.bulk.stored import StoredTable
from flowhash.bulk.work import ADOPTING, Interrupted, Work
from flowhash.durable_files import replace_file
from flowhash.errors import InputError, StorageError
from flowhash.table import HashTable
from flowhash.table.segments.segment import SegmentFile
from flowhash.table.settings import check_vectors

FOLDER = "_bulk"  # in the table's folder: the plan, and segments that are not yet the table's
SEGMENT_BYTES = 1 << 28  # of embeddings in a segment
FILE_BYTES = 1 << 28  # of files that become one: payloads may be larger than embeddings


@dataclass(frozen=True)
class TableChoices:
    """Of a new table; None is what the table has that is there, or the usual."""

    metric: str | None = None
    dtype: str | None = None
    buckets: int | None = None


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
        plan = Plan("index", {"encoded": identity_of(items.files)}, asdict(settings), sizes)
        with Work(place, plan, "", restart, takes_over=True) as work:
            if work.plan.finished:
                work.before = work.done = work.plan.rows
            else:
                job = Building(groups, settings, work.place, items.payloads, items.encoder)
                _adopt(table, work, job, runner, show)
            try:
                _drop_parts(work)
                table.merge_segments()
                if compact:
                    table.compact()
            except KeyboardInterrupt:
                raise Interrupted("the table has all items, but is not tidied up") from None
        return len(table), work


def _adopt(table: HashTable, work: Work, job: Building, runner: Runner, show: bool) -> None:
    """Build what is missing, and make all of it the table's, once."""
    note = work.folder / ADOPTING
    if not _is_in(table, work):
        work.carry_out(job, runner, "build segments", show)
        parts = [work.path(part) for part in range(len(work.plan.sizes))]
        known = {"token": work.plan.token, "version": table.version}
        told: list[SegmentFile] = []

        def write_note(files: list[SegmentFile]) -> None:
            told.extend(files)
            body = {**known, "files": [asdict(file) for file in files]}
            replace_file(note, json.dumps(body).encode())

        try:
            table.adopt(parts, write_note)
        except BaseException as error:
            inside = bool(told) and table.has_files(told)
            if not inside:
                note.unlink(missing_ok=True)  # so that others may change the table meanwhile
            if isinstance(error, KeyboardInterrupt):
                where = "in the table" if inside else "built, none is in the table"
                raise Interrupted(f"all segments are {where}") from None
            raise
    work.finish()


def _is_in(table: HashTable, work: Work) -> bool:
    """Whether an earlier command has put everything into the table, and died then.

    Raises:
        StorageError: it cannot be told any more.
    """
    try:
        known = json.loads((work.folder / ADOPTING).read_bytes())
        token, version = known["token"], known["version"]
        files = [SegmentFile(**{**fields, "deleted": None}) for fields in known["files"]]
    except (OSError, KeyError, TypeError, ValueError):
        return False  # cut short before it was flushed: nothing was committed after it
    if token != work.plan.token:
        return False
    if table.has_files(files):
        return True
    if version != table.version:
        # Merged, or deleted, or never there: to put them in again could bring back what others
        # have deleted.
        raise StorageError(
            f"{table.path}: the table was changed after an interrupted bulk index; give --restart "
            "to put the items in once more"
        )
    return False


def _drop_parts(work: Work) -> None:
    """Remove what is in the table by now."""
    (work.folder / ADOPTING).unlink(missing_ok=True)
    for part in range(len(work.plan.sizes)):
        shutil.rmtree(work.path(part), ignore_errors=True)


def _groups(items: Encoded, rows: int | None) -> tuple[tuple[tuple[Path, ...], ...], list[int]]:
    """Neighbouring files that become one segment, and the rows of each group."""
    most = rows or max(1, SEGMENT_BYTES // (4 * items.widths["embedding"]))
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


def _open_table(out: Path, items: Encoded, choices: TableChoices) -> HashTable:
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
                if value is not None and value != getattr(table, name):
                    raise InputError(
                        f"{out} has {name}={getattr(table, name)}, but {name}={value} came with "
                        f"{items.place}; give another --out, or items that fit"
                    )
        except BaseException:
            table.close()
            raise
        return table
    if buckets is None:
        raise InputError(
            f"{items.place} does not say how many buckets there are, because `bulk encode` did not "
            "write it; give --buckets"
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
