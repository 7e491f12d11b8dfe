"""Every forged file opens rightly, or ends in an error of ours in one line.

For more of them: ``FLOWHASH_FORGERIES=5000 python -m pytest -m slow tests/forged``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.encoder.test_encoder import environment_of_children
from tests.forged.forgeries import KINDS, open_forgeries


def test_forged_files_open_or_end_in_one_line(tmp_path: Path) -> None:
    outcomes = open_forgeries(tmp_path, 300)
    for kind in KINDS:  # neither so wild that all are refused at the door, nor so tame that none is
        assert outcomes[f"{kind} opened"], outcomes
        assert outcomes[f"{kind} DamagedFileError"], outcomes


@pytest.mark.slow
def test_thousands_of_forged_files_in_a_process_of_its_own(tmp_path: Path) -> None:
    count = int(os.environ.get("FLOWHASH_FORGERIES", "2000"))
    command = [sys.executable, "-m", "tests.forged.forgeries", str(count), "1"]
    environment = {**environment_of_children(), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]  # a signal is a negative number
    found = json.loads(ended.stdout.splitlines()[-1])
    assert sum(found["outcomes"].values()) == count
    assert found["megabytes"] < 2000
