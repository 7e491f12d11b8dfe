"""An address where a folder or a file is expected: one line, nothing made, no password shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowhash.cli.app import app, run
from flowhash.cli.places import TAKE_ADDRESSES, PlacesCommand

ADDRESS = "postgresql://me:Sekret99@127.0.0.1:1/shop?table=x"
WRONG = [
    ["fit", "digits", "--out", ADDRESS],
    ["fit", ADDRESS],
    ["index", ADDRESS, "digits", "--out", "t"],
    ["index", "run", ADDRESS, "--out", "t"],
    ["index", "run", "digits", "--out", ADDRESS],
    ["search", "t", ADDRESS],
    ["search", "t", "q.npy", "--encoder", ADDRESS],
    ["evaluate", "run", ADDRESS, "--out", "r"],
    ["data", "info", ADDRESS],
    ["bulk", "encode", "run", "digits", "--out", ADDRESS],
    ["bulk", "index", "items", "--out", ADDRESS],
    ["bulk", "search", ADDRESS, "q", "--out", "a"],
    ["bulk", "neighbours", ADDRESS, "--out", "a"],
    ["table", "stats", "postgresql:me:Sekret99@127.0.0.1:1/shop"],
    ["table", "stats", "postgresql//me:Sekret99@127.0.0.1:1/shop"],
    ["table", "stats", "postgresql:/me:Sekret99@127.0.0.1:1/shop"],
    ["table", "stats", "host=127.0.0.1 password=Sekret99 dbname=shop"],
    ["serve", "qdrant:/Sekret99@h/c"],
    ["copy", "t", "postgresql://me:Sek@ret99@127.0.0.1:1/shop"],
    ["table", "stats", "postgresql://me:%Sekret99@127.0.0.1:1/shop"],
]


@pytest.mark.parametrize("words", WRONG, ids=lambda words: " ".join(words[:2]))
def test_it_is_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").mkdir()
    with pytest.raises(SystemExit) as ended:
        run(words)
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
    assert "ret99" not in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_every_command_looks() -> None:
    groups = [group.typer_instance for group in app.registered_groups]
    everything = [app, *(group for group in groups if group is not None)]
    commands = [command for one in everything for command in one.registered_commands]
    assert len(commands) > 15
    assert all(command.cls is PlacesCommand for command in commands)
    assert {name.split()[0] for name in TAKE_ADDRESSES} == {
        "index", "search", "serve", "copy", "table"
    }  # fmt: skip
