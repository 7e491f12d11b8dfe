"""The demo's second half: learn the digits' buckets, compare, and write a report to look at."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.cli.evaluate import require_evaluation
from flowhash.errors import InputError, MissingExtraError
from flowhash.extras import require

if TYPE_CHECKING:
    from rich.console import Console

SIDE = 8


def learn_and_report(console: Console, out: Path) -> None:
    """Train on digits, put all methods through the table, print the rows, write the report."""
    try:
        require_evaluation()
    except MissingExtraError as error:
        console.print(f"Nothing is learned here: {error}\n", markup=False)
        return
    from flowhash.data import open_data
    from flowhash.evaluate import evaluate
    from flowhash.evaluate.output import write_evaluation
    from flowhash.learn import preset, train
    from flowhash.learn.journal import read_journal

    splits = open_data("digits")
    console.print("Learning buckets from the same digits: both stages, a few seconds …")
    try:
        encoder = train(splits, preset("cpu-digits"), out / "run", quiet=True)
    except InputError:  # of another FlowHash, with other settings
        shutil.rmtree(out / "run")
        encoder = train(splits, preset("cpu-digits"), out / "run", quiet=True)
    outcome = evaluate(encoder, splits, draw=drawn)
    outcome.curves = {"digits": read_journal(out / "run" / "metrics.jsonl")}
    written = write_evaluation(
        outcome, out, "FlowHash on handwritten digits", "flowhash demo", "report"
    )
    _print_rows(console, outcome)
    console.print(f"\nThe report, to open in a browser: [bold]{written[-1]}[/]\n")


def drawn(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """A digit, pixels from 0 to 1 [64], as an image, dark on light [8, 8, 3]."""
    grey = 255 - 255 * pixels.reshape(SIDE, SIDE)
    return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)


def _print_rows(console: Console, outcome: Any) -> None:
    from flowhash.evaluate import METHODS

    table = require("rich.table", "demo").Table(
        title="Each test digit searched among the others", title_justify="left"
    )
    for name in ("method", "Pr@1", "Pr@4", "Pr@16", "SUF", "NMI"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in outcome.rows:
        if row.table == "test":
            numbers = [f"{value:.1f}" for value in (row.pr1, row.pr4, row.pr16, row.suf)]
            nmi = "" if row.nmi is None else f"{row.nmi:.1f}"
            table.add_row(METHODS[row.method], *numbers, nmi)
    console.print(table)
