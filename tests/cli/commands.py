"""The command in a process of its own, which need not import torch and numba again.

A command takes a tenth of a second, but importing what it needs takes two, and the tests run
hundreds. So a server that has imported everything forks a process for each: it has output, exit
code and memory of its own, as if a person had started it.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("flowhash"))
PLAIN = {"NO_COLOR": "1", "COLUMNS": "100"}
READY = multiprocessing.get_context("forkserver")
READY.set_forkserver_preload(["tests.cli.loaded_rooms"])


def run(
    *words: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. ``flowhash`` is forked, anything else is started."""
    variables = {**os.environ, **PLAIN, **environment}
    if words[0] != COMMAND or environment:  # which may matter to what is imported
        return subprocess.run(
            words, cwd=cwd, env=variables, capture_output=True, text=True, check=False
        )
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("output", "errors")]
        place = str(cwd or Path.cwd())
        process = READY.Process(target=_forked, args=(words, place, variables, *map(str, said)))
        process.start()
        process.join()
        code = process.exitcode
        assert code is not None
        return subprocess.CompletedProcess(words, code, *(path.read_text() for path in said))


def _forked(
    words: tuple[str, ...], place: str, variables: dict[str, str], output: str, errors: str
) -> None:
    for path, number in ((output, 1), (errors, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    os.chdir(place)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = list(words)
    from flowhash.cli import main

    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
