"""The page: gathers tables, charts and pictures, and writes them into one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import flowhash
from flowhash.durable_files import replace_file
from flowhash.evaluate.report.bucket_charts import bucket_charts
from flowhash.evaluate.report.canvas import Chart
from flowhash.evaluate.report.charts import row_charts
from flowhash.evaluate.report.curve_charts import curve_charts, stages
from flowhash.evaluate.report.examples import queries
from flowhash.evaluate.report.merged import Entry, merge, table_names
from flowhash.evaluate.report.summary import summarise
from flowhash.evaluate.report.tables import (
    MAIN,
    REST,
    Table,
    build_table,
    flat_seconds,
    footnotes,
    heading,
    three_figures,
)
from flowhash.evaluate.results import Report
from flowhash.evaluate.tables import bold_words
from flowhash.extras import require


@dataclass(frozen=True)
class Searched:
    """One searched table as the page shows it."""

    heading: str
    about: str
    main: Table
    rest: Table | None
    footnotes: Sequence[str]
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Panel:
    """Charts under one heading."""

    heading: str
    charts: Sequence[Chart]


def write_report(report: Report, path: str | Path) -> Path:
    """Write the report as one HTML file that needs no network.

    Args:
        report: what to show; whatever it has not is left out.
        path: the file, which is replaced in one step.

    Returns:
        The path.

    Raises:
        MissingExtraError: matplotlib, jinja2 or pillow is not installed.
        OSError: the file cannot be written; the message names it.
    """
    written = Path(path)
    # Names of files that are no UTF-8 may be among the facts; a page must be UTF-8.
    replace_file(written, render_report(report).encode("utf-8", "replace"))
    return written


def render_report(report: Report) -> str:
    """The report as HTML."""
    jinja2 = require("jinja2", "evaluate")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(_packaged("report.html"))
    return str(page.render(css=_packaged("report.css"), **_content(report)))


def _packaged(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _content(report: Report) -> dict[str, Any]:
    entries, paper = merge(report.rows), merge(report.paper)
    tables = table_names(entries)
    searched = [_searched(_of(entries, table), _of(paper, table)) for table in tables]
    sentences = [summarise(_of(entries, table)) for table in tables]
    buckets = [
        Panel(each.name, charts)
        for number, each in enumerate(report.buckets)
        if (charts := bucket_charts(each, number, report.class_names))
    ]
    trainings = [
        Panel(f"Stage: {stage}", charts)
        for number, stage in enumerate(stages(report.curves))
        if (charts := curve_charts(report.curves, stage, number))
    ]
    return {
        "report": report,
        "version": flowhash.__version__,
        "summary": [sentence for sentence in sentences if sentence is not None],
        "searched": searched,
        "panels": [
            (title, name, panels)
            for title, name, panels in (
                ("Buckets", "buckets", buckets), ("Training", "training", trainings)
            )
            if panels
        ],
        "queries": queries(report.examples, report.class_names),
    }  # fmt: skip


def _of(entries: Sequence[Entry], table: str) -> list[Entry]:
    return [entry for entry in entries if entry.table == table]


def _searched(entries: Sequence[Entry], paper: Sequence[Entry]) -> Searched:
    main = build_table(entries, paper, MAIN)
    assert main is not None  # every row has Pr@1
    return Searched(
        heading=heading(entries[0].table),
        about=_about(entries, main),
        main=main,
        rest=build_table(entries, (), REST),
        footnotes=footnotes(entries),
        charts=row_charts(entries),
    )


def _about(entries: Sequence[Entry], main: Table) -> str:
    """What was searched, and how to read the cells."""
    rows = [row for entry in entries for row in entry.rows]
    items, queries_asked = max(row.items for row in rows), max(row.queries for row in rows)
    words = []
    if items and queries_asked:
        words.append(f"{queries_asked:,} queries among {items:,} items.")
    flat = flat_seconds(entries)
    if flat is not None:
        micros = 1e6 * flat
        words.append(f"FAISS Flat takes {micros:,.{three_figures(micros)}f} µs a query.")
    seeds = len({row.seed for row in rows})
    if seeds > 1:
        words.append(f"Mean ± sample standard deviation over {seeds} seeds.")
    if any(main.paper):
        words.append("Small and grey: the paper's own numbers.")
    return " ".join([*words, bold_words(rows)])
