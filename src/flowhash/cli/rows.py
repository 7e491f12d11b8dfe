"""The rows of a comparison as a table in the terminal."""

from __future__ import annotations

from typing import Any

from flowhash.extras import require


def rows_table(outcome: Any, table: str, title: str) -> Any:
    """One table of an outcome, a section for each k."""
    from flowhash.evaluate import METHODS

    drawn = require("rich.table", "cli").Table(title=title, title_justify="left")
    for name in ("method", "k", "Pr@1", "Pr@4", "Pr@16", "SUF", "NMI"):
        drawn.add_column(name, justify="left" if name == "method" else "right")
    before = None
    for row in outcome.rows:
        if row.table != table:
            continue
        if before is not None and row.k != before:
            drawn.add_section()
        before = row.k
        numbers = [f"{value:.1f}" for value in (row.pr1, row.pr4, row.pr16, row.suf)]
        k = "" if row.k is None else str(row.k)
        style = "bold" if row.method == "flowhash" else None
        nmi = "" if row.nmi is None else f"{row.nmi:.1f}"
        drawn.add_row(METHODS[row.method], k, *numbers, nmi, style=style)
    return drawn
