"""The command's frame: its options, its sub-commands, and how it ends.

Exit code 0 is success, 2 the user's mistake (one line says which), 1 a fault of ours.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from flowhash import __version__
from flowhash.errors import InputError, MissingExtraError

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
    """See the exact code solver at work on scikit-learn's handwritten digits."""
    from flowhash.cli.demo import show

    show(active, penalty)


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
