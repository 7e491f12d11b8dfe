"""The neighbours of every item of a table: a join of the table with itself, bucket by bucket."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from flowhash.argument_checks import whole_number
from flowhash.bulk.parquet_files import write_answers
from flowhash.bulk.runners import Runner
from flowhash.bulk.work_folder import Place, StoredTable, Work, WorkPlan, even_sizes, part_rows
from flowhash.errors import InputError
from flowhash.table import HashTable

ROWS = 25_000  # items of a part
ANSWERS = 1 << 22  # places for neighbours of a part


@dataclass(frozen=True)
class Join:
    """A job: the neighbours of some items of a table, among those of their own buckets.

    Items lie in the order of their codes, so that those of a part have few buckets.
    """

    table: StoredTable
    out: Place
    rows: int  # of a part
    top: int

    def open(self) -> HashTable:
        """Map the table."""
        return self.table.open()

    def do(self, opened: HashTable, part: int, threads: int | None) -> int:
        """Find the neighbours of one part."""
        pieces = list(opened.stored_between(part * self.rows, (part + 1) * self.rows))
        ids = np.concatenate([piece.ids for piece in pieces])
        codes = np.concatenate([piece.codes for piece in pieces])
        hits = opened.search(
            codes,
            np.concatenate([piece.embeddings for piece in pieces]),
            self.top + 1,
            probe=(codes >= 0).sum(axis=1),
            threads=threads,
        )
        rows = np.arange(part * self.rows, part * self.rows + len(ids))
        write_answers(self.out, part, rows, ids, hits.without(ids), opened.active)
        return len(ids)


def neighbours(
    table: Path,
    out: Path,
    runner: Runner,
    *,
    top: int = 10,
    rows: int | None = None,
    restart: bool = False,
    show: bool = False,
) -> Work:
    """Write the nearest other items of every item, among those that share a bucket with it.

    Args:
        table: its folder.
        out: folder for the answers; the same call goes on where it was stopped.
        runner: who does it.
        top: how many neighbours an item gets.
        rows: items of a part.
        restart: drop what is in ``out`` and begin anew.
        show: whether to show a bar.

    Raises:
        InputError: the table is empty, or ``out`` holds something else.
    """
    most = part_rows(rows, max(1, min(ROWS, ANSWERS // (whole_number("top", top, 1) + 1))))
    known = StoredTable.of(table)
    with HashTable.open(table) as opened:
        count = len(opened)
    if not count:
        raise InputError(f"{table} is empty; add items first")
    plan = WorkPlan(
        "neighbours", {"table": known.identity()}, {"top": top, **asdict(known.settings)},
        even_sizes(count, most),
    )  # fmt: skip
    with Work(out, plan, restart=restart) as work:
        if not work.plan.finished or work.missing():
            work.carry_out(Join(known, work.place, most, top), runner, "neighbours", show)
            work.finish()
    return work
