"""``index``, ``search``, ``serve`` and ``copy``: what puts an encoder to work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flowhash.cli import options
from flowhash.cli.commands.learning import opening
from flowhash.cli.reply import Reply
from flowhash.serve import SETTINGS


def register(app: typer.Typer) -> None:
    """Add these commands."""
    example = "Example:  flowhash index pets.run pets --out pets.table"
    app.command(epilog=example)(index)
    app.command(epilog="Example:  flowhash search pets.table cat.jpg --top 5")(search)
    app.command(epilog="Example:  flowhash serve pets.table --open")(serve)
    example = "Example:  flowhash copy pets.table 'postgresql://localhost/shop?table=pets'"
    app.command(epilog=example)(copy)


def index(
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
    out: Annotated[
        Path | None,
        typer.Option(help="The table's folder; one that is there is added to. This, or --to."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            autocompletion=options.complete_address,
            help="Instead of --out: postgresql://HOST/DATABASE?table=NAME or "
            "qdrant://HOST:6333/COLLECTION.",
        ),
    ] = None,
    distribute: options.Distribute = False,
    split: Annotated[
        str, typer.Option(help="Of digits, cifar100, imagenet32: train, validation, test or all.")
    ] = "train",
    ids: Annotated[
        str | None,
        typer.Option(
            help="Of a new table: numbers that count on, or names, so that a file added again "
            "replaces itself. Names for images in files, numbers otherwise."
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Items of another source may replace those of their name."),
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Add rows that were indexed before, under new numbers."),
    ] = False,
    pictures: Annotated[
        bool, typer.Option(help="Keep a small picture of each image, for the search page.")
    ] = True,
    metric: Annotated[
        str | None, typer.Option(help="Of a new table: euclidean (if not told), cosine or inner.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Of a new table: float32 (if not told), or float16 for half the space."),
    ] = None,
    folder: options.Folder = None,
    labels: options.Labels = None,
    embedding: options.Embedding = None,
    label: options.Label = None,
    ignore_other: options.IgnoreOther = False,
    download: options.Download = False,
    batch: Annotated[
        int, typer.Option(min=1, help="Items after which it is noted how far that is.")
    ] = 5000,
    device: options.Device = "auto",
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Put items into a table, so that they are found: encode, add, keep.

    The table is a folder (--out), or kept by PostgreSQL or Qdrant (--to). Each batch is safe on
    disk before the next begins. Ctrl-C stops it; the same command goes on
    where it stopped. The table remembers its encoder: search and serve need no other word.
    """
    from flowhash.cli.index import chosen_place, index
    from flowhash.cli.indexing import TableChoices

    place = chosen_place(context, out, to, distribute)
    choices = TableChoices(ids, pictures, metric, dtype, distribute)
    reply = Reply(quiet, as_json)
    index(
        context, encoder, items, split, opening(context), place, choices, replace, again, batch,
        device,
        reply,
    )  # fmt: skip


def search(
    table: options.TablePlace,
    queries: Annotated[
        list[str],
        typer.Argument(
            metavar="QUERY…",
            help="An image, an .npy or .npz file of vectors, or id:ID for an item of the table.",
        ),
    ],
    encoder: options.OwnEncoder = None,
    top: Annotated[int, typer.Option(min=1, help="How many to show of each query.")] = 10,
    probe: Annotated[
        int | None, typer.Option(min=1, help="Buckets to open; k if not given.")
    ] = None,
    at_least: Annotated[
        int | None, typer.Option(min=1, help="Open further buckets until so many items are found.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Of an address: only items with this in their payload, such as label=cat. May be "
            "given again: all keys must hold, with one of the values given for each.",
        ),
    ] = None,
    device: options.Device = "auto",
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Find the stored items nearest to a query, and see how little was scanned."""
    from flowhash.cli.search import Asked, conditions, search

    asked = Asked(queries, top, probe, at_least, conditions(where or ()))
    search(table, encoder, asked, device, Reply(quiet, as_json))


def _setting(name: str, *names: str, **more: Any) -> Any:
    """An option of the server, as ``ServeOptions`` declares it."""
    told = SETTINGS[name].metadata
    return typer.Option(*names, help=told["help"], rich_help_panel=told["panel"], **more)


def serve(
    context: typer.Context,
    table: options.TablePlace,
    encoder: options.OwnEncoder = None,
    host: Annotated[str, _setting("host")] = SETTINGS["host"].default,
    port: Annotated[int, _setting("port")] = SETTINGS["port"].default,
    open_browser: Annotated[bool, _setting("open_browser", "--open")] = False,
    read_only: Annotated[bool, _setting("read_only", "--read-only")] = False,
    api_key: Annotated[
        str | None, _setting("api_key", envvar="FLOWHASH_API_KEY", show_envvar=True)
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="A file that holds the key.")] = None,
    allowed_hosts: Annotated[list[str] | None, _setting("allowed_hosts", "--allowed-host")] = None,
    threads: Annotated[int | None, _setting("threads", min=1)] = None,
    max_body: Annotated[int, _setting("max_body")] = SETTINGS["max_body"].default,
    max_answer: Annotated[int, _setting("max_answer")] = SETTINGS["max_answer"].default,
    max_batch: Annotated[int, _setting("max_batch")] = SETTINGS["max_batch"].default,
    max_top: Annotated[int, _setting("max_top")] = SETTINGS["max_top"].default,
    max_pixels: Annotated[int, _setting("max_pixels")] = SETTINGS["max_pixels"].default,
    max_waiting: Annotated[int, _setting("max_waiting")] = SETTINGS["max_waiting"].default,
    max_connections: Annotated[int, _setting("max_connections")] = SETTINGS[
        "max_connections"
    ].default,
    timeout: Annotated[float, _setting("timeout")] = SETTINGS["timeout"].default,
    send_timeout: Annotated[float, _setting("send_timeout")] = SETTINGS["send_timeout"].default,
    idle_timeout: Annotated[float, _setting("idle_timeout")] = SETTINGS["idle_timeout"].default,
    config: options.Config = None,
    quiet: options.Quiet = False,
) -> None:
    """Serve a table: a search page for people, an HTTP API for programs.

    Listens on this machine only, unless told otherwise. Ctrl-C stops it: running requests are
    answered first. What is damaged in the table is named in the log and in /health, and the rest is
    served.
    """
    from flowhash.cli.serve import serve

    given = {name: value for name, value in context.params.items() if name in SETTINGS}
    given["allowed_hosts"] = tuple(given["allowed_hosts"] or ())
    serve(table, encoder, given.pop("api_key"), api_key_file, given)


def copy(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            autocompletion=options.complete_address,
            help="The table's folder; or an address, to copy from there.",
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS",
            autocompletion=options.complete_address,
            help="postgresql://HOST/DATABASE?table=NAME or qdrant://HOST:6333/COLLECTION, where "
            "nothing is yet; or a new folder, to copy from an address.",
        ),
    ],
    distribute: options.Distribute = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Remove an unfinished copy and begin anew.")
    ] = False,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Copy a table into PostgreSQL or Qdrant, or back into a folder, and compare the two.

    To an address: Ctrl-C, or a server that is lost, leaves a copy that nobody can search; the same
    command goes on where it stopped. To a folder: it appears when it is whole; what was stopped or
    killed begins anew. From one address to another, copy to a folder, then from there.
    """
    from flowhash.cli.copy import copy

    copy(source, target, distribute, restart, Reply(quiet, as_json))
