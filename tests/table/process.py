"""Functions of tests that are called in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def in_a_process(module: str, call: str) -> Any:
    """Call a function of a module of tests, such as ``campaign(3)``; what it returns, by JSON.

    The process has no threads but those that the function starts. A signal that ends it is a failed
    test, which says where it was.
    """
    script = f"""
import json
from pathlib import Path
from tests.table import {module} as module
print(json.dumps(module.{call}))
"""
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, f"{call} ended with {run.returncode}: {run.stderr[-3000:]}"
    return json.loads(run.stdout.splitlines()[-1])
