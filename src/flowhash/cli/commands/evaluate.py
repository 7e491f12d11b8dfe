"""``flowhash evaluate``: an encoder beside other ways to search the same data."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from flowhash.cli import options
from flowhash.cli.config_file import save_settings
from flowhash.cli.locations import load_encoder, located, opened, writable
from flowhash.cli.output import Output, require_evaluation, rows_table, tell_comparison

command = typer.Typer(add_completion=False)


@command.command(epilog="Example:  flowhash evaluate digits.run digits --out results")
def evaluate(
    context: typer.Context,
    encoder: options.EncoderPath,
    data: options.Data,
    *,
    out: Annotated[Path, typer.Option(help="Where report and tables go.")],
    opening: options.Opening,
    size: options.Size = None,
    download: options.Download = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of k-means.")] = 0,
    device: options.Device = "auto",
    output: Output,
) -> None:
    """Compare an encoder with other ways to search the same data, and write a report.

    Exhaustive search, top dimensions, k-means, FAISS inverted lists and a classifier go through the
    same table and metrics.
    """
    require_evaluation()
    from flowhash.evaluate import evaluate, write_evaluation
    from flowhash.learn import read_journal

    loaded = load_encoder(encoder)
    given = opening.given(size=size, download=download)
    if loaded.preprocessing.size is not None and Path(data).expanduser().is_dir():
        given.setdefault("size", loaded.preprocessing.size)
    splits = opened(data, given, output.progress)
    writable(out)
    outcome = evaluate(
        loaded, splits, seed=seed, device=device, progress=output.progress, say=output.say
    )
    lines = read_journal(encoder / "metrics.jsonl")
    if lines:
        outcome.curves = {encoder.name or "run": lines}
    title = f"FlowHash on {Path(splits.train.source).name}"
    typed = "flowhash " + " ".join(shlex.quote(part) for part in sys.argv[1:])
    written = write_evaluation(outcome, out, title, typed)
    save_settings(context, out / "evaluate.toml", data=located(data))
    for table in dict.fromkeys(row.table for row in outcome.rows):
        output.show(rows_table(outcome, table, f"The {table} table"))
    tell_comparison(output, outcome, written)
