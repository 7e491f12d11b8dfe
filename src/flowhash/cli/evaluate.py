"""``flowhash evaluate``: an encoder beside other ways to search the same data."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import typer

from flowhash.cli.config import save_settings
from flowhash.cli.opening import load_encoder, located, opened, writable
from flowhash.cli.reply import Reply
from flowhash.cli.rows import rows_table
from flowhash.extras import require


def evaluate(
    context: typer.Context,
    run: Path,
    data: str,
    opening: dict[str, Any],
    out: Path,
    seed: int,
    device: str,
    reply: Reply,
) -> None:
    """Load the encoder, open the data, compare, print the table, write the report."""
    require_evaluation()
    from flowhash.evaluate import evaluate, write_evaluation
    from flowhash.learn import read_journal

    encoder = load_encoder(run)
    if encoder.preprocessing.size is not None and Path(data).expanduser().is_dir():
        opening.setdefault("size", encoder.preprocessing.size)
    splits = opened(data, opening)
    writable(out)
    outcome = evaluate(
        encoder, splits, seed=seed, device=device, progress=not reply.quiet, say=reply.say
    )
    lines = read_journal(run / "metrics.jsonl")
    if lines:
        outcome.curves = {run.name or "run": lines}
    title = f"FlowHash on {Path(splits.train.source).name}"
    written = write_evaluation(outcome, out, title, command())
    save_settings(context, out / "evaluate.toml", data=located(data))
    for table in dict.fromkeys(row.table for row in outcome.rows):
        reply.show(rows_table(outcome, table, f"The {table} table"))
    answer(reply, outcome, written)


def answer(reply: Reply, outcome: Any, written: list[Path]) -> None:
    """The rows for scripts, the files for people."""
    from dataclasses import asdict

    facts = {"rows": [asdict(row) for row in outcome.rows], "written": written}
    reply.result(facts, *(f"wrote {path}" for path in written))


def require_evaluation() -> None:
    """See that everything is installed before hours are spent."""
    for module in ("torch", "sklearn", "PIL", "matplotlib", "jinja2"):
        require(module, "evaluate")


def command() -> str:
    """What the user typed, for the report."""
    return "flowhash " + " ".join(shlex.quote(part) for part in sys.argv[1:])
