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
from flowhash.errors import DamagedFileError, InputError, MissingExtraError, StorageError

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
    except StorageError as error:
        # No table, or one in use, is the user's mistake; damage or a full disk is not.
        mistake = error.errno is None and not isinstance(error, DamagedFileError)
        print(f"flowhash: {_plain(error)}", file=sys.stderr)
        sys.exit(2 if mistake else 1)


def _plain(error: StorageError) -> str:
    """What happened, without the number that the system gives to it."""
    return str(error.strerror or error)
