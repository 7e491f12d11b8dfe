"""``bulk …``: work that is too much for one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowhash.cli import options
from flowhash.cli.commands.learning import opening
from flowhash.cli.reply import Reply

WHERE = "Where it runs"
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Do the parts on a Ray cluster: host:port or ray://host:port, auto for the one that "
        "runs here, local for a new one on this machine. Without it no Ray is needed: this process "
        "does them, one after another, with all cores.",
        rich_help_panel=WHERE,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of the cluster, with --ray; all its CPUs but one if not told.",
        rich_help_panel=WHERE,
    ),
]
Restart = Annotated[bool, typer.Option("--restart", help="Drop what is in --out and begin anew.")]
Rows = Annotated[int | None, typer.Option(min=1, help="Of a part; the usual suits most.")]
Top = Annotated[int, typer.Option(min=1, help="How many to find of each.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(
        help="Encode, index, search, find neighbours in parts: for very many items or queries.\n\n"
        "Without --ray a command does its parts in this process, one after another. With --ray "
        "ADDRESS a Ray cluster (docs.ray.io) does them, on many machines at once, all of which "
        "must see the same folders; the result is the same. Stopped or killed, the same command "
        "goes on with the parts that are missing.",
        no_args_is_help=True,
    )
    example = "Example:  flowhash bulk encode pets.run pets --out pets.encoded --ray auto"
    group.command(epilog=example)(encode)
    group.command(epilog="Example:  flowhash bulk index pets.encoded --out pets.table")(index)
    example = "Example:  flowhash bulk search pets.table queries.encoded --out answers --top 10"
    group.command(epilog=example)(search)
    example = "Example:  flowhash bulk neighbours pets.table --out pets.neighbours --top 10"
    group.command(epilog=example)(neighbours)
    app.add_typer(group, name="bulk")


def encode(
    context: typer.Context,
    encoder: options.EncoderPath,
    items: Annotated[
        str,
        typer.Argument(
            metavar="ITEMS",
            autocompletion=options.complete_data,
            help="A folder of images, an image, an .npy, .npz or .parquet file, or digits, "
            "cifar100, imagenet32. Labels are kept where there are any.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for parquet files; the work goes on there.")],
    split: Annotated[
        str, typer.Option(help="Of digits, cifar100, imagenet32: train, validation, test or all.")
    ] = "train",
    ids: Annotated[
        str | None,
        typer.Option(
            help="numbers, which are rows, or names. Names for images in files, numbers otherwise."
        ),
    ] = None,
    probe: Annotated[
        int | None,
        typer.Option(min=1, help="Buckets to keep of each in order, for queries; k if not given."),
    ] = None,
    pictures: Annotated[
        bool, typer.Option(help="Keep a small picture of each image, for the search page.")
    ] = True,
    folder: options.Folder = None,
    labels: options.Labels = None,
    embedding: options.Embedding = None,
    label: options.Label = None,
    ignore_other: options.IgnoreOther = False,
    batch: Annotated[int, typer.Option(min=1, help="Items in memory at once.")] = 5000,
    rows: Rows = None,
    device: options.Device = "auto",
    restart: Restart = False,
    ray: Ray = None,
    workers: Workers = None,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Make codes and embeddings of items, as parquet files.

    Ctrl-C stops it; the same command goes on with the parts that are missing, as it does after a
    machine was lost. On a cluster, --device auto is cpu; with cuda, a worker takes a GPU.
    """
    from flowhash.bulk import Choices
    from flowhash.cli.bulk import Running, encode, source_of

    choices = Choices(ids, probe, pictures, batch, device)
    source = source_of(items, split, opening(context))
    running = Running(ray, workers, restart, rows)
    encode(context, encoder, source, out, choices, running, Reply(quiet, as_json))


def index(
    encoded: Annotated[
        Path, typer.Argument(metavar="ENCODED", help="A folder of `bulk encode`, or one file.")
    ],
    out: Annotated[Path, typer.Option(help="The table's folder; one that is there is added to.")],
    metric: Annotated[
        str | None, typer.Option(help="Of a new table: euclidean (if not told), cosine or inner.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Of a new table: float32 (if not told), or float16 for half the space."),
    ] = None,
    buckets: Annotated[
        int | None,
        typer.Option(min=1, help="Of a new table, for parquet files that do not say it."),
    ] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Merge all segments into one at the end.")
    ] = False,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="Items of a segment; 256 MiB of files if not told."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Drop segments that were built, and begin anew.")
    ] = False,
    ray: Ray = None,
    workers: Workers = None,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Put encoded items into a table: segments are built in parallel and taken over in one step.

    Items replace those of the same id. Killed at any moment, it leaves the table as it was before
    or with everything in it; the same command goes on.
    """
    from flowhash.bulk import TableChoices
    from flowhash.cli.bulk import Running, index

    running = Running(ray, workers, restart, rows)
    choices = TableChoices(metric=metric, dtype=dtype, buckets=buckets)
    index(encoded, out, choices, compact, running, Reply(quiet, as_json))


def search(
    context: typer.Context,
    table: options.TablePath,
    queries: Annotated[
        str,
        typer.Argument(
            metavar="QUERIES",
            help="A folder of `bulk encode`, an .npz file with buckets and embeddings, or, with "
            "--encoder, items.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for parquet files; the work goes on there.")],
    top: Top = 10,
    probe: Annotated[
        int | None, typer.Option(min=1, help="Buckets to open; k if not given.")
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(help="A run of fit, or the encoder in it: makes queries of items."),
    ] = None,
    split: Annotated[str, typer.Option(help="Of items: train, validation, test or all.")] = "train",
    folder: options.Folder = None,
    labels: options.Labels = None,
    embedding: options.Embedding = None,
    label: options.Label = None,
    ignore_other: options.IgnoreOther = False,
    device: options.Device = "auto",
    rows: Rows = None,
    restart: Restart = False,
    ray: Ray = None,
    workers: Workers = None,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Search a table with very many queries, bucket by bucket.

    Every worker maps the table, so it must lie where all machines see it. The answers carry the row
    of their query.
    """
    from flowhash.cli.bulk import Running, search

    running = Running(ray, workers, restart, rows)
    reply = Reply(quiet, as_json)
    search(
        table, queries, out, top, probe, encoder, device, split, opening(context), running, reply
    )


def neighbours(
    table: options.TablePath,
    out: Annotated[Path, typer.Option(help="Folder for parquet files; the work goes on there.")],
    top: Top = 10,
    rows: Rows = None,
    restart: Restart = False,
    ray: Ray = None,
    workers: Workers = None,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Find the nearest other items of every item, among those that share a bucket with it."""
    from flowhash.cli.bulk import Running, neighbours

    running = Running(ray, workers, restart, rows)
    neighbours(table, out, top, running, Reply(quiet, as_json))
