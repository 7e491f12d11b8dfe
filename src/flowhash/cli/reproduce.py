"""``flowhash reproduce``: the paper's experiments, from nothing to tables."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from flowhash.cli.config import save_settings
from flowhash.cli.evaluate import answer, require_evaluation
from flowhash.cli.opening import opened, writable
from flowhash.cli.reply import Reply
from flowhash.errors import InputError

DATA = ("cifar100", "imagenet32")


@dataclass(frozen=True)
class Plan:
    """What is repeated; see the options of the command."""

    data: str
    loss: str
    preset: str
    seeds: int
    one_base: bool
    unseen: bool | None
    figure: bool

    def command(self) -> str:
        """What repeats it, for the results."""
        unseen = {True: " --unseen", False: " --no-unseen", None: ""}[self.unseen]
        return (
            f"flowhash reproduce {self.data} --loss {self.loss} --preset {self.preset} --seeds "
            f"{self.seeds}{' --one-base' * self.one_base}{unseen} --folder DATA --out RUNS"
        )


def reproduce(
    context: typer.Context,
    plan: Plan,
    opening: dict[str, Any],
    out: Path,
    results: Path | None,
    device: str,
    reply: Reply,
) -> None:
    """Open the data, train what is missing, search, write, say where it is."""
    if plan.data not in DATA:
        raise InputError(f"the data set is {plan.data!r}; the paper has {' and '.join(DATA)}")
    if plan.seeds < 1:
        raise InputError(f"seeds is {plan.seeds}; expected one or more")
    require_evaluation()
    from flowhash.evaluate import make_plan, reproduce, write_reproduction

    # A wrong name is found before the data is opened.
    made = make_plan(plan.data, plan.loss, plan.preset)
    place = out / "results" if results is None else results
    writable(out)
    writable(place)
    splits = opened(plan.data, opening)
    save_settings(context, out / "reproduce.toml", results=place)
    try:
        outcome = reproduce(
            splits, plan.data, plan.loss, out, preset=plan.preset, seeds=plan.seeds,
            one_base=plan.one_base, unseen=plan.unseen, device=device,
            quiet=reply.quiet, say=reply.say,
        )  # fmt: skip
    except KeyboardInterrupt:
        print(f"flowhash: stopped; the same command goes on from {out}", file=sys.stderr)
        sys.exit(130)
    written = write_reproduction(outcome, made.experiment, place, plan.command(), made.stem)
    if plan.figure:
        written += _solver_figure(place, reply)
    answer(reply, outcome, written)


def _solver_figure(place: Path, reply: Reply) -> list[Path]:
    """Figure 2: the solver's time for each size, measured now."""
    from flowhash.evaluate import measure_solver, solver_figure

    reply.say("measure the solver (Figure 2)")
    return solver_figure(measure_solver(), place / "figure-2")
