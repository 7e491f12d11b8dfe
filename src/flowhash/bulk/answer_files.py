"""Answers in parquet files: written by workers, read in the order of the queries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.bulk.parquet_columns import lists, plain, read_columns, write_columns
from flowhash.bulk.work_folder import Place, part_name, read_plan
from flowhash.errors import InputError, StorageError
from flowhash.table import Hits


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
    place: Place, part: int, rows: NDArray[np.int64], names: NDArray[Any] | None, hits: Hits
) -> None:
    """Write the answers of a part: a line a query, with the row that it had."""
    columns = {"row": plain(rows)}
    if names is not None:
        columns["query"] = plain(names)
    columns |= {
        "ids": lists(hits.ids, hits.counts),
        "distances": lists(hits.distances, hits.counts),
        "scanned": plain(hits.scanned),
    }
    path = place.folder / f"{part_name(part)}.parquet"
    write_columns(place, path, columns, {"kind": "answers"})


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
    )
    queries: NDArray[Any] | None = None
    for part in range(len(plan.sizes)):
        table = read_columns(folder / f"{part_name(part)}.parquet")
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
    lines, places = np.nonzero(np.arange(hits.ids.shape[1]) < counts[:, None])
    hits.ids[rows[lines], places] = ids.flatten().to_numpy(zero_copy_only=False)
    hits.distances[rows[lines], places] = distances.flatten().to_numpy()
