"""The report: one page without anything from elsewhere."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import flowhash
from flowhash.durable_files import replace_file
from flowhash.evaluate.output.recall_chart import (
    ABOUT,
    HEADING,
    recall_caption,
    recall_chart,
    recall_columns,
    recall_lines,
)
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
    between,
    columns_with_values,
    less_exhaustive,
    make_grid,
    three_figures,
)
from flowhash.evaluate.output.result_tables import bold_words
from flowhash.evaluate.results import (
    Example,
    MergedRow,
    RecallCurves,
    Report,
    Row,
    merge_seeds,
    method_label,
    table_heading,
)
from flowhash.extras import require


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
        (each.name, charts)
        for number, each in enumerate(report.buckets)
        if (charts := bucket_charts(each, number, report.class_names))
    ]
    trainings = [
        (f"Stage: {stage}", charts)
        for number, stage in enumerate(stages(report.curves))
        if (charts := curve_charts(report.curves, stage, number))
    ]
    return {
        "report": report,
        "version": flowhash.__version__,
        "summary": [sentence for sentence in sentences if sentence is not None],
        "searched": searched,
        "recall": {"heading": HEADING, "about": ABOUT},
        "recalls": [_recall(each) for each in report.recall_curves],
        "chapters": {"Buckets": buckets, "Training": trainings},
        "queries": [_query(example, report.class_names) for example in report.examples],
    }


def _searched(report: Report, table: str) -> dict[str, Any]:
    """One searched table as the page shows it."""
    rows = [row for row in report.rows if row.table == table]
    merged, heading = merge_seeds(rows), table_heading(table)
    main = make_grid(
        rows, report.paper, columns_with_values(rows, MAIN), {table: heading}, "", narrow=True
    )
    rest = make_grid(
        rows, (), columns_with_values(rows, REST), {table: heading}, f"{heading}, more numbers",
        narrow=True,
    )  # fmt: skip
    return {
        "heading": heading,
        "main": replace(main, caption=_about(rows, any(main.in_paper))),
        "rest": rest if rest.columns else None,
        "footnotes": list(dict.fromkeys(each.note for each in merged if each.note)),
        "charts": row_charts(merged),
    }


def _recall(curves: RecallCurves) -> dict[str, Any]:
    """Recall against items scanned in one searched table."""
    return {
        "heading": table_heading(curves.table),
        "chart": recall_chart(curves),
        "caption": recall_caption(curves),
        "columns": recall_columns(curves),
        "lines": recall_lines(curves),
        "words": curves.words,
    }


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
    """The sentence of one searched table, whose rows are in order of k: at FlowHash's smallest.

    A baseline with a higher Pr@1 is named: the summary is for those who read nothing else, and
    must not leave out the rival. None where there is nothing to say.
    """
    if not merged:
        return None
    exhaustive = next((each for each in merged if each.k is None), None)
    best = next((each for each in merged if each.method == "flowhash"), None)
    where = WHERE.get(merged[0].table, f"In the {merged[0].table} table")
    if best is None:
        return None if exhaustive is None else (
            f"{where}, exhaustive search has Pr@1 {_per_cent(exhaustive)}."
        )  # fmt: skip
    words = (
        f"{where}, FlowHash with k{SPACE}={SPACE}{best.k} scans {_speed_up(best):,.1f}× fewer "
        f"items at Pr@1 {_per_cent(best)}"
    )
    if exhaustive is not None:
        words += f", exhaustive search has {_per_cent(exhaustive)}{_between(best)}"
    return words + _rivals(best, [each for each in merged if each.k == best.k]) + "."


def _between(ours: MergedRow) -> str:
    """The interval of the difference to exhaustive search."""
    lead = less_exhaustive(ours.rows, "pr1")
    return "" if lead is None else f" (a difference of {between(*lead)} points)"


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
    return each.mean("pr1") or 0.0


def _speed_up(each: MergedRow) -> float:
    return each.mean("suf") or 0.0


SIDE = 64  # pixels of a stored image, at most: it is shown no larger, and there are hundreds


def _query(example: Example, class_names: Sequence[str]) -> dict[str, Any]:
    """One query, and the answers of each method, right and wrong."""
    answers = [
        (
            method_label(method),
            [
                _shown(label, image, class_names) | {"right": label == example.label}
                for label, image in returned
            ],
        )
        for method, returned in example.answers.items()
    ]
    return _shown(example.label, example.image, class_names) | {"answers": answers}


def _shown(
    label: int, image: NDArray[np.uint8] | None, class_names: Sequence[str]
) -> dict[str, Any]:
    """An item's name, and its image as a data URI; None for vectors."""
    known = 0 <= label < len(class_names)
    return {
        "name": str(class_names[label]) if known else f"class {label}",
        "source": None if image is None else picture(image),
    }


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
