"""The command's frame: its options, its sub-commands, and how it ends.

Exit code 0 is success, 2 the user's mistake (one line says which), 1 a fault of ours.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flowhash import __version__
from flowhash.cli import options
from flowhash.errors import (
    DamagedFileError,
    InputError,
    MissingExtraError,
    StorageError,
    TrainingError,
)

app = typer.Typer(
    name="flowhash",
    help="Learn a search index together with an embedding.",
    epilog="Example:  flowhash demo",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"flowhash {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Show the version.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Learn a search index together with an embedding."""


@app.command(epilog="Example:  flowhash demo --active 2 --penalty 0.5")
def demo(
    active: Annotated[int, typer.Option(help="k, the buckets of each digit, 1 to 8.")] = 3,
    penalty: Annotated[
        float, typer.Option(help="λ, what sharing a bucket costs, 0 or more.")
    ] = 1.0,
    learn: Annotated[bool, typer.Option(help="Learn buckets too, and write a report.")] = True,
    out: Annotated[Path, typer.Option(help="Where the learned encoder and the report go.")] = Path(
        "flowhash-demo"
    ),
) -> None:
    """See solver, table and learning at work on handwritten digits, and get a report."""
    from flowhash.cli.demo import show

    show(active, penalty, out if learn else None)


@app.command(
    epilog="Example:  flowhash fit cifar100 --folder data --preset cpu-cifar100-triplet --out run"
)
def fit(
    source: options.Data,
    out: Annotated[Path, typer.Option(help="The run's folder; an interrupted run goes on.")],
    folder: options.Folder = None,
    labels: options.Labels = None,
    embedding: options.Embedding = None,
    label: options.Label = None,
    size: options.Size = None,
    ignore_other: options.IgnoreOther = False,
    download: options.Download = False,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings by name: cpu-cifar100-LOSS, paper-cifar100-LOSS or "
            "paper-imagenet32-LOSS, with npairs or triplet, or cpu-digits. Without it they suit "
            "the data."
        ),
    ] = None,
    buckets: Annotated[int | None, typer.Option(help="d, how many buckets.")] = None,
    active: Annotated[int | None, typer.Option(help="k, buckets of each item.")] = None,
    penalty: Annotated[float | None, typer.Option(help="λ, what sharing a bucket costs.")] = None,
    rank: Annotated[
        str | None, typer.Option(help="base, or hash to rank with the hash network's outputs.")
    ] = None,
    flip: Annotated[
        bool, typer.Option(help="Mirror images at random; not for letters or left and right.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of the training; splits have their own.")] = 0,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
) -> None:
    """Learn an encoder from labelled data: a base embedding, then its buckets (Algorithm 1).

    Ctrl-C stops it between two steps; the same command goes on where it stopped. On several GPUs or
    processes: torchrun --nproc-per-node N -m flowhash.cli fit ….
    """
    from flowhash.cli.fit import Choices, fit

    choices = Choices(preset, buckets, active, penalty, rank, flip, seed)
    opening = {
        "folder": folder, "labels": labels, "embedding": embedding, "label": label, "size": size,
        "download": download, "ignore_other": ignore_other,
    }  # fmt: skip
    fit(source, opening, out, choices, device, quiet)


@app.command(epilog="Example:  flowhash evaluate run digits --out results")
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run of fit, or an encoder.")],
    source: options.Data,
    out: Annotated[Path, typer.Option(help="Where report and tables go.")],
    folder: options.Folder = None,
    labels: options.Labels = None,
    embedding: options.Embedding = None,
    label: options.Label = None,
    size: options.Size = None,
    ignore_other: options.IgnoreOther = False,
    download: options.Download = False,
    seed: Annotated[int, typer.Option(help="Of k-means.")] = 0,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
) -> None:
    """Compare an encoder with other ways to search the same data, and write a report.

    Exhaustive search, top dimensions, k-means, FAISS inverted lists and a classifier go through the
    same table and metrics.
    """
    from flowhash.cli.evaluate import evaluate

    opening = {
        "folder": folder, "labels": labels, "embedding": embedding, "label": label, "size": size,
        "download": download, "ignore_other": ignore_other,
    }  # fmt: skip
    evaluate(run, source, opening, out, seed, device, quiet)


@app.command(epilog="Example:  flowhash reproduce cifar100 --loss triplet --folder data --out runs")
def reproduce(
    data: Annotated[str, typer.Argument(metavar="DATA", help="cifar100 or imagenet32.")],
    out: Annotated[Path, typer.Option(help="For networks; an interrupted run goes on.")],
    folder: options.Folder = None,
    loss: Annotated[str, typer.Option(help="triplet or npairs.")] = "triplet",
    preset: Annotated[
        str, typer.Option(help="paper, the paper's training, or cpu, for two cores.")
    ] = "cpu",
    seeds: Annotated[int, typer.Option(help="How many trainings, with seeds 0, 1, …")] = 1,
    unseen: Annotated[
        bool, typer.Option(help="Train on four fifths of the classes too, search the others.")
    ] = True,
    figure: Annotated[bool, typer.Option(help="Measure the solver for Figure 2.")] = True,
    results: Annotated[
        Path | None, typer.Option(help="Where tables, figures and report go; OUT/results if not.")
    ] = None,
    download: options.Download = False,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
) -> None:
    """Repeat the paper's experiments: its Tables 1 to 5, Figures 2 and 4, and honest rivals.

    Trains what is missing for every k, searches the train and test tables, and writes Markdown,
    LaTeX, CSV, JSON and a report. Ctrl-C stops it; the same command goes on.
    """
    from flowhash.cli.reproduce import reproduce

    opening = {"folder": folder, "download": download}
    reproduce(data, opening, out, results, loss, preset, seeds, unseen, figure, device, quiet)


tables = typer.Typer(
    help="Look at a stored hash table, check it, make it compact.", no_args_is_help=True
)
app.add_typer(tables, name="table")

TablePath = Annotated[Path, typer.Argument(metavar="PATH", help="The table's folder.")]


@tables.command(epilog="Example:  flowhash table check pictures.table")
def check(path: TablePath) -> None:
    """Read every byte, compare it with its checksum, and see that all fits together.

    Exits with 0 if the table is clean, with 1 if anything is wrong with it, and with 2 if there is
    no table.
    """
    from flowhash.cli.table import check

    check(path)


@tables.command(epilog="Example:  flowhash table stats pictures.table --json")
def stats(
    path: TablePath,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Show how full the buckets are, how much searching they save, and what the table takes."""
    from flowhash.cli.table import stats

    stats(path, as_json)


@tables.command(epilog="Example:  flowhash table compact pictures.table")
def compact(path: TablePath) -> None:
    """Merge all segments into one and drop what was deleted: the fastest to search."""
    from flowhash.cli.table import compact

    compact(path)


def run(arguments: Sequence[str]) -> None:
    """Run the command with these arguments and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without λ shows a question mark
    try:
        app(args=list(arguments))
    except (InputError, MissingExtraError) as error:
        print(f"flowhash: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("flowhash: stopped", file=sys.stderr)
        sys.exit(130)
    except TrainingError as error:
        print(f"flowhash: {error}", file=sys.stderr)
        sys.exit(1)
    except StorageError as error:
        # No table, or one in use, is the user's mistake; damage or a full disk is not.
        mistake = error.errno is None and not isinstance(error, DamagedFileError)
        print(f"flowhash: {_plain(error)}", file=sys.stderr)
        sys.exit(2 if mistake else 1)


def _plain(error: StorageError) -> str:
    """What happened, without the number that the system gives to it."""
    return str(error.strerror or error)
