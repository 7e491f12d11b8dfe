"""The rows of a comparison as a table in the terminal."""

from __future__ import annotations

from typing import Any

from flowhash.extras import require


def rows_table(outcome: Any, table: str, title: str) -> Any:
    """One table of an outcome, a section for each k."""
    from flowhash.evaluate import METHODS, terminal_grid

    grid = terminal_grid(outcome.rows, table)
    drawn = require("rich.table", "cli").Table(title=title, title_justify="left")
    for name in ("method", "k", *(column.title for column in grid.columns)):
        drawn.add_column(name, justify="left" if name == "method" else "right")
    for group in grid.groups:
        k = "" if group.k is None else str(group.k)
        for line in group.lines:
            style = "bold" if line.label == METHODS["flowhash"] else None
            drawn.add_row(line.label, k, *(cell.text for cell in line.cells), style=style)
        if group.k is not None:
            drawn.add_section()
    return drawn
