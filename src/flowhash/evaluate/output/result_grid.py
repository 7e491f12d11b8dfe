"""The grid of results: columns, and rows of all seeds as its cells, before any markup.

Seeds are put together, the paper's number is set beside the measured one, and it is found out
where FlowHash leads by more than its uncertainty. Markdown, LaTeX, the report and the terminal are
drawn from it; what a table can show is written down here once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flowhash.evaluate.results import (
    METHODS,
    Measure,
    MergedRow,
    Row,
    compared,
    is_ours,
    lead_over,
    leads_all,
    merge_seeds,
    method_label,
    method_order,
    rival_name,
    widest,
)

SPACE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Column:
    """One quantity of a row.

    Attributes:
        title: head of the column.
        meaning: in words, for those who do not know the name.
        name: of the row's field or property; where that is None, nothing is shown.
        decimals: how many are printed, so that a column lines up.
        short: head of the column where it is narrow; the title unless given.
        figures: how many decimals a narrow column has, given the mean; ``decimals`` unless given.
        unit: written after the number in a narrow column.
        in_paper: the paper has it too.
        constant: the method sets it, so that seeds do not change it.
        high: name of the high end of an interval whose low end is ``name``.
    """

    title: str
    meaning: str
    name: str
    decimals: int = 2
    short: str = ""
    figures: Callable[[float], int] | None = None
    unit: str = ""
    in_paper: bool = False
    constant: bool = False
    high: str = ""

    @property
    def head(self) -> str:
        """Of a narrow column."""
        return self.short or self.title


def three_figures(mean: float) -> int:
    """About three significant figures, since times go from parts of a µs to seconds."""
    return 2 if mean < 10 else 1 if mean < 100 else 0


def _items(mean: float) -> int:
    return 1 if mean < 1000 else 0


PRECISIONS = (
    Column("Pr@1", "% of the nearest 1 of the query's class", "pr1", in_paper=True),
    Column("Pr@4", "% of the nearest 4", "pr4", in_paper=True),
    Column("Pr@16", "% of the nearest 16", "pr16", in_paper=True),
)
SUF = Column("SUF", "items in the table over items scanned", "suf", in_paper=True)
QUALITY = (SUF, *PRECISIONS)
NMI = Column(
    "NMI", "% normalised mutual information of buckets and classes, k = 1", "nmi", in_paper=True
)
COSTS = (
    Column("items scanned", "items a query", "scanned", 1, "scanned", _items),
    Column("µs per query", "microseconds of search a query, without the networks", "microseconds",
           1, "µs", three_figures),
    Column("× FAISS Flat", "how many times faster than FAISS Flat", "over_flat", 1, "vs Flat",
           three_figures, "×"),
    Column("forward passes", "forward passes of a network a query", "passes", 0, "passes",
           constant=True),
)  # fmt: skip
MAIN = (*QUALITY, NMI, *COSTS)
REST = (
    Column("Pr@1 − exhaustive", "points, 95 % interval of the difference, by a paired bootstrap "
           "over the queries, and over seeds where there are several", "pr1_low", high="pr1_high"),
    Column("Pr@4 − exhaustive", "the same for the nearest 4", "pr4_low", high="pr4_high"),
    Column("Pr@16 − exhaustive", "the same for the nearest 16", "pr16_low", high="pr16_high"),
    Column("AMI", "% adjusted mutual information, k = 1", "ami"),
    Column("purity", "% of items in a bucket that have its most frequent class, k = 1", "purity"),
    Column("recall@1", "% of exhaustive search's 1 nearest", "recall1"),
    Column("recall@4", "% of exhaustive search's 4 nearest", "recall4"),
    Column("recall@16", "% of exhaustive search's 16 nearest", "recall16"),
    Column("mAP@R", "% mean average precision at R", "map_r"),
    Column("SUF@1", "with buckets opened until 1 item is found", "suf1"),
    Column("SUF@4", "with buckets opened until 4 are found", "suf4"),
    Column("SUF@16", "with buckets opened until 16 are found", "suf16"),
    Column("expected", "SUF of independent, even codes", "expected", constant=True),
    Column("variance", "of the items scanned, independent and even codes", "variance",
           figures=three_figures, constant=True),
    Column("d", "buckets", "buckets", 0, constant=True),
)  # fmt: skip
TERMINAL = tuple(replace(column, decimals=1) for column in (*PRECISIONS, SUF, NMI))


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

    @property
    def text(self) -> str:
        """What was measured."""
        return f"{self.mean} ± {self.deviation}" if self.deviation else self.mean


@dataclass(frozen=True)
class Line:
    """One method at one k.

    Attributes:
        label: its name for people.
        cells: the searched tables side by side, each with all columns.
        ours: it is FlowHash, in any of its variants.
        note: what must be known of it; empty where there is nothing.
    """

    label: str
    cells: tuple[Cell, ...]
    ours: bool = False
    note: str = ""


@dataclass(frozen=True)
class Group:
    """The lines of one k; None for exhaustive search."""

    k: int | None
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Grid:
    """A whole table.

    Attributes:
        caption: what it shows.
        tables: names of the searched tables, side by side.
        columns: the same for each searched table.
        groups: the lines, by k.
    """

    caption: str
    tables: tuple[str, ...]
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]

    @property
    def lines(self) -> list[Line]:
        """Those of all groups."""
        return [line for group in self.groups for line in group.lines]

    @property
    def has_deviations(self) -> bool:
        """Whether any cell has one."""
        return any(cell.deviation for line in self.lines for cell in line.cells)

    @property
    def in_paper(self) -> list[bool]:
        """Of each column of cells: whether any of them has the paper's number beside it."""
        cells = zip(*(line.cells for line in self.lines), strict=True)
        return [any(cell.paper for cell in column) for column in cells]


def make_grid(
    rows: Sequence[Row],
    paper: Sequence[Row],
    columns: Sequence[Column],
    tables: Mapping[str, str],
    caption: str,
    *,
    narrow: bool = False,
) -> Grid:
    """Lay out rows: methods grouped by k, searched tables side by side.

    The classifier at k = 1 stands beside every k; see ``rivals``.

    Args:
        rows: measured.
        paper: the paper's, or none.
        columns: for each searched table.
        tables: which are shown, and what they are called.
        caption: of the table.
        narrow: numbers are short and have their units: about three figures of times.
    """
    measured = {each.key: each for each in merge_seeds(rows)}
    printed = {each.key: each for each in merge_seeds(paper)}
    same = {key: each.rows for key, each in measured.items()}

    def line(group: int | None, method: str, k: int | None) -> Line:
        keys = [(method, table, k) for table in tables]
        label = method_label(method)
        cells = [
            replace(
                _cell(column, measured.get(key), printed.get(key), narrow),
                bold=leads_all(column.name, same, key),
            )
            for key in keys
            for column in columns
        ]
        notes = dict.fromkeys(measured[key].note for key in keys if key in measured)
        return Line(
            label if k == group else f"{label}, k = {k}",
            tuple(cells),
            is_ours(method),
            "; ".join(note for note in notes if note),
        )

    places = {(k, method, k) for method, table, k in measured if table in tables}
    if (1, "classifier", 1) in places:
        places |= {(k, "classifier", 1) for k, _, _ in places if k is not None}
    ordered = sorted(
        places, key=lambda place: (method_order(place[1]), place[1], place[2] != place[0])
    )
    groups = [(place[0], line(*place)) for place in ordered]
    return Grid(caption, tuple(tables.values()), tuple(columns), _grouped(groups))


def _grouped(lines: Iterable[tuple[int | None, Line]]) -> tuple[Group, ...]:
    """Lines by their k; within one in the order given."""
    found: dict[int | None, list[Line]] = {}
    for k, line in lines:
        found.setdefault(k, []).append(line)
    return tuple(Group(k, tuple(found[k])) for k in sorted(found, key=lambda k: k or 0))


def columns_with_values(rows: Sequence[Row], columns: Iterable[Column]) -> list[Column]:
    """Those of which any row has a number."""
    merged = merge_seeds(rows)
    return [
        column for column in columns
        if any(each.measure(column.name) is not None for each in merged)
    ]  # fmt: skip


def terminal_grid(rows: Sequence[Row], table: str) -> Grid:
    """One searched table as the terminal has room for it."""
    return make_grid(rows, (), TERMINAL, {table: table}, "")


def _cell(column: Column, merged: MergedRow | None, paper: MergedRow | None, narrow: bool) -> Cell:
    """Mean, deviation and the paper's number of one place."""

    def written(value: float, measure: Measure) -> str:
        if math.isinf(value):
            return "∞"
        if math.isnan(value):  # the deviation of something infinite
            return "–"
        figures = column.figures if narrow else None
        return f"{value:,.{column.decimals if figures is None else figures(measure.mean)}f}"

    measured = None if merged is None else merged.measure(column.name)
    theirs = paper.measure(column.name) if paper is not None and column.in_paper else None
    beside = "" if theirs is None else written(theirs.mean, theirs)
    if merged is None or measured is None:
        return Cell(paper=beside)
    if column.high:
        lead = less_exhaustive(merged.rows, column.name.removesuffix("_low"))
        return Cell() if lead is None else Cell(between(*lead))
    text = written(measured.mean, measured) + (column.unit if narrow else "")
    if measured.deviation is None or column.constant:
        return Cell(text, paper=beside)
    return Cell(text, written(measured.deviation, measured), beside)


def signed(value: float) -> str:
    """A difference with its sign, as text."""
    return f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")


def between(low: float, high: float) -> str:
    """An interval as text that no line breaks."""
    return f"{signed(low)}{SPACE}to{SPACE}{signed(high)}"


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
    merged = merge_seeds(rows)
    every = next((each for each in merged if each.method == "exhaustive"), None)
    lines = [
        (each.k, Line(each.label, tuple(
            _difference(column, each, every, less_exhaustive(each.rows, column.name))
            for column in columns
        )))
        for each in merged
        if each is not every
    ]  # fmt: skip
    return Grid(caption, (name,), tuple(columns), _grouped(lines))


def leads_grid(rows: Sequence[Row], name: str, columns: Sequence[Column], caption: str) -> Grid:
    """How much FlowHash differs from each rival, with its interval; takes the same."""
    merged = {each.key: each for each in merge_seeds(rows)}
    lines = []
    for ours in merged.values():
        if ours.method != "flowhash":
            continue
        found = compared(ours.rows[0], rows)
        found.sort(key=lambda other: (method_order(other.method), other.k != ours.k))
        for rival in found:
            theirs = merged[rival.method, rival.table, rival.k]
            called = rival_name(rival, ours.rows[0])
            cells = tuple(
                _difference(column, ours, theirs, lead_over(ours.rows, called, column.name))
                for column in columns
            )
            words = "against " + called.replace(rival.method, METHODS[rival.method])
            lines.append((ours.k, Line(words, cells)))
    return Grid(caption, (name,), tuple(columns), _grouped(lines))


def _difference(
    column: Column, ours: MergedRow, theirs: MergedRow | None, lead: tuple[float, float] | None
) -> Cell:
    """A difference with its interval; nothing where it has none."""
    mean = ours.mean(column.name)
    other = None if theirs is None else theirs.mean(column.name)
    if mean is None or other is None or lead is None:
        return Cell()
    return Cell(f"{signed(mean - other)} ({between(*lead)})")


def less_exhaustive(rows: Sequence[Row], field: str) -> tuple[float, float] | None:
    """The interval of what a method has less or more than exhaustive search, over all seeds."""

    def ends(row: Row) -> Sequence[float] | None:
        low, high = (getattr(row, f"{field}_{end}") for end in ("low", "high"))
        return None if low is None or high is None else (low, high)

    drawn = widest(rows, lambda row: row.over_seeds.get("exhaustive", {}).get(field))
    return drawn or widest(rows, ends)
