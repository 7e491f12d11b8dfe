"""An address where a folder or a file is expected: one line, nothing made, no password shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowhash.cli.app import GuardedCommand, SubCommands, run
from flowhash.cli.locations import TAKE_ADDRESSES

ADDRESS = "postgresql://me:Sekret99@127.0.0.1:1/shop?table=x"
FOLDER = "is an address; expected a folder or a file"
WRONG = [
    (["fit", "digits", "--out", ADDRESS], f"--out {FOLDER}"),
    (["fit", "digits", "--out", ADDRESS.replace("postgresql", "PostgreSQL")], f"--out {FOLDER}"),
    (["fit", "digits", "--out", "qdrant+https://:Sekret99@h/c"], f"--out {FOLDER}"),
    (["fit", ADDRESS], f"DATA {FOLDER}"),
    (["index", ADDRESS, "digits", "--out", "t"], f"ENCODER {FOLDER}"),
    (["index", "run", ADDRESS, "--out", "t"], f"ITEMS {FOLDER}"),
    (["index", "run", "digits", "--out", ADDRESS], f"--out {FOLDER}"),
    (["search", "t", ADDRESS], f"QUERY… {FOLDER}"),
    (["search", "t", "id:1", ADDRESS], f"QUERY… {FOLDER}"),
    (["search", "t", "q.npy", "--encoder", ADDRESS], f"--encoder {FOLDER}"),
    (["evaluate", "run", ADDRESS, "--out", "r"], f"DATA {FOLDER}"),
    (["data", "info", ADDRESS], f"DATA {FOLDER}"),
    (["bulk", "encode", "run", "digits", "--out", ADDRESS], f"--out {FOLDER}"),
    (["bulk", "index", "items", "--out", ADDRESS], f"--out {FOLDER}"),
    (["bulk", "search", ADDRESS, "q", "--out", "a"], f"TABLE {FOLDER}"),
    (["bulk", "neighbours", ADDRESS, "--out", "a"], f"TABLE {FOLDER}"),
    (["table", "stats", "postgresql:me:Sekret99@127.0.0.1:1/shop"], "TABLE is no address"),
    (["table", "stats", "postgresql//me:Sekret99@127.0.0.1:1/shop"], "TABLE is no address"),
    (["table", "stats", "postgresql:/me:Sekret99@127.0.0.1:1/shop"], "TABLE is no address"),
    (["table", "stats", "host=127.0.0.1 password=Sekret99 dbname=shop"], "TABLE has a password"),
    (["table", "stats", "host=127.0.0.1 PASSWORD = Sekret99"], "TABLE has a password"),
    (["serve", "host=h passwrod=Sekret99"], "TABLE has a password in it, or may have one"),
    (["serve", "host = 'a b' pwd = Sekret99"], "TABLE has a password in it, or may have one"),
    (["table", "stats", "passwrod=Sekret99 host=h"], "or may have one"),
    (["serve", "postgresql://me:abc:Sekret99"], "postgresql://me:…"),
    (["serve", "qdrant:/Sekret99@h/c"], "TABLE is no address"),
    (["copy", "t", "postgresql://me:Sek@ret99@127.0.0.1:1/shop"], ""),
    (["table", "stats", "postgresql://h/shop?passwordd=Sekret99"], "passwordd=…"),
    (["table", "stats", "postgresql://me:Sekret99/x"], "postgresql://me:…/x"),
    (["table", "stats", "qdrant://me:Sekret99/x@h/c"], "QDRANT_API_KEY"),
    (["index", "run", "digits", "--to", "me:Sekret99@h/shop"], "--to is 'me@h/shop'"),
    (["bulk", "search", "t", "q", "--out", "a", "--ray", "ray://me:Sekret99@h:1"], "ray://me@h:1"),
    (["table", "stats", "postgresql://me:%Sekret99@127.0.0.1:1/shop"], ""),
]
UNKNOWN = [  # typer's words for them would repeat what was typed
    (["serve", "t", "--api-keyy", "Sekret99"], "No such option: --api-keyy"),
    (["serve", "t", "--api_key=Sekret99"], "No such option: --api_key"),
    (["serve", "t", "--api-key:Sekret99"], "No such option: --api-key…"),
    (["serve", "t", "--api key Sekret99"], "No such option: --api…"),
    (["serve", "t", "--Sekret99"], "No such option: --…"),
    (["serve", "t", "-Sekret99"], "No such option: -…"),
    (["serve", "t", "\N{EM DASH}api-key", "Sekret99"], "unexpected extra argument"),
    (["serve", "t", "--read-only=Sekret99"], "does not take a value"),
    (["serve", "t", "--port", "Sekret99"], "Invalid value for '--port'"),
    (["--api-key", "Sekret99", "serve", "t"], "No such option: --api-key"),
    (["Sekret99"], "No such command;"),
    (["table", ADDRESS], "No such command;"),
    (["serach", "Sekret99"], "No such command 'serach'"),
    (["copy", "t", ADDRESS, ADDRESS], "unexpected extra argument"),
    (["serve", "t", "--config", "keyy.toml"], "has the option api-keyy"),
    (["serve", "t", "--config", "bare.toml"], "bare.toml is not TOML"),
    (["serve", "t", "--config", "port.toml"], "Invalid value for '--port'"),
]
RIGHT = [
    (["index", "run", "digits", "--to", ADDRESS], "run does not exist"),
    (["search", ADDRESS, "id:1"], "see that the server runs"),
    (["serve", ADDRESS], "see that the server runs"),
    (["copy", ADDRESS, "new"], "see that the server runs"),
    (["copy", "t", ADDRESS], "t has no manifest"),
    (["table", "stats", ADDRESS], "see that the server runs"),
    (["table", "check", ADDRESS], "see that the server runs"),
    (["table", "compact", ADDRESS], "folder"),
    (["table", "stats", "postgresql://127.0.0.1:1/x?password=Sekret99"], "see that the server"),
]


def named(value: Any) -> str:
    return " ".join(value[:2]) if isinstance(value, list) else ""


def mistake(words: list[str], capsys: Any) -> str:
    """What a command says that cannot be: one line, without the password."""
    with pytest.raises(SystemExit) as ended:
        run(words)
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
    assert "ret99" not in said.err
    return str(said.err)


@pytest.mark.parametrize(("words", "expected"), WRONG, ids=named)
def test_it_is_one_line(
    words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").mkdir()
    assert expected in mistake(words, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


@pytest.mark.parametrize(("words", "expected"), RIGHT, ids=named)
def test_where_addresses_are_taken_they_are_used(
    words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").mkdir()
    said = mistake(words, capsys)
    assert expected in said
    assert FOLDER not in said


@pytest.mark.parametrize(("words", "expected"), UNKNOWN, ids=named)
def test_what_is_not_known_is_not_repeated(
    words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = {"keyy": 'api-keyy = "Sekret99"', "bare": "api-key = Sekret99"}
    lines["port"] = 'port = "Sekret99"'
    for name, line in lines.items():
        (tmp_path / f"{name}.toml").write_text(f"[serve]\n{line}\n")
    assert expected in mistake(words, capsys)


def test_every_command_looks() -> None:
    commands = [
        command
        for one in SubCommands().values()
        for command in getattr(one, "commands", {"": one}).values()
    ]
    assert len(commands) > 15
    assert all(type(command) is GuardedCommand for command in commands)
    assert {name.split()[0] for name in TAKE_ADDRESSES} == {
        "adapt", "calibrate", "index", "search", "serve", "copy", "table"
    }  # fmt: skip
