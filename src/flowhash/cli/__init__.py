"""The ``flowhash`` command, one module a sub-command.

This module must start fast: what is heavy is imported by the sub-command that needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from flowhash import __version__
from flowhash.errors import MissingExtraError
from flowhash.extras import require

USAGE = "Usage: flowhash [--version] [--help] COMMAND"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; the entry point of the installed script."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words in (["--version"], ["-V"]):
        print(f"flowhash {__version__}")
        return
    try:
        require("typer", "demo" if "demo" in words else "cli")
    except MissingExtraError as error:
        if words in (["--help"], ["-h"]):
            print(f"{USAGE}\n\nThe library is ready to use; the commands are not yet: {error}")
            return
        print(f"flowhash: {error}", file=sys.stderr)
        sys.exit(2)
    if words[:1] in (["fit"], ["index"]):
        # On a busy machine, threads that spin while they wait for each other made a training ten
        # times as long. OpenMP reads this when torch loads it. Not for commands that take times:
        # FAISS, their peer, has the same OpenMP.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from flowhash.cli.app import run
    except KeyboardInterrupt:
        print("flowhash: stopped", file=sys.stderr)
        sys.exit(130)
    run([_at_home(word) for word in words])


def _at_home(word: str) -> str:
    """``--out=~/x`` as people mean it; the shell expands a ~ only where a word begins with it."""
    option, sign, value = word.partition("=")
    if sign and option.startswith("--") and value.startswith("~/"):
        return f"{option}={os.path.expanduser(value)}"  # noqa: PTH111, before much is imported
    return word
