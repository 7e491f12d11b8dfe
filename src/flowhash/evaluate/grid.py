"""Rows of an evaluation as the lines and cells of a table, before any markup.

Seeds are put together, the paper's number is set beside the measured one, and it is found out
where FlowHash is the best of its group. ``tables`` writes the result as Markdown and LaTeX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flowhash.errors import InputError
from flowhash.evaluate.results import METHODS, Row

RIVALS = ("th", "vq")  # the paper's baselines with buckets; bold is to be ahead of both


@dataclass(frozen=True)
class Column:
    """One quantity of a row.

    Attributes:
        title: head of the column.
        value: takes it out of a row; None where the row has none.
        decimals: how many are shown.
        ranked: whether larger is better and FlowHash's may be bold.
    """

    title: str
    value: Callable[[Row], float | None]
    decimals: int = 2
    ranked: bool = True


@dataclass(frozen=True)
class Cell:
    """What one place of a table shows.

    Attributes:
        mean: over seeds, as text; empty where there is nothing.
        deviation: sample standard deviation over seeds, as text; empty for a single seed.
        paper: the paper's number, as text; empty where it has none.
        bold: FlowHash is the best of its group here.
    """

    mean: str = ""
    deviation: str = ""
    paper: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Line:
    """One method at one k.

    Attributes:
        group: "k = 1" and so on; empty for exhaustive search.
        method: its name for people.
        cells: the searched tables side by side, each with all columns.
    """

    group: str
    method: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Grid:
    """A whole table.

    Attributes:
        caption: what it shows.
        tables: names of the searched tables, side by side.
        columns: heads, the same for each searched table.
        lines: grouped by k.
    """

    caption: str
    tables: tuple[str, ...]
    columns: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def groups(self) -> list[str]:
        """The group of each line where it begins, else nothing."""
        names = [line.group for line in self.lines]
        before = [None, *names[:-1]]
        return [name if name != other else "" for name, other in zip(names, before, strict=True)]


def _times_flat(row: Row) -> float | None:
    return row.flat / row.seconds if row.flat is not None and row.seconds > 0 else None


NMI = Column("NMI", lambda row: row.nmi)
QUALITY = (
    Column("SUF", lambda row: row.suf),
    Column("Pr@1", lambda row: row.pr1),
    Column("Pr@4", lambda row: row.pr4),
    Column("Pr@16", lambda row: row.pr16),
)
COSTS = (
    Column("items scanned", lambda row: row.scanned, 1, ranked=False),
    Column("µs per query", lambda row: 1e6 * row.seconds, 1, ranked=False),
    Column("× FAISS Flat", _times_flat, 1, ranked=False),
    Column("forward passes", lambda row: row.passes, 0, ranked=False),
)

Key = tuple[str, str, int | None]  # method, table, k


def group_seeds(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """Rows by method, table and k: one a seed.

    Raises:
        InputError: a method is not known, or two rows have the same seed, as when rows of two
            losses are mixed: their mean would be of nothing.
    """
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        if row.method not in METHODS:
            raise InputError(f"method is {row.method!r}; expected one of {', '.join(METHODS)}")
        group = groups.setdefault((row.method, row.table, row.k), [])
        if any(row.seed == other.seed for other in group):
            raise InputError(
                f"two rows are {row.method} on {row.table} with k = {row.k} and seed {row.seed}; "
                f"expected one. Make a table for each experiment"
            )
        group.append(row)
    return groups


def _mean(column: Column, rows: Sequence[Row]) -> float | None:
    values = [value for row in rows if (value := column.value(row)) is not None]
    return float(np.mean(values)) if values else None


def is_best(column: Column, rows: Mapping[Key, Sequence[Row]], table: str, k: int | None) -> bool:
    """Whether FlowHash is ahead of Th and VQ, as far as digits are shown; a tie is not ahead."""
    ours = _mean(column, rows.get(("flowhash", table, k), ()))
    theirs = [_mean(column, rows.get((rival, table, k), ())) for rival in RIVALS]
    shown = [round(value, column.decimals) for value in theirs if value is not None]
    return ours is not None and bool(shown) and round(ours, column.decimals) > max(shown)


def make_cell(
    column: Column, key: Key, rows: Mapping[Key, Sequence[Row]], paper: Mapping[Key, Sequence[Row]]
) -> Cell:
    """Mean, deviation, the paper's number and boldness of one place."""
    values = [value for row in rows.get(key, ()) if (value := column.value(row)) is not None]
    theirs = _mean(column, paper.get(key, ()))

    def shown(value: float) -> str:
        return f"{value:,.{column.decimals}f}"

    several = len(values) > 1
    varies = column.decimals > 0  # a count like forward passes does not
    return Cell(
        mean=shown(float(np.mean(values))) if values else "",
        deviation=shown(float(np.std(values, ddof=1))) if several and varies else "",
        paper="" if theirs is None else shown(theirs),
        bold=key[0] == "flowhash" and column.ranked and is_best(column, rows, *key[1:]),
    )


def make_grid(
    rows: Sequence[Row],
    paper: Sequence[Row],
    columns: Sequence[Column],
    tables: Mapping[str, str],
    caption: str,
) -> Grid:
    """Lay out rows: methods grouped by k, searched tables side by side.

    Args:
        rows: measured.
        paper: the paper's, or none.
        columns: for each searched table.
        tables: which are shown, and what they are called.
        caption: of the table.
    """
    measured, printed = group_seeds(rows), group_seeds(paper)
    order = list(METHODS)
    places = sorted(
        {(k, method) for method, table, k in measured if table in tables},
        key=lambda place: (place[0] or 0, order.index(place[1])),
    )
    lines = [
        Line(
            "" if k is None else f"k = {k}",
            METHODS[method],
            tuple(
                make_cell(column, (method, table, k), measured, printed)
                for table in tables
                for column in columns
            ),
        )
        for k, method in places
    ]
    heads = tuple(column.title for column in columns)
    return Grid(caption, tuple(tables.values()), heads, tuple(lines))
