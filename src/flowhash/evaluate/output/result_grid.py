"""Rows of an evaluation as the lines and cells of a table, before any markup.

Seeds are put together, the paper's number is set beside the measured one, and it is found out
where FlowHash leads by more than its uncertainty. ``tables`` writes the result as Markdown and
LaTeX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flowhash.errors import InputError
from flowhash.evaluate.results import (
    METHODS,
    Row,
    compared,
    lead_over,
    rival_name,
    rivals,
    widest,
)

SPACE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Column:
    """One quantity of a row.

    Attributes:
        title: head of the column.
        value: takes it out of a row; None where the row has none.
        decimals: how many are shown.
        field: of the row, where differences in it have intervals, so that FlowHash's may be bold.
    """

    title: str
    value: Callable[[Row], float | None]
    decimals: int = 2
    field: str = ""


@dataclass(frozen=True)
class Cell:
    """What one place of a table shows.

    Attributes:
        mean: over seeds, as text; empty where there is nothing.
        deviation: sample standard deviation over seeds, as text; empty for a single seed.
        paper: the paper's number, as text; empty where it has none.
        bold: FlowHash leads all its rivals here by more than its uncertainty.
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
    Column("SUF", lambda row: row.suf, field="suf"),
    Column("Pr@1", lambda row: row.pr1, field="pr1"),
    Column("Pr@4", lambda row: row.pr4, field="pr4"),
    Column("Pr@16", lambda row: row.pr16, field="pr16"),
)
COSTS = (
    Column("items scanned", lambda row: row.scanned, 1),
    Column("µs per query", lambda row: 1e6 * row.seconds, 1),
    Column("× FAISS Flat", _times_flat, 1),
    Column("forward passes", lambda row: row.passes, 0),
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


def leads_all(field: str, rows: Mapping[Key, Sequence[Row]], key: Key) -> bool:
    """Whether FlowHash leads every rival with the whole interval above zero, over all seeds.

    Rows without intervals, of an older FlowHash, lead nobody.

    Args:
        field: of the row, one of those of ``Row.leads``; nothing leads in others.
        rows: of all methods.
        key: of the rows that may lead.
    """
    ours = rows.get(key, ())
    if key[0] != "flowhash" or not ours:
        return False
    every = [row for group in rows.values() for row in group]
    names = {rival_name(rival, row) for row in ours for rival in rivals(row, every)}
    leads = [lead_over(ours, name, field) for name in names]
    return bool(leads) and all(lead is not None and lead[0] > 0 for lead in leads)


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
        bold=leads_all(column.field, rows, key),
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
    places = {(k, method, k) for method, table, k in measured if table in tables}
    if (1, "classifier", 1) in places:  # stands beside every k; see ``rivals``
        places |= {(k, "classifier", 1) for k, _, _ in places if k is not None}
    lines = [
        Line(
            "" if group is None else f"k = {group}",
            METHODS[method] if k == group else f"{METHODS[method]}, k = {k}",
            tuple(
                make_cell(column, (method, table, k), measured, printed)
                for table in tables
                for column in columns
            ),
        )
        for group, method, k in sorted(
            places, key=lambda place: (place[0] or 0, order.index(place[1]), place[2] != place[0])
        )
    ]
    heads = tuple(column.title for column in columns)
    return Grid(caption, tuple(tables.values()), heads, tuple(lines))


def signed(value: float) -> str:
    """A difference with its sign, as text."""
    return f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")


def between(low: float, high: float) -> str:
    """An interval as text that no line breaks."""
    return f"{signed(low)}{SPACE}to{SPACE}{signed(high)}"


def _difference(
    column: Column, ours: Sequence[Row], theirs: Sequence[Row], lead: tuple[float, float] | None
) -> Cell:
    """A difference with its interval; nothing where it has none."""
    mean, other = _mean(column, ours), _mean(column, theirs)
    if mean is None or other is None or lead is None:
        return Cell()
    return Cell(f"{signed(mean - other)} ({between(*lead)})")


def _less_exhaustive(rows: Sequence[Row], column: Column) -> tuple[float, float] | None:
    """The interval of what a method has less or more than exhaustive search, over all seeds."""

    def ends(row: Row) -> Sequence[float] | None:
        low, high = (getattr(row, f"{column.field}_{end}") for end in ("low", "high"))
        return None if low is None or high is None else (low, high)

    drawn = widest(rows, lambda row: row.over_seeds.get("exhaustive", {}).get(column.field))
    return drawn or widest(rows, ends)


def differences_grid(
    rows: Sequence[Row], name: str, columns: Sequence[Column], caption: str
) -> Grid:
    """How much each method differs from exhaustive search in precision, with its interval.

    Args:
        rows: of one searched table, with intervals.
        name: of the table.
        columns: precisions.
        caption: of the grid.
    """
    every = [row for row in rows if row.method == "exhaustive"]
    order = list(METHODS)
    groups = [(k or 0, order.index(method), found)
              for (method, _, k), found in group_seeds(rows).items()
              if method != "exhaustive"]  # fmt: skip
    lines = [
        Line(f"k = {k}" if k else "", METHODS[order[place]], tuple(
            _difference(column, found, every, _less_exhaustive(found, column))
            for column in columns
        ))
        for k, place, found in sorted(groups, key=lambda group: group[:2])
    ]  # fmt: skip
    return Grid(caption, (name,), tuple(column.title for column in columns), tuple(lines))


def leads_grid(rows: Sequence[Row], name: str, columns: Sequence[Column], caption: str) -> Grid:
    """How much FlowHash differs from each rival, with its interval; takes the same."""
    measured = group_seeds(rows)
    order = list(METHODS)
    lines = []
    keys = sorted((key for key in measured if key[0] == "flowhash"), key=lambda key: key[2] or 0)
    for key in keys:
        ours = measured[key]
        found = compared(ours[0], rows)
        for rival in sorted(
            found, key=lambda other: (order.index(other.method), other.k != key[2])
        ):
            theirs = measured[rival.method, rival.table, rival.k]
            called = rival_name(rival, ours[0])
            cells = tuple(
                _difference(column, ours, theirs, lead_over(ours, called, column.field))
                for column in columns
            )
            words = "against " + called.replace(rival.method, METHODS[rival.method])
            lines.append(Line(f"k = {key[2]}", words, cells))
    return Grid(caption, (name,), tuple(column.title for column in columns), tuple(lines))
