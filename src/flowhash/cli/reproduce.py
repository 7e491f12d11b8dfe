"""``flowhash reproduce``: the paper's experiments, from nothing to tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from flowhash.cli.evaluate import require_evaluation, writable
from flowhash.cli.fit import opened
from flowhash.errors import InputError

DATA = ("cifar100", "imagenet32")


def reproduce(
    data: str,
    opening: dict[str, Any],
    out: Path,
    results: Path | None,
    loss: str,
    preset: str,
    seeds: int,
    unseen: bool,
    figure: bool,
    device: str,
    quiet: bool,
) -> None:
    """Open the data, train what is missing, search, write, say where it is."""
    if data not in DATA:
        raise InputError(f"the data set is {data!r}; the paper has {' and '.join(DATA)}")
    if seeds < 1:
        raise InputError(f"seeds is {seeds}; expected one or more")
    require_evaluation()
    from flowhash.evaluate import reproduce
    from flowhash.evaluate.output import write_reproduction
    from flowhash.evaluate.plan import make_plan

    plan = make_plan(data, loss, preset)  # a wrong name is found before the data is opened
    place = out / "results" if results is None else results
    writable(out)
    writable(place)
    splits = opened(data, {name: value for name, value in opening.items() if value})
    try:
        outcome = reproduce(
            splits, data, loss, out, preset=preset, seeds=seeds, unseen=unseen, device=device,
            quiet=quiet, say=(lambda words: None) if quiet else _say,
        )  # fmt: skip
    except KeyboardInterrupt:
        print(f"flowhash: stopped; the same command goes on from {out}", file=sys.stderr)
        sys.exit(130)
    words = (
        f"flowhash reproduce {data} --loss {loss} --preset {preset} --seeds {seeds}"
        f"{'' if unseen else ' --no-unseen'} --folder DATA --out RUNS"
    )
    written = write_reproduction(outcome, plan.experiment, place, words)
    if figure:
        written += _solver_figure(place, quiet)
    for path in written:
        print(f"wrote {path}")


def _solver_figure(place: Path, quiet: bool) -> list[Path]:
    """Figure 2: the solver's time for each size, measured now."""
    from flowhash.evaluate.figures import measure_solver, solver_figure

    if not quiet:
        _say("measure the solver (Figure 2)")
    return solver_figure(measure_solver(), place / "figure-2")


def _say(words: str) -> None:
    print(words, flush=True)
