"""The installed command as a person runs it, in processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flowhash
from flowhash.cli.app import COMMANDS, SubCommands
from flowhash.data import open_data
from flowhash.data.sets.handwritten_digits import draw_digit
from tests.cli.commands import COMMAND, run


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


@pytest.mark.slow  # `make dist`, and so CI, runs the demo too
def test_demo_does_the_whole_job(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = run(COMMAND, "demo", "--out", str(out), "--no-pixels")
    assert done.returncode == 0, done.stderr
    assert "Each test digit searched among the others" in done.stdout
    assert f"flowhash serve {out / 'table'} --open" in done.stdout
    rows = json.loads((out / "report.json").read_text())
    found = {(row["method"], row["k"]): row for row in rows if row["table"] == "test"}
    for method in ("flowhash", "classifier", "th", "vq"):
        assert {k for name, k in found if name == method} == {1, 2, 3}
    assert found["flowhash", 1]["pr1"] > 90
    assert found["flowhash", 1]["suf"] > 5
    page = (out / "report.html").read_text()
    assert "FlowHash on handwritten digits" in page
    assert "data:image/png" in page
    table = flowhash.HashTable.open(out / "table")
    assert len(table) == 1797
    assert {table[item].payload["label"] for item in (0, 5, 100)} <= set("0123456789")
    hit = run(COMMAND, "search", str(out / "table"), "id:0", "--json")  # it knows its encoder
    assert hit.returncode == 0, hit.stderr
    again = run(COMMAND, "demo", "--out", str(out), "--no-pixels", "--json", "--quiet")
    facts = json.loads(again.stdout)
    assert facts["items"] == 1797
    assert again.stderr == ""


def test_demo_touches_no_folder_of_others(tmp_path: Path) -> None:
    for name in ("base", "k1", "table"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("precious")
    done = run(COMMAND, "demo", "--no-pixels", "--out", str(tmp_path), "--device", "tpu")
    assert done.returncode == 2
    for name in ("base", "k1", "table"):
        assert (tmp_path / name / "mine.txt").read_text() == "precious"


def test_help_and_completion_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from flowhash.cli.app import SubCommands\n"
        "assert len(list(SubCommands().values())) == 14\n"
        "print(sorted({'numpy', 'numba', 'torch', 'sklearn', 'scipy'} & set(sys.modules)))\n"
    )
    done = run(sys.executable, "-c", code)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_help_loads_no_command() -> None:
    done = run(sys.executable, "-X", "importtime", "-m", "flowhash", "--help")
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "flowhash.cli.app" in loaded
    heavy = {"numpy", "numba", "torch", "flowhash.data", "flowhash.cli.options"}
    assert not heavy & loaded
    assert not [name for name in loaded if name.startswith("flowhash.cli.commands")]


def test_help_of_all_is_how_the_help_of_each_begins() -> None:
    commands = SubCommands()
    begins = {name: commands[name].help.partition("\n\n")[0] for name in commands}
    assert {name: " ".join(words.split()) for name, words in begins.items()} == COMMANDS
    shown = " ".join(run(COMMAND, "--help").stdout.replace("│", " ").split())
    for name, words in COMMANDS.items():
        assert f"{name} {words}" in shown


def test_an_interrupt_is_one_line() -> None:
    code = (
        "import flowhash.engines\n"
        "def stop(*arguments): raise KeyboardInterrupt\n"
        "flowhash.engines.open_any = stop\n"
        "from flowhash.cli import main\n"
        "main(['table', 'stats', 'x'])\n"
    )
    done = run(sys.executable, "-c", code)
    assert (done.returncode, done.stderr) == (130, "flowhash: stopped\n")


def test_digits_are_drawn_from_white_to_black() -> None:
    items = open_data("digits").train
    images = np.stack([draw_digit(item) for item in items.take(np.arange(50))])
    assert images.shape == (50, 8, 8, 3)
    assert (images.min(), images.max()) == (0, 255)


def test_every_command_has_help_with_an_example() -> None:
    commands = [
        ["demo"], ["fit"], ["index"], ["search"], ["serve"], ["evaluate"], ["reproduce"],
        ["table", "stats"], ["table", "health"], ["table", "check"], ["table", "compact"],
        ["data", "info"], ["data", "check"], ["data", "download"],
        ["bench", "solver"], ["bench", "search"], ["adapt"], ["calibrate"],
        ["copy"], ["bulk", "encode"], ["bulk", "index"], ["bulk", "search"], ["bulk", "neighbours"],
    ]  # fmt: skip
    code = (
        "import json, sys\n"
        "from typer.main import get_command\n"
        "from flowhash.cli.app import app\n"
        "def walk(command, words):\n"
        "    below = getattr(command, 'commands', None)\n"
        "    if below is None:\n"
        "        helps = [one.help for one in command.params]\n"
        "        found.append([words, command.help, command.epilog, helps])\n"
        "    for name, one in (below or {}).items():\n"
        "        walk(one, [*words, name])\n"
        "found = []\n"
        "walk(get_command(app), [])\n"
        "print(json.dumps(found))\n"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    found = {tuple(words): rest for words, *rest in json.loads(done.stdout)}
    assert set(found) == {tuple(words) for words in commands}
    for words, (text, epilog, helps) in found.items():
        assert text
        assert f"flowhash {' '.join(words)}" in epilog
        assert all(helps), words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["frobnicate"], "No such command"),
        (["fit", "digits", "--bukets", "3"], "--buckets"),
        (["fit"], "DATA"),
        (["fit", "digits", "--buckets", "many"], "--buckets"),
        (["table"], None),
    ],
)
def test_a_wrong_command_line_is_one_line(words: list[str], said: str | None) -> None:
    done = run(COMMAND, *words)
    if said is None:  # asked for nothing: the help
        assert done.returncode == 0
        assert "stats" in done.stdout
        return
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("flowhash: ")


def test_a_fault_of_ours_ends_with_one() -> None:
    code = (
        "import flowhash.engines\n"
        "def fail(*arguments): raise ZeroDivisionError('on purpose')\n"
        "flowhash.engines.open_any = fail\n"
        "from flowhash.cli import main\n"
        "main(['table', 'stats', 'x'])\n"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 1
    assert "on purpose" in done.stderr
    assert "please report it" in done.stderr


def test_a_reader_that_has_seen_enough_gets_no_traceback() -> None:
    done = subprocess.run(
        f"{COMMAND} bench solver --classes 4 --buckets 8 --repeats 1 --json | head -c 1",
        shell=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr


def test_the_shell_completes_commands_and_names() -> None:
    def complete(*words: str) -> str:
        return run(
            COMMAND, _FLOWHASH_COMPLETE="complete_bash",
            COMP_WORDS=" ".join(["flowhash", *words]), COMP_CWORD=str(len(words)),
        ).stdout  # fmt: skip

    assert "serve" in complete("se")
    assert "cifar100" in complete("fit", "ci")
    assert "--buckets" in complete("fit", "--bu")
    # Typer looks which shell has started it, which need not be one that it knows, such as make's.
    told = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert "complete_bash" in run(COMMAND, "--show-completion", "bash", **told).stdout


def test_the_demo_names_a_command_that_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowhash.cli.commands.demo import _command

    place = tmp_path / "my environment" / "bin"
    place.mkdir(parents=True)
    (place / "flowhash").touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(place / "flowhash"), "demo"])
    monkeypatch.setenv("PATH", str(place))
    assert _command() == "flowhash"
    monkeypatch.setenv("PATH", "")  # the environment is not active
    assert _command() == "'my environment/bin/flowhash'"
    monkeypatch.setattr(sys, "argv", ["/usr/lib/python3/flowhash/__main__.py"])
    assert _command() == "flowhash"
