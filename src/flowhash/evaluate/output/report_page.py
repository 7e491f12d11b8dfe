"""The report: one page without anything from elsewhere."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import flowhash
from flowhash.durable_files import replace_file
from flowhash.evaluate.output.chart_canvas import Chart
from flowhash.evaluate.output.markdown_latex import bold_words
from flowhash.evaluate.output.report_charts import (
    bucket_charts,
    curve_charts,
    mean_flat,
    row_charts,
    stages,
)
from flowhash.evaluate.output.result_grid import (
    MAIN,
    REST,
    SPACE,
    Grid,
    between,
    columns_with_values,
    make_grid,
    three_figures,
)
from flowhash.evaluate.results import (
    Example,
    MergedRow,
    Report,
    Row,
    active_counts,
    merge_seeds,
    method_label,
    table_heading,
)
from flowhash.extras import require


@dataclass(frozen=True)
class Searched:
    """One searched table as the page shows it."""

    heading: str
    main: Grid
    rest: Grid | None
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
    merged = merge_seeds(report.rows)
    tables = list(dict.fromkeys(each.table for each in merged))
    searched = [_searched(report, table) for table in tables]
    sentences = [summarise([each for each in merged if each.table == table]) for table in tables]
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


def _searched(report: Report, table: str) -> Searched:
    rows = [row for row in report.rows if row.table == table]
    merged, heading = merge_seeds(rows), table_heading(table)
    main = make_grid(
        rows, report.paper, columns_with_values(rows, MAIN), {table: heading}, "", narrow=True
    )
    rest = make_grid(
        rows, (), columns_with_values(rows, REST), {table: heading}, f"{heading}, more numbers",
        narrow=True,
    )  # fmt: skip
    return Searched(
        heading=heading,
        main=replace(main, caption=_about(rows, any(main.in_paper))),
        rest=rest if rest.columns else None,
        footnotes=list(dict.fromkeys(each.note for each in merged if each.note)),
        charts=row_charts(merged),
    )


def _about(rows: Sequence[Row], in_paper: bool) -> str:
    """What was searched, and how to read the cells."""
    items, queries_asked = max(row.items for row in rows), max(row.queries for row in rows)
    words = []
    if items and queries_asked:
        words.append(f"{queries_asked:,} queries among {items:,} items.")
    flat = mean_flat(merge_seeds(rows))
    if flat is not None:
        micros = 1e6 * flat
        words.append(f"FAISS Flat takes {micros:,.{three_figures(micros)}f} µs a query.")
    seeds = len({row.seed for row in rows})
    if seeds > 1:
        words.append(f"Mean ± sample standard deviation over {seeds} seeds.")
    if in_paper:
        words.append("Small and grey: the paper's own numbers.")
    return " ".join([*words, bold_words(rows)])


WHERE = {
    "train": "Among training items",
    "test": "Among test items",
    "unseen": "Among classes that training had not",
}


def summarise(merged: Sequence[MergedRow]) -> str | None:
    """The sentence of one searched table, at the smallest k of FlowHash.

    A baseline with a higher Pr@1 is named: the summary is for those who read nothing else, and
    must not leave out the rival.
    """
    exhaustive = next((each for each in merged if each.k is None), None)
    ours = [each for each in merged if each.method == "flowhash"]
    counts = active_counts(ours)
    if not merged:
        return None
    where = WHERE.get(merged[0].table, f"In the {merged[0].table} table")
    if not counts:
        return None if exhaustive is None else (
            f"{where}, exhaustive search has Pr@1 {_per_cent(exhaustive)}."
        )  # fmt: skip
    k = counts[0]
    best = next(each for each in ours if each.k == k)
    words = (
        f"{where}, FlowHash with k{SPACE}={SPACE}{k} scans {_speed_up(best):,.1f}× fewer items "
        f"at Pr@1 {_per_cent(best)}"
    )
    if exhaustive is not None:
        words += f", exhaustive search has {_per_cent(exhaustive)}{_between(best)}"
    return words + _rivals(best, [each for each in merged if each.k == k]) + "."


def _between(ours: MergedRow) -> str:
    """The interval of the difference to exhaustive search, the widest of all seeds."""
    ends = [(row.pr1_low, row.pr1_high) for row in ours.rows]
    low = min((low for low, _ in ends if low is not None), default=None)
    high = max((high for _, high in ends if high is not None), default=None)
    if low is None or high is None:
        return ""
    return f" (a difference of {between(low, high)} points)"


def _rivals(ours: MergedRow, same: Sequence[MergedRow]) -> str:
    """What other methods of the same k do better or as well as can be told, or that none does."""
    others = [each for each in same if each is not ours]
    if not others:
        return ""
    ahead = [each for each in others if _precision(each) > _precision(ours)]
    level = [each for each in others if each not in ahead and _level(ours, each)]
    if not ahead and not level:
        return "; no other method has a higher Pr@1 at this k"
    words = _named("; a higher Pr@1 at this k", ahead)
    return words + _named("; level, as far as these queries can tell", level)


def _named(words: str, merged: Sequence[MergedRow]) -> str:
    ordered = sorted(merged, key=_precision, reverse=True)
    named = ", ".join(
        f"{each.label} ({_per_cent(each)} at {_speed_up(each):,.1f}×)" for each in ordered
    )
    return f"{words}: {named}" if named else ""


def _level(ours: MergedRow, other: MergedRow) -> bool:
    """Whether the interval of the difference in Pr@1 reaches zero in any seed."""
    leads = [row.leads.get(other.method) for row in ours.rows]
    return any(lead is not None and lead["pr1"][0] <= 0 for lead in leads)


def _per_cent(each: MergedRow) -> str:
    return f"{_precision(each):.1f}{SPACE}%"


def _precision(each: MergedRow) -> float:
    return each.mean(lambda row: row.pr1) or 0.0


def _speed_up(each: MergedRow) -> float:
    return each.mean(lambda row: row.suf) or 0.0


SIDE = 64  # pixels of a stored image, at most: it is shown no larger, and there are hundreds


@dataclass(frozen=True)
class ShownAnswer:
    """One item that came back; ``source`` is a data URI, or None for vectors."""

    name: str
    source: str | None
    right: bool


@dataclass(frozen=True)
class ShownQuery:
    """One query, and the answers of each method."""

    name: str
    source: str | None
    answers: tuple[tuple[str, tuple[ShownAnswer, ...]], ...]


def queries(examples: Sequence[Example], class_names: Sequence[str]) -> list[ShownQuery]:
    """Everything the grid shows."""
    return [_query(example, class_names) for example in examples]


def _query(example: Example, names: Sequence[str]) -> ShownQuery:
    answers = tuple(
        (
            method_label(method),
            tuple(
                ShownAnswer(_name(label, names), _source(image), label == example.label)
                for label, image in returned
            ),
        )
        for method, returned in example.answers.items()
    )
    return ShownQuery(_name(example.label, names), _source(example.image), answers)


def _name(label: int, names: Sequence[str]) -> str:
    return str(names[label]) if 0 <= label < len(names) else f"class {label}"


def _source(image: NDArray[np.uint8] | None) -> str | None:
    return None if image is None else picture(image)


def picture(image: NDArray[np.uint8]) -> str:
    """A PNG as a data URI; small images keep every pixel, large ones are made smaller."""
    images = require("PIL.Image", "evaluate")
    pixels = np.ascontiguousarray(image)
    if pixels.ndim == 3 and pixels.shape[2] == 1:  # grey: Pillow wants it flat
        pixels = pixels[:, :, 0]
    made = images.fromarray(pixels)
    made.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    made.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
