"""``fit``, ``evaluate`` and ``reproduce``: what trains and compares."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowhash.cli import options
from flowhash.cli.reply import Reply

OPENING = ("folder", "labels", "embedding", "label", "size", "download", "ignore_other")


def register(app: typer.Typer) -> None:
    """Add ``fit``."""
    app.command(epilog="Example:  flowhash fit digits --buckets 32 --active 2")(fit)


def register_comparing(app: typer.Typer) -> None:
    """Add ``evaluate`` and ``reproduce``."""
    app.command(epilog="Example:  flowhash evaluate digits.run digits --out results")(evaluate)
    example = "Example:  flowhash reproduce cifar100 --loss triplet --folder data --out runs"
    app.command(epilog=example)(reproduce)


def opening(context: typer.Context) -> dict[str, object]:
    """The options that say how a data set is opened, as far as they were given."""
    given = {name: context.params.get(name) for name in OPENING}
    return {name: value for name, value in given.items() if value}


def fit(
    context: typer.Context,
    data: options.Data,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder, DATA.run if not given; an interrupted run goes on."),
    ] = None,
    buckets: Annotated[int | None, typer.Option(min=1, help="d, how many buckets.")] = None,
    active: Annotated[int | None, typer.Option(min=1, help="k, buckets of each item.")] = None,
    penalty: Annotated[float | None, typer.Option(help="λ, what sharing a bucket costs.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            autocompletion=options.complete_preset,
            help="Settings by name: cpu-cifar100-LOSS, paper-cifar100-LOSS or "
            "paper-imagenet32-LOSS, with npairs or triplet, or cpu-digits. Without it they suit "
            "the data.",
        ),
    ] = None,
    rank: Annotated[
        str | None, typer.Option(help="base, or hash to rank with the hash network's outputs.")
    ] = None,
    flip: Annotated[
        bool, typer.Option(help="Mirror images at random; not for letters or left and right.")
    ] = True,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Of each stage, instead of what suits the data.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Of the training; splits have their own.")
    ] = 0,
    folder: options.Folder = None,
    labels: options.Labels = None,
    embedding: options.Embedding = None,
    label: options.Label = None,
    size: options.Size = None,
    ignore_other: options.IgnoreOther = False,
    download: options.Download = False,
    device: options.Device = "auto",
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Learn an encoder from labelled data: a base embedding, then its buckets (Algorithm 1).

    Ctrl-C stops it between two steps; the same command goes on where it stopped. On several GPUs or
    processes: torchrun --nproc-per-node N -m flowhash.cli fit ….
    """
    from flowhash.cli.fit import Choices, fit

    choices = Choices(preset, buckets, active, penalty, rank, flip, seed, steps)
    fit(context, data, opening(context), out, choices, device, Reply(quiet, as_json))


def evaluate(
    context: typer.Context,
    encoder: options.EncoderPath,
    data: options.Data,
    out: Annotated[Path, typer.Option(help="Where report and tables go.")],
    folder: options.Folder = None,
    labels: options.Labels = None,
    embedding: options.Embedding = None,
    label: options.Label = None,
    size: options.Size = None,
    ignore_other: options.IgnoreOther = False,
    download: options.Download = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of k-means.")] = 0,
    device: options.Device = "auto",
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Compare an encoder with other ways to search the same data, and write a report.

    Exhaustive search, top dimensions, k-means, FAISS inverted lists and a classifier go through the
    same table and metrics.
    """
    from flowhash.cli.evaluate import evaluate

    reply = Reply(quiet, as_json)
    evaluate(context, encoder, data, opening(context), out, seed, device, reply)


def reproduce(
    context: typer.Context,
    data: Annotated[str, typer.Argument(metavar="DATA", help="cifar100 or imagenet32.")],
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
        bool, typer.Option("--one-base", help="All seeds share stage 1 of seed 0.")
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
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Repeat the paper's experiments: its Tables 1 to 5, Figures 2 and 4, and honest rivals.

    Trains what is missing for every k, searches the train and test tables, and writes Markdown,
    LaTeX, CSV, JSON and a report. Ctrl-C stops it; the same command goes on. The preset cpu has the
    paper's data and tables, but not its training: the report says how it differs.
    """
    from flowhash.cli.reproduce import Plan, reproduce

    plan = Plan(data, loss, preset, seeds, one_base, unseen, figure)
    reproduce(context, plan, opening(context), out, results, device, Reply(quiet, as_json))
