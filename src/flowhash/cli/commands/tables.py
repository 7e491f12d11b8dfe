"""``table …`` and ``data …``: look at what is stored, check it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowhash.cli import options
from flowhash.cli.commands.learning import opening
from flowhash.cli.reply import Reply


def register(app: typer.Typer) -> None:
    """Add these commands."""
    stored = typer.Typer(
        help="Look at a stored hash table, check it, make it compact.", no_args_is_help=True
    )
    stored.command(epilog="Example:  flowhash table stats pets.table")(stats)
    stored.command(epilog="Example:  flowhash table check pets.table")(check)
    stored.command(epilog="Example:  flowhash table compact pets.table")(compact)
    app.add_typer(stored, name="table")
    sets = typer.Typer(help="Look at a data set, check it, download it.", no_args_is_help=True)
    sets.command("info", epilog="Example:  flowhash data info pets")(data_info)
    sets.command("check", epilog="Example:  flowhash data check pets")(data_check)
    example = "Example:  flowhash data download cifar100 --folder data"
    sets.command("download", epilog=example)(data_download)
    app.add_typer(sets, name="data")


def check(
    table: options.TablePlace,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Read every byte, compare it with its checksum, and see that all fits together.

    Of an address every item is read; its bytes are the server's own to check. Exits with 0 if the
    table is clean, with 1 if anything is wrong with it, and with 2 if there is no table.
    """
    from flowhash.cli.table import check

    check(table, Reply(quiet, as_json))


def stats(
    table: options.TablePlace,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Show how full the buckets are, how much searching they save, and what the table takes."""
    from flowhash.cli.table import stats

    stats(table, as_json)


def compact(
    table: options.TablePlace,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Merge all segments into one and drop what was deleted: the fastest to search.

    For tables in folders; engines tidy up by themselves.
    """
    from flowhash.cli.table import compact

    compact(table, Reply(quiet, as_json))


def data_info(
    context: typer.Context,
    data: options.Data,
    folder: options.Folder = None,
    labels: options.Labels = None,
    embedding: options.Embedding = None,
    label: options.Label = None,
    size: options.Size = None,
    ignore_other: options.IgnoreOther = False,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Show what a data set holds, how it is split, and what `fit` would choose for it."""
    from flowhash.cli.data import info

    info(data, opening(context), Reply(quiet, as_json))


def data_check(
    context: typer.Context,
    data: options.Data,
    folder: options.Folder = None,
    labels: options.Labels = None,
    embedding: options.Embedding = None,
    label: options.Label = None,
    ignore_other: options.IgnoreOther = False,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Read every item and name what cannot be used: broken images, values that are not finite.

    Exits with 0 if all is well and with 1 if something is wrong.
    """
    from flowhash.cli.data import check

    check(data, opening(context), Reply(quiet, as_json))


def data_download(
    data: Annotated[str, typer.Argument(metavar="DATA", help="cifar100.")],
    folder: Annotated[Path, typer.Option(help="Where it goes.")],
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Download a data set and compare it with its checksum; an interrupted download goes on."""
    from flowhash.cli.data import download

    download(data, folder, Reply(quiet, as_json))
