"""A grid as a LaTeX table: booktabs' rules, the paper's numbers in grey."""

from __future__ import annotations

import re

from flowhash.evaluate.grid import Cell, Grid

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
}


def escape_latex(text: str) -> str:
    """Plain text for LaTeX."""
    return re.sub("|".join(map(re.escape, SPECIAL)), lambda found: SPECIAL[found[0]], text)


def _latex_cell(cell: Cell, room: str) -> str:
    """One place; ``room`` is the column's longest number of the paper, for ours to line up."""
    mean = escape_latex(cell.mean)
    shown = f"\\textbf{{{mean}}}" if cell.bold else mean
    if cell.deviation:
        shown += f"{{\\tiny$\\pm${cell.deviation}}}"
    if not cell.paper:
        return f"{shown} \\phantom{{\\scriptsize {room}}}" if shown and room else shown
    digits = "0" * (len(room) - len(cell.paper))
    free = f"\\phantom{{\\scriptsize {digits}}}" if digits else ""
    return f"{shown} {free}\\textcolor{{gray}}{{\\scriptsize {cell.paper}}}".strip()


def _latex_heads(grid: Grid) -> list[str]:
    width, count = len(grid.columns), len(grid.tables)
    titles = [escape_latex(column) for column in grid.columns] * count
    lines = [" & ".join(["", "method", *titles]) + r" \\"]
    if count > 1:
        over = [rf"\multicolumn{{{width}}}{{c}}{{\emph{{{escape_latex(t)}}}}}" for t in grid.tables]
        starts = [3 + width * place for place in range(count)]
        rules = " ".join(rf"\cmidrule(lr){{{start}-{start + width - 1}}}" for start in starts)
        lines = [" & ".join(["", "", *over]) + r" \\", rules, *lines]
    return lines


def latex_grid(grid: Grid) -> str:
    """One floating table."""
    lines = [r"\toprule", *_latex_heads(grid)]
    rooms = [
        max((cell.paper for cell in column), key=len)
        for column in zip(*(line.cells for line in grid.lines), strict=True)
    ]
    for line, group in zip(grid.lines, grid.groups, strict=True):
        if group or line is grid.lines[0]:
            lines.append(r"\midrule")
        shown = f"${group.replace(' ', '')}$" if group else ""
        cells = [shown, escape_latex(line.method), *map(_latex_cell, line.cells, rooms)]
        lines.append(" & ".join(cells) + r" \\")
    columns = "ll" + "r" * (len(grid.columns) * len(grid.tables))
    body = "\n".join([*lines, r"\bottomrule"])
    return (
        "\\begin{table*}\n\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}\n"
        f"\\flowhashfit{{\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}}}\n"
        f"\\caption{{{escape_latex(grid.caption)}}}\n\\end{{table*}}\n"
    )
