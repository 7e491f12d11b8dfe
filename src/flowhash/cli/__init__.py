"""The ``flowhash`` command, one module a sub-command.

This module must start fast: what is heavy is imported by the sub-command that needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from flowhash import __version__
from flowhash.errors import MissingExtraError

USAGE = """Usage: flowhash [--version] [--help] COMMAND

The library works as it is installed; the command line needs two more packages."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; the entry point of the installed script."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words in (["--version"], ["-V"]):
        print(f"flowhash {__version__}")
        return
    try:
        from flowhash.cli.app import run
    except MissingExtraError as error:
        asked_for_help = not words or words in (["--help"], ["-h"])
        print(USAGE if asked_for_help else "", end="\n" if asked_for_help else "")
        print(f"flowhash: {error}", file=sys.stderr)
        sys.exit(0 if asked_for_help else 2)
    run(words)
