"""The tables of results as Markdown and as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from flowhash.errors import InputError
from flowhash.evaluate.output.result_grid import (
    MAIN,
    NMI,
    PRECISIONS,
    QUALITY,
    Cell,
    Grid,
    differences_grid,
    leads_grid,
    make_grid,
)
from flowhash.evaluate.paper_numbers import NMI_TABLE
from flowhash.evaluate.results import METHODS, Row, group_seeds
from flowhash.quality import RESAMPLES

SEEN = {"train": "train", "test": "test"}  # tables whose classes were there in training
UNSEEN = {"unseen": "unseen classes"}  # and that of classes which training had not
BOLD = (
    "Bold: FlowHash leads all other methods at this k (its own variants are none), exhaustive "
    "search and the classifier at k = 1, each by a 95 % interval that lies above zero"
)
NO_INTERVALS = (
    "These rows were measured without intervals, so that nothing is bold: a lead may be chance."
)
BOOTSTRAP = f"95 % intervals, by a paired bootstrap over the queries ({RESAMPLES:,} draws)"
COST_WORDS = (
    "Times are of a query in a batch, without the networks; × FAISS Flat is how many times less "
    "than exhaustive search with FAISS."
)


def result_tables(
    rows: Sequence[Row],
    paper: Sequence[Row] = (),
    *,
    title: str = "",
    names: Mapping[str, str] = SEEN,
    number: int | None = None,
    form: str = "markdown",
) -> str:
    """The tables as text; the paper's numbers stand small beside the measured ones.

    Args:
        rows: of one experiment, any number of seeds.
        paper: what ``paper_rows`` gives for it.
        title: what stands before each caption, such as ``Experiment.title``.
        names: which searched tables are shown and what they are called; "train" and "test" unless
            given. For ImageNet ``Experiment.table_names`` says "val".
        number: of the paper's table that has the experiment, ``Experiment.number``.
        form: "markdown", for GitHub; or "latex", for a document that has the packages booktabs and
            xcolor. With graphicx as well, tables that are wider than the line are shrunk to it.

    Raises:
        InputError: there is no row of these tables, or two have the same method, table, k and seed.
    """
    forms = {"markdown": _markdown, "latex": _latex}
    if form not in forms:
        raise InputError(f"form is {form!r}; expected one of {', '.join(map(repr, forms))}")
    return forms[form](_grids(rows, paper, title, names, number), _notes(rows, names))


def bold_words(rows: Sequence[Row]) -> str:
    """What bold means in a table of these rows, or why nothing is bold."""
    if any(row.pr1_low is None for row in rows):
        return NO_INTERVALS
    return f"{BOLD}{_over_seeds_words(rows, ', in every seed')}."


def _over_seeds_words(rows: Sequence[Row], otherwise: str) -> str:
    """What an interval is over beside the queries, where there are several seeds."""
    if len({row.seed for row in rows}) == 1:
        return ""
    drawn = any(row.over_seeds for row in rows)
    return ", over queries and seeds" if drawn else otherwise


def _seed_words(rows: Sequence[Row]) -> str:
    count = len({row.seed for row in rows})
    if count == 1:
        return "One seed."
    return f"Mean ± sample standard deviation over {count} seeds."


def _grids(
    rows: Sequence[Row],
    paper: Sequence[Row],
    title: str,
    names: Mapping[str, str],
    number: int | None,
) -> list[Grid]:
    """The paper's table, the wide one of each searched table, and Table 5."""
    rows = [row for row in rows if row.table in names]
    if not rows:
        raise InputError(
            f"no row is of the table {' or '.join(map(repr, names))}; expected what an evaluation "
            f"of it gave"
        )
    group_seeds(rows)  # refuses rows that are not of one experiment
    head = f"{title}: " if title else ""
    there = {
        table: name for table, name in names.items() if any(row.table == table for row in rows)
    }
    seeds, grey = _seed_words(rows), ""
    if any(row.table in there for row in paper):
        grey = " The small grey number is the paper's."
    bold = bold_words(rows)
    main, last = (f" (the paper's Table {n})" if number else "" for n in (number, NMI_TABLE))
    caption = f"{head}SUF and precision in %{main}. {seeds}{grey} {bold}"
    grids = [make_grid(rows, paper, QUALITY, there, caption)]
    if bold != NO_INTERVALS:
        how = BOOTSTRAP + _over_seeds_words(rows, "; over seeds the widest")
        for table, name in there.items():
            found = [row for row in rows if row.table == table]
            caption = (
                f"{head}searching {name}, precision minus that of exhaustive search, in points. In "
                f"brackets {how}."
            )
            grids.append(differences_grid(found, name, PRECISIONS, caption))
            caption = (
                f"{head}searching {name}, FlowHash minus its rivals: SUF, and precision in points. "
                f"In brackets {how}."
            )
            grids.append(leads_grid(found, name, QUALITY, caption))
    for table, name in there.items():
        caption = f"{head}searching {name}, with costs. {COST_WORDS} {seeds} {bold}"
        grids.append(make_grid(rows, (), MAIN, {table: name}, caption))
    single = [row for row in rows if row.nmi is not None]
    if single:
        caption = (
            f"{head}NMI in % at k = 1{last}. {seeds}{grey} Nothing is bold: NMI has no interval."
        )
        grids.append(make_grid(single, paper, (NMI,), there, caption))
    return [grid for grid in grids if grid.groups]


def _notes(rows: Sequence[Row], names: Mapping[str, str]) -> list[str]:
    """What must be known about the rows of methods, each once, with where it holds."""
    places: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.note and row.table in names:
            place = f"{names[row.table]} k = {row.k}"
            held = places.setdefault((row.method, row.note), [])
            if place not in held:
                held.append(place)
    return [
        f"{METHODS[method]} ({', '.join(held)}): {note}" for (method, note), held in places.items()
    ]


def _markdown(grids: Sequence[Grid], notes: Sequence[str]) -> str:
    parts = [_markdown_grid(grid) for grid in grids]
    if notes:
        parts.append("".join(f"- {note}\n" for note in notes))
    return "\n".join(parts)


def _markdown_cell(cell: Cell) -> str:
    shown = f"**{cell.text}**" if cell.bold else cell.text
    return f"{shown} <sub>{cell.paper}</sub>".strip() if cell.paper else shown


def _markdown_grid(grid: Grid) -> str:
    heads = [
        f"{table} {column.title}" if len(grid.tables) > 1 else column.title
        for table in grid.tables
        for column in grid.columns
    ]
    lines = [["k", "method", *heads], ["---", "---", *(["---:"] * len(heads))]]
    for group in grid.groups:
        shown = "" if group.k is None else str(group.k)
        for line in group.lines:
            lines.append([shown, line.label, *map(_markdown_cell, line.cells)])
            shown = ""
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    caption = grid.caption.replace("The small grey number", "The small number")  # GitHub: no colour
    return f"{caption}\n\n{body}\n"


PACKAGES = (
    "% Needs \\usepackage{booktabs,xcolor}; where graphicx is there too, wide tables are shrunk.\n"
)
# Shrinks what is wider than the line; \resizebox is graphicx's.
FIT = r"""\providecommand{\flowhashfit}[1]{%
  \sbox0{#1}%
  \ifdim\wd0>\linewidth\ifdefined\resizebox\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi
  \else\usebox0\fi}
"""
SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "×": r"$\times$",
    "±": r"$\pm$",
    "µ": r"$\mu$",
    "λ": r"$\lambda$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "\N{MINUS SIGN}": "$-$",
    "\N{NO-BREAK SPACE}": "~",
    "–": "--",
    "…": r"\ldots{}",
    "∞": r"$\infty$",
}


def escape_latex(text: str) -> str:
    """Plain text for LaTeX."""
    return re.sub("|".join(map(re.escape, SPECIAL)), lambda found: SPECIAL[found[0]], text)


def _latex(grids: Sequence[Grid], notes: Sequence[str]) -> str:
    parts = [_latex_grid(grid) for grid in grids]
    if notes:
        items = [rf"\item {escape_latex(note)}" for note in notes]
        parts.append("\n".join([r"\begin{itemize}", *items, r"\end{itemize}", ""]))
    return PACKAGES + FIT + "\n" + "\n".join(parts)


def _latex_cell(cell: Cell, room: str) -> str:
    """One place; ``room`` is the column's longest number of the paper, for ours to line up."""
    mean = escape_latex(cell.mean)
    shown = f"\\textbf{{{mean}}}" if cell.bold else mean
    if cell.deviation:
        shown += f"{{\\tiny$\\pm${escape_latex(cell.deviation)}}}"
    if not cell.paper:
        return f"{shown} \\phantom{{\\scriptsize {room}}}" if shown and room else shown
    digits = "0" * (len(room) - len(cell.paper))
    free = f"\\phantom{{\\scriptsize {digits}}}" if digits else ""
    return f"{shown} {free}\\textcolor{{gray}}{{\\scriptsize {cell.paper}}}".strip()


def _latex_heads(grid: Grid) -> list[str]:
    width, count = len(grid.columns), len(grid.tables)
    titles = [escape_latex(column.title) for column in grid.columns] * count
    lines = [" & ".join(["", "method", *titles]) + r" \\"]
    if count > 1:
        over = [rf"\multicolumn{{{width}}}{{c}}{{\emph{{{escape_latex(t)}}}}}" for t in grid.tables]
        starts = [3 + width * place for place in range(count)]
        rules = " ".join(rf"\cmidrule(lr){{{start}-{start + width - 1}}}" for start in starts)
        lines = [" & ".join(["", "", *over]) + r" \\", rules, *lines]
    return lines


def _latex_grid(grid: Grid) -> str:
    """One floating table."""
    lines = [r"\toprule", *_latex_heads(grid)]
    rooms = [
        max((cell.paper for cell in column), key=len)
        for column in zip(*(line.cells for line in grid.lines), strict=True)
    ]
    for group in grid.groups:
        lines.append(r"\midrule")
        shown = "" if group.k is None else f"$k={group.k}$"
        for line in group.lines:
            cells = [shown, escape_latex(line.label), *map(_latex_cell, line.cells, rooms)]
            lines.append(" & ".join(cells) + r" \\")
            shown = ""
    columns = "ll" + "r" * (len(grid.columns) * len(grid.tables))
    body = "\n".join([*lines, r"\bottomrule"])
    return (
        "\\begin{table*}\n\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}\n"
        f"\\flowhashfit{{\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}}}\n"
        f"\\caption{{{escape_latex(grid.caption)}}}\n\\end{{table*}}\n"
    )
