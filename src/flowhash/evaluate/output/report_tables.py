"""Rows of several seeds as entries, and as the tables of the page, grouped by k."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flowhash.evaluate.output.result_grid import Key, between, leads_all
from flowhash.evaluate.results import METHODS, Row, is_ours

Value = Callable[[Row], float | None]

# What is searched, as a heading says it; other names are headings as they are.
TABLES = {
    "train": "Train table",
    "test": "Test table",
    "validation": "Validation table",
    "unseen": "Unseen classes",
}


@dataclass(frozen=True)
class Measure:
    """A number over seeds.

    Attributes:
        mean: over all seeds that have it.
        deviation: the sample standard deviation (n − 1); None for one seed.
    """

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class Entry:
    """All seeds of one method on one table at one k."""

    method: str
    table: str
    k: int | None
    rows: tuple[Row, ...]

    @property
    def label(self) -> str:
        """What people call the method."""
        return method_label(self.method)

    def measure(self, value: Value) -> Measure | None:
        """Mean and deviation of what ``value`` reads from a row; None if no row has it."""
        found = [value(row) for row in self.rows]
        known = [number for number in found if number is not None and not math.isnan(number)]
        if not known:
            return None
        if len(known) == 1:
            return Measure(float(known[0]))
        return Measure(float(np.mean(known)), float(np.std(known, ddof=1)))

    def mean(self, value: Value) -> float | None:
        """The mean alone."""
        found = self.measure(value)
        return None if found is None else found.mean


def speed_over_flat(row: Row) -> float | None:
    """How many times faster than FAISS Flat, in the same run."""
    return row.flat / row.seconds if row.flat is not None and row.seconds > 0 else None


def method_label(method: str) -> str:
    """What people call a method; a name that is no key stands for itself."""
    return METHODS.get(method, method)


def merge(rows: Iterable[Row]) -> list[Entry]:
    """One entry a table, k and method, in the order of a printed table."""
    found: dict[tuple[str, int | None, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.table, row.k, row.method), []).append(row)
    entries = [Entry(method, table, k, tuple(same)) for (table, k, method), same in found.items()]
    return sorted(entries, key=_place)


def table_names(entries: Sequence[Entry]) -> list[str]:
    """The searched tables, each once, in order."""
    return list(dict.fromkeys(entry.table for entry in entries))


def active_counts(entries: Sequence[Entry]) -> list[int]:
    """Every k that is there, ascending."""
    return sorted({entry.k for entry in entries if entry.k is not None})


def _place(entry: Entry) -> tuple[int, str, int, int, str]:
    # Exhaustive search has no k and comes first; what nobody has named yet comes last.
    tables = list(TABLES)
    table = tables.index(entry.table) if entry.table in TABLES else len(tables)
    return table, entry.table, entry.k or 0, method_order(entry), entry.method


def method_order(entry: Entry) -> int:
    """Where a method stands among those of one k."""
    methods = list(METHODS)
    return methods.index(entry.method) if entry.method in METHODS else len(methods)


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        head: its name.
        meaning: in words, for those who do not know the name.
        value: reads it from a row.
        decimals: how many, given the mean.
        unit: written after the number.
        in_paper: the paper has it too.
        constant: the method sets it, so that seeds do not change it.
        field: of the row, where differences in it have intervals, so that FlowHash's may be bold.
        high: the high end of an interval whose low end is ``value``.
    """

    head: str
    meaning: str
    value: Value
    decimals: Callable[[float], int]
    unit: str = ""
    in_paper: bool = False
    constant: bool = False
    field: str = ""
    high: Value | None = None


def _two(_: float) -> int:
    return 2


def _none(_: float) -> int:
    return 0


def three_figures(mean: float) -> int:
    """About three significant figures, since times go from parts of a µs to seconds."""
    return 2 if mean < 10 else 1 if mean < 100 else 0


def _items(mean: float) -> int:
    return 1 if mean < 1000 else 0


MAIN = (
    Column("SUF", "items in the table over items scanned", lambda row: row.suf, _two, "", True,
           field="suf"),
    Column("Pr@1", "% of the nearest 1 of the query's class", lambda row: row.pr1, _two, "", True,
           field="pr1"),
    Column("Pr@4", "% of the nearest 4", lambda row: row.pr4, _two, "", True, field="pr4"),
    Column("Pr@16", "% of the nearest 16", lambda row: row.pr16, _two, "", True, field="pr16"),
    Column("NMI", "% normalised mutual information of buckets and classes, k = 1",
           lambda row: row.nmi, _two, "", True),
    Column("scanned", "items a query", lambda row: row.scanned, _items),
    Column("µs", "microseconds of search a query, without the networks",
           lambda row: 1e6 * row.seconds, three_figures),
    Column("vs Flat", "how many times faster than FAISS Flat", speed_over_flat,
           three_figures, "×"),
    Column("passes", "forward passes of a network a query", lambda row: row.passes, _none,
           constant=True),
)  # fmt: skip

REST = (
    Column("Pr@1 − exhaustive", "points, 95 % interval of the difference, by a paired "
           "bootstrap over the queries; the widest of several seeds",
           lambda row: row.pr1_low, _two, high=lambda row: row.pr1_high),
    Column("Pr@4 − exhaustive", "the same for the nearest 4", lambda row: row.pr4_low, _two,
           high=lambda row: row.pr4_high),
    Column("Pr@16 − exhaustive", "the same for the nearest 16", lambda row: row.pr16_low, _two,
           high=lambda row: row.pr16_high),
    Column("AMI", "% adjusted mutual information, k = 1", lambda row: row.ami, _two),
    Column("purity", "% of items in a bucket that have its most frequent class, k = 1",
           lambda row: row.purity, _two),
    Column("recall@1", "% of exhaustive search's 1 nearest", lambda row: row.recall1, _two),
    Column("recall@4", "% of exhaustive search's 4 nearest", lambda row: row.recall4, _two),
    Column("recall@16", "% of exhaustive search's 16 nearest", lambda row: row.recall16, _two),
    Column("mAP@R", "% mean average precision at R", lambda row: row.map_r, _two),
    Column("SUF@1", "with buckets opened until 1 item is found", lambda row: row.suf1, _two),
    Column("SUF@4", "with buckets opened until 4 are found", lambda row: row.suf4, _two),
    Column("SUF@16", "with buckets opened until 16 are found", lambda row: row.suf16, _two),
    Column("expected", "SUF of independent, even codes", lambda row: row.expected, _two,
           constant=True),
    Column("variance", "of the items scanned, independent and even codes",
           lambda row: row.variance, three_figures, constant=True),
    Column("d", "buckets", lambda row: row.buckets, _none, constant=True),
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """What is written in one cell; empty strings where there is nothing."""

    text: str
    deviation: str = ""
    paper: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Line:
    """One method."""

    label: str
    emphasis: bool
    footnote: int | None
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Group:
    """The lines of one k."""

    head: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Table:
    """Columns, and lines in groups; ``paper[i]`` says that column i has numbers of the paper."""

    columns: tuple[Column, ...]
    paper: tuple[bool, ...]
    groups: tuple[Group, ...]

    @property
    def dense(self) -> bool:
        """Whether any cell has a deviation."""
        lines = [line for group in self.groups for line in group.lines]
        return any(cell.deviation for line in lines for cell in line.cells)


def footnotes(entries: Sequence[Entry]) -> list[str]:
    """The different notes of the rows, in order."""
    return list(dict.fromkeys(note for entry in entries if (note := _note(entry))))


def _note(entry: Entry) -> str:
    """What must be known of an entry; where seeds differ, all of it."""
    return "; ".join(dict.fromkeys(row.note for row in entry.rows if row.note))


def build_table(
    entries: Sequence[Entry], paper: Sequence[Entry], columns: Sequence[Column]
) -> Table | None:
    """The table of one searched table; None if no row has a number for any of the columns."""
    kept = tuple(
        column for column in columns
        if any(entry.measure(column.value) is not None for entry in entries)
    )  # fmt: skip
    if not kept:
        return None
    printed = {(entry.method, entry.k): entry for entry in paper}
    notes = footnotes(entries)
    rows = {(entry.method, entry.table, entry.k): entry.rows for entry in entries}
    groups = []
    for k in (None, *active_counts(entries)):
        lines = tuple(
            _line(entry, k, printed.get((entry.method, entry.k)), kept, notes, rows)
            for entry in sorted(entries, key=lambda entry: (method_order(entry), entry.k != k))
            if entry.k == k or (k is not None and _stands_everywhere(entry))
        )
        if lines:
            groups.append(Group("all items" if k is None else f"k = {k}", lines))
    beside = tuple(
        any(line.cells[place].paper for group in groups for line in group.lines)
        for place in range(len(kept))
    )
    return Table(kept, beside, tuple(groups))


def _stands_everywhere(entry: Entry) -> bool:
    """The classifier at k = 1 is beside every k; see ``rivals``."""
    return (entry.method, entry.k) == ("classifier", 1)


def _line(
    entry: Entry,
    k: int | None,
    paper: Entry | None,
    columns: Sequence[Column],
    notes: list[str],
    rows: Mapping[Key, Sequence[Row]],
) -> Line:
    note, key = _note(entry), (entry.method, entry.table, entry.k)
    return Line(
        label=entry.label if entry.k == k else f"{entry.label}, k = {entry.k}",
        emphasis=is_ours(entry.method),
        footnote=notes.index(note) + 1 if note else None,
        cells=tuple(
            replace(_cell(entry, paper, column), bold=leads_all(column.field, rows, key))
            for column in columns
        ),
    )


def _cell(entry: Entry, paper: Entry | None, column: Column) -> Cell:
    measured = entry.measure(column.value)
    printed = paper.measure(column.value) if paper is not None and column.in_paper else None
    beside = "" if printed is None else _written(printed.mean, column, printed)
    if measured is None:
        return Cell("–", paper=beside)
    if column.high is not None:
        low = min(end for row in entry.rows if (end := column.value(row)) is not None)
        high = max(end for row in entry.rows if (end := column.high(row)) is not None)
        return Cell(between(low, high))
    text = _written(measured.mean, column, measured) + column.unit
    if measured.deviation is None or column.constant:
        return Cell(text, paper=beside)
    return Cell(text, "± " + _written(measured.deviation, column, measured), beside)


def _written(value: float, column: Column, scale: Measure) -> str:
    if math.isinf(value):
        return "∞"
    if math.isnan(value):  # the deviation of something infinite
        return "–"
    return f"{value:,.{column.decimals(scale.mean)}f}"


def heading(table: str) -> str:
    """The heading of a searched table."""
    return TABLES.get(table, f"{table} table")


def flat_seconds(entries: Sequence[Entry]) -> float | None:
    """What FAISS Flat took a query, the mean over all rows."""
    everything = Entry("", "", None, tuple(row for entry in entries for row in entry.rows))
    return everything.mean(lambda row: row.flat or None)
