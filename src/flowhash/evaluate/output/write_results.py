"""The files of an evaluation: tables, figures, numbers and the report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import flowhash
from flowhash.durable_files import replace_file
from flowhash.evaluate.output.paper_figures import has_objectives, objective_figure, suf_figure
from flowhash.evaluate.output.recall_chart import recall_markdown
from flowhash.evaluate.output.report_page import write_report
from flowhash.evaluate.output.result_tables import UNSEEN, result_tables
from flowhash.evaluate.paper_numbers import Experiment, paper_rows
from flowhash.evaluate.results import (
    Outcome,
    Report,
    Row,
    rows_as_csv,
    write_recall,
    write_rows,
)

RULES = (
    "Pr@K divides by K always; where a query's buckets hold fewer than K items, further ones are "
    "opened in the order of its activations until there are K. SUF is at the plain k buckets. A "
    "query that is itself in the table counts neither as found nor as scanned."
)

OBJECTIVE_WORDS = (
    "Of single batches of stage 2 (seed 0). M(θ) is the gap of the bound of Eq. 4: m·ĝ + M is an "
    "upper bound of g, the objective of the items, where ĝ is that of the class means, which the "
    "flow minimises exactly. The paper says that M falls while the network learns. All items of a "
    "class have its code here, so that g is m·ĝ exactly: its panel has the curve of ĝ on another "
    "axis. M grows with the length of the outputs, which npairs leaves free."
)


def write_reproduction(
    outcome: Outcome, experiment: Experiment, folder: Path, command: str, name: str = ""
) -> list[Path]:
    """Write an experiment of the paper: JSON, CSV, Markdown, LaTeX, figures and the report.

    Args:
        outcome: of ``reproduce``.
        experiment: of the paper.
        folder: where the files go.
        command: that repeats it.
        name: what the files' names begin with, ``ExperimentPlan.stem``; by default the data set's
            and the loss's names.

    Returns:
        What was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / (name or f"{experiment.data}-{experiment.loss}")
    paper = paper_rows(experiment.data, experiment.loss)
    facts = _facts(outcome, experiment.title, command)
    title = f"FlowHash on {experiment.title}: {outcome.kind}"
    *written, page = _write_rows_and_page(outcome, title, facts, paper, stem)
    written += [Path(f"{stem}.md"), Path(f"{stem}.tex")]
    tables = _tables(outcome, experiment, paper, "markdown")
    replace_file(written[-2], _markdown(outcome, experiment, facts, tables, stem.name).encode())
    replace_file(written[-1], "\n".join(_tables(outcome, experiment, paper, "latex")).encode())
    written += suf_figure(outcome.rows, paper, f"{stem}-suf")
    if has_objectives(outcome.curves):
        written += objective_figure(outcome.curves, f"{stem}-objective")
    return [*written, page]


def write_evaluation(
    outcome: Outcome, folder: Path, title: str, command: str, stem: str = "evaluation"
) -> list[Path]:
    """Write the evaluation of an encoder: JSON, CSV and the report.

    Where there are curves of recall, their points and what the recalls asked for came to are in
    ``STEM-recall.json`` and ``STEM-recall.md``.

    Returns:
        What was written, the report last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    facts = [fact for fact in _facts(outcome, title, command) if fact[0] not in ("data", "seeds")]
    *written, page = _write_rows_and_page(outcome, title, facts, (), folder / stem)
    if outcome.recall_curves:
        written += [folder / f"{stem}-recall.json", folder / f"{stem}-recall.md"]
        write_recall(written[-2], outcome.recall_curves)
        replace_file(written[-1], recall_markdown(title, outcome.recall_curves).encode())
    return [*written, page]


def _write_rows_and_page(
    outcome: Outcome,
    title: str,
    facts: Sequence[tuple[str, str]],
    paper: Sequence[Row],
    stem: Path,
) -> list[Path]:
    # The ending is added to the stem, which may have dots in it.
    written = [Path(f"{stem}{ending}") for ending in (".json", ".csv", ".html")]
    write_rows(written[0], outcome.rows)
    replace_file(written[1], rows_as_csv(outcome.rows).encode())
    page = Report(
        title, outcome.rows, facts, paper, outcome.buckets, outcome.examples, outcome.curves,
        outcome.class_names, (*outcome.words, RULES), outcome.recall_curves,
    )  # fmt: skip
    write_report(page, written[2])
    return written


def _tables(outcome: Outcome, experiment: Experiment, paper: Sequence[Row], form: str) -> list[str]:
    """Those of classes that training knows; and of others, where they were searched too."""
    rows, title = outcome.rows, experiment.title
    names, number = experiment.table_names, experiment.number
    found = [result_tables(rows, paper, title=title, names=names, number=number, form=form)]
    if any(row.table in UNSEEN for row in rows):
        found.append(result_tables(rows, title=title, names=UNSEEN, form=form))
    return found


def _facts(outcome: Outcome, title: str, command: str) -> list[tuple[str, str]]:
    """What stands at the head of the results."""
    seeds = sorted({row.seed for row in outcome.rows})
    facts = [
        ("data", title),
        ("command", command),
        ("seeds", ", ".join(map(str, seeds))),
        ("machine", machine()),
        ("FlowHash", flowhash.__version__),
    ]
    if outcome.seconds:
        facts.append(("training, minutes", _minutes(outcome.seconds)))
    facts.append(("evaluation, minutes", f"{outcome.evaluation / 60:.1f}"))
    return facts


def _minutes(seconds: Mapping[str, float]) -> str:
    """The trainings of each seed, and all together."""
    groups: dict[str, list[str]] = {}
    for name, value in seconds.items():
        group, _, part = name.partition(": ")
        groups.setdefault(group, []).append(f"{part} {value / 60:.1f}")
    words = [f"{group}: {', '.join(parts)}" for group, parts in groups.items()]
    return "; ".join([*words, f"together {sum(seconds.values()) / 60:.1f}"])


def _markdown(
    outcome: Outcome,
    experiment: Experiment,
    facts: Sequence[tuple[str, str]],
    tables: Sequence[str],
    stem: str,
) -> str:
    """The page under docs/results."""
    known, *unseen = tables
    head = [f"- {name}: `{value}`" if name == "command" else f"- {name}: {value}"
            for name, value in facts]  # fmt: skip
    parts = [
        f"# {experiment.title}: {outcome.kind}, beside the paper's table",
        "Written by the command below; do not edit by hand. The same rows for machines: "
        f"[{stem}.json]({stem}.json), [{stem}.csv]({stem}.csv); for a paper: "
        f"[{stem}.tex]({stem}.tex).",
        "\n".join(head),
        *outcome.words,
        RULES,
        "## Classes that training knows",
        known.rstrip(),
        f"## SUF against k (the paper's Figure 4)\n\n![SUF against k]({stem}-suf.png)",
    ]
    if has_objectives(outcome.curves):
        parts += [
            "## What Algorithm 1 minimises, against the step",
            OBJECTIVE_WORDS,
            f"![M, ĝ and g against the step]({stem}-objective.png)",
        ]
    for table in unseen:
        parts += ["## Classes that training had not", table.rstrip()]
    return "\n\n".join(parts) + "\n"


PACKAGES = ("numpy", "numba", "torch", "faiss-cpu")


def machine() -> str:
    """The processor, its cores and the versions of what ran on it."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.processor() or platform.machine()
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        found.append(f"{package} {version.partition('+')[0]}")
    return f"{model}, {os.cpu_count()} cores; {', '.join(found)}"
