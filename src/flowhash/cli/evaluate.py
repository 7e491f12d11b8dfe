"""``flowhash evaluate``: an encoder beside other ways to search the same data."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from flowhash.cli.fit import opened
from flowhash.errors import InputError
from flowhash.extras import require


def evaluate(
    run: Path,
    source: str,
    opening: dict[str, Any],
    out: Path,
    seed: int,
    device: str,
    quiet: bool,
) -> None:
    """Load the encoder, open the data, compare, print the table, write the report."""
    require_evaluation()
    writable(out)
    from flowhash.encoder import Encoder
    from flowhash.evaluate import evaluate
    from flowhash.evaluate.output import write_evaluation
    from flowhash.learn.journal import read_journal

    folder = run / "encoder" if (run / "encoder" / "encoder.json").exists() else run
    if not (folder / "encoder.json").exists():
        what = "holds no finished encoder" if run.exists() else "does not exist"
        raise InputError(
            f"{run} {what}; expected the folder that `flowhash fit --out` made, or the encoder "
            "in it"
        )
    encoder = Encoder.load(folder)
    splits = opened(source, {name: value for name, value in opening.items() if value})
    outcome = evaluate(
        encoder, splits, seed=seed, device=device, progress=not quiet,
        say=(lambda words: None) if quiet else (lambda words: print(words, flush=True)),
    )  # fmt: skip
    lines = read_journal(run / "metrics.jsonl")
    if lines:
        outcome.curves = {run.name or "run": lines}
    title = f"FlowHash on {Path(splits.train.source).name}"
    for path in write_evaluation(outcome, out, title, command()):
        print(f"wrote {path}")


def require_evaluation() -> None:
    """See that everything is installed before hours are spent."""
    for module in ("torch", "sklearn", "PIL", "matplotlib", "jinja2"):
        require(module, "evaluate")


def writable(folder: Path) -> None:
    """Make a folder for results before the work, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"cannot write to {folder}: {error.strerror}; choose another folder"
        ) from error


def command() -> str:
    """What the user typed, for the report."""
    return "flowhash " + " ".join(shlex.quote(part) for part in sys.argv[1:])
