"""``flowhash reproduce``: the paper's experiments, from nothing to tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowhash.cli import options
from flowhash.cli.config_file import save_settings
from flowhash.cli.locations import opened, writable
from flowhash.cli.output import Output, require_evaluation, stoppable, tell_comparison
from flowhash.errors import InputError

DATA = ("cifar100", "imagenet32")

command = typer.Typer(add_completion=False)


@command.command(
    epilog="Example:  flowhash reproduce cifar100 --loss triplet --folder data --out runs"
)
def reproduce(
    context: typer.Context,
    data: Annotated[str, typer.Argument(metavar="DATA", help="cifar100 or imagenet32.")],
    *,
    out: Annotated[Path, typer.Option(help="For networks; an interrupted run goes on.")],
    folder: options.Folder = None,
    loss: Annotated[str, typer.Option(help="triplet or npairs.")] = "triplet",
    preset: Annotated[
        str,
        typer.Option(
            help="paper, the paper's training (a GPU and days); method, the same with a smaller "
            "network and fewer steps (two cores, some hours); cpu, a classifier's buckets, refined "
            "(two cores, an hour)."
        ),
    ] = "cpu",
    seeds: Annotated[int, typer.Option(min=1, help="How many trainings, with seeds 0, 1, …")] = 1,
    one_base: Annotated[
        bool,
        typer.Option(
            "--one-base", help="All seeds share stage 1 of seed 0; rivals are trained once."
        ),
    ] = False,
    unseen: Annotated[
        bool | None,
        typer.Option(
            help="Train on four fifths of the classes too, search the others; by default with the "
            "preset cpu only.",
            show_default=False,
        ),
    ] = None,
    figure: Annotated[bool, typer.Option(help="Measure the solver for Figure 2.")] = True,
    results: Annotated[
        Path | None, typer.Option(help="Where tables, figures and report go; OUT/results if not.")
    ] = None,
    download: options.Download = False,
    device: options.Device = "auto",
    output: Output,
) -> None:
    """Repeat the paper's experiments: its Tables 1 to 5, Figures 2 and 4, and honest rivals.

    Trains what is missing for every k, searches the train and test tables, and writes Markdown,
    LaTeX, CSV, JSON and a report. Ctrl-C stops it; the same command goes on. The preset cpu has the
    paper's data and tables, but not its training: the report says how it differs.
    """
    if data not in DATA:
        raise InputError(f"the data set is {data!r}; the paper has {' and '.join(DATA)}")
    require_evaluation()
    from flowhash.evaluate import (
        make_plan,
        measure_solver,
        reproduce,
        solver_figure,
        write_reproduction,
    )

    plan = make_plan(data, loss, preset)  # a wrong name is found before the data is opened
    place = out / "results" if results is None else results
    writable(out)
    writable(place)
    given = options.Opening(folder).given(download=download)
    splits = opened(data, given, output.progress)
    save_settings(context, out / "reproduce.toml", results=place)
    with stoppable(lambda: f"the same command goes on from {out}"):
        outcome = reproduce(
            splits, data, loss, out, preset=preset, seeds=seeds, one_base=one_base, unseen=unseen,
            device=device, quiet=output.quiet, say=output.say,
        )  # fmt: skip
    typed = repeating_command(data, loss, preset, seeds, one_base, unseen)
    written = write_reproduction(outcome, plan.experiment, place, typed, plan.stem)
    if figure:
        output.say("measure the solver (Figure 2)")
        written += solver_figure(measure_solver(), place / "figure-2")
    tell_comparison(output, outcome, written)


def repeating_command(
    data: str, loss: str, preset: str, seeds: int, one_base: bool, unseen: bool | None
) -> str:
    """What repeats it anywhere, for the results."""
    searched = {True: " --unseen", False: " --no-unseen", None: ""}[unseen]
    return (
        f"flowhash reproduce {data} --loss {loss} --preset {preset} --seeds {seeds}"
        f"{' --one-base' * one_base}{searched} --folder DATA --out RUNS"
    )
