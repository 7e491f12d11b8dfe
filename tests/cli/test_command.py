"""The installed command as a person runs it, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flowhash
from flowhash.cli.demo_learning import drawn
from flowhash.data import open_data

COMMAND = str(Path(sys.executable).with_name("flowhash"))


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100", **environment},
    )


@pytest.mark.parametrize("words", [[COMMAND], [sys.executable, "-m", "flowhash"]])
def test_version(words: list[str]) -> None:
    done = run(*words, "--version")
    assert done.returncode == 0
    assert done.stdout == f"flowhash {flowhash.__version__}\n"


def test_help_lists_the_commands() -> None:
    done = run(COMMAND, "--help")
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert "--version" in done.stdout


def test_unknown_command_is_one_clear_message() -> None:
    done = run(COMMAND, "frobnicate")
    assert done.returncode == 2
    assert "frobnicate" in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_shows_proven_codes() -> None:
    done = run(COMMAND, "demo", "--active", "2", "--penalty", "0.5", "--no-learn")
    assert done.returncode == 0, done.stderr
    assert "1797 handwritten digits" in done.stdout
    assert "proven" in done.stdout
    assert " no " not in done.stdout.split("proven")[1].split("upper bound")[0]


@pytest.mark.parametrize("penalty", ["0", "1e9", "1e100"])
def test_demo_with_any_penalty(penalty: str) -> None:
    done = run(COMMAND, "demo", "--penalty", penalty, "--no-learn")
    assert done.returncode == 0, done.stderr
    assert "proven" in done.stdout


def test_start_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from flowhash.cli import main\n"
        "main(['--version'])\n"
        "print(sorted({'numpy', 'numba', 'typer', 'torch', 'sklearn'} & set(sys.modules)))\n"
    )
    done = run(sys.executable, "-c", code)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


def test_without_its_extra_it_says_what_to_install() -> None:
    code = (
        "import sys\n"
        "sys.modules['typer'] = None\n"
        "from flowhash.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    done = run(sys.executable, "-c", code, "demo")
    assert done.returncode == 2
    assert done.stderr == (
        "flowhash: typer is not installed; it comes with an extra of FlowHash: "
        "pip install 'flowhash[demo]' (in a clone: pip install '.[demo]')\n"
    )
    helped = run(sys.executable, "-c", code, "--help")
    assert helped.returncode == 0
    assert "flowhash[cli]" in helped.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--active", "99"], "active is 99; choose"),
        (["--penalty", "-1"], "penalty contains -1.0; every penalty must be at least 0"),
        (["--penalty", "inf"], "penalty contains inf"),
    ],
)
def test_a_users_mistake_is_one_line(words: list[str], said: str) -> None:
    done = run(COMMAND, "demo", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_terminal_without_unicode_gets_something_readable() -> None:
    done = run(COMMAND, "demo", "--no-learn", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "1797 handwritten digits" in done.stdout


def test_demo_learns_and_leaves_a_report(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = run(COMMAND, "demo", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "Each test digit searched among the others" in done.stdout
    rows = json.loads((out / "report.json").read_text())
    found = {row["method"]: row for row in rows if row["table"] == "test"}
    assert found["flowhash"]["pr1"] > 90
    assert found["flowhash"]["suf"] > 5
    page = (out / "report.html").read_text()
    assert "FlowHash on handwritten digits" in page
    assert "data:image/png" in page


def test_digits_are_drawn_from_white_to_black() -> None:
    items = open_data("digits").train
    images = np.stack([drawn(item) for item in items.take(np.arange(50))])
    assert images.shape == (50, 8, 8, 3)
    assert (images.min(), images.max()) == (0, 255)
