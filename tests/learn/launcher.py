"""``torchrun`` with the program ``ranks.py``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.learn import ranks

PROGRAM = Path(ranks.__file__)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def two_processes(folder: Path, what: str) -> int:
    """Run the program in two processes as a user would; the exit code of the launcher."""
    source = Path(sys.modules["flowhash"].__file__ or "").parents[1]
    path = f"{source}{os.pathsep}{PROGRAM.parents[2]}"
    launcher = subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
            "--master-addr", "127.0.0.1", "--master-port", str(free_port()),
            str(PROGRAM), str(folder), what,
        ],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        return launcher.wait(600)  # against hanging only
    except subprocess.TimeoutExpired:
        launcher.terminate()
        launcher.wait(60)
        raise
