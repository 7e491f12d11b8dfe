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
) -> None:
    """See the exact code solver and the hash table at work on handwritten digits."""
    from flowhash.cli.demo import show

    show(active, penalty)


@app.command(
    epilog="Example:  flowhash fit cifar100 --folder data --preset cpu-cifar100-triplet --out run"
)
def fit(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="digits, cifar100, imagenet32, a folder of images (one sub-folder a class), or an "
            ".npy, .npz or .parquet file.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The run's folder; an interrupted run goes on.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where cifar100 or imagenet32 is on this machine.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="The labels beside an .npy file.")] = None,
    embedding: Annotated[
        str | None, typer.Option(help="The array or column of vectors in an .npz or .parquet file.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The array or column of labels in it.")] = None,
    size: Annotated[
        int | None,
        typer.Option(help="Height and width that images in a folder get; 32 unless told."),
    ] = None,
    ignore_other: Annotated[
        bool, typer.Option("--ignore-other", help="Pass over files in a folder that are no images.")
    ] = False,
    download: Annotated[bool, typer.Option(help="Download cifar100 into --folder.")] = False,
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
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
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
