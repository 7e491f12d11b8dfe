"""Options in a file: they count, what is typed wins, and what was resolved runs again."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from flowhash import Encoder, HashTable
from flowhash.cli.app import _code
from flowhash.errors import InputError
from flowhash.settings_file import MOST, read_text, toml
from tests.cli.commands import COMMAND, run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of vectors: three clouds of points."""
    folder = tmp_path_factory.mktemp("config")
    rng = np.random.default_rng(0)
    labels = np.repeat(["ant", "bee", "cat"], 30)
    centres = rng.normal(size=(3, 8)).repeat(30, 0)
    vectors = centres + 0.3 * rng.normal(size=(90, 8))
    np.savez(folder / "items.npz", embeddings=vectors, labels=labels)
    return folder


def test_a_file_is_taken_what_is_typed_wins_and_the_result_runs_again(place: Path) -> None:
    config = place / "options.toml"
    config.write_text(
        'device = "cpu"\n'
        "[fit]\n"
        f'data = "{place / "items.npz"}"\n'
        "buckets = 12\n"
        "active = 2\n"
        'out = "never"\n'
        "[table.stats]\n"
        "json = true\n"
    )
    out = place / "run"
    done = run(COMMAND, "fit", "--config", str(config), "--active", "3", "--first-active", "5",
               "--out", str(out), "--json", "--quiet")  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["buckets"], facts["active"], facts["run"]) == (12, 3, str(out))
    saved = toml.loads((out / "fit.toml").read_text())["fit"]
    assert (saved["buckets"], saved["active"], saved["device"]) == (12, 3, "cpu")
    assert saved["first-active"] == 5
    told = json.loads((out / "settings.json").read_text())["settings"]
    assert (told["active"], told["first_active"]) == (3, 5)
    assert saved["penalty"] == 5.0  # chosen for the data, not typed
    again = run(COMMAND, "fit", "--config", str(out / "fit.toml"), "--out", str(place / "again"),
                "--json", "--quiet")  # fmt: skip
    assert again.returncode == 0, again.stderr
    one, two = (Encoder.load(folder / "encoder") for folder in (out, place / "again"))
    assert one.fingerprint == two.fingerprint


def test_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each: nothing is waited for, read for ever, or nested too deeply."""
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "folder.toml").mkdir()
    contents = {
        "binary": b"\xff\xfe\0", "zero": b"a = \0", "deep": b"a = " + b"[" * 60_000,
        "tables": b"a = " + b"{a = " * 3000 + b"1" + b"}" * 3000, "digits": b"a = " + b"9" * 5000,
        "long": b"#" * (MOST + 1),
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / f"{name}.toml").write_bytes(content)
    places = [*sorted(tmp_path.iterdir()), Path("/dev/zero"), tmp_path / "nothing.toml"]
    for place in places:
        for option in ("--config", "--api-key-file"):
            if option == "--config" or place.name in ("pipe.toml", "zero", "folder.toml"):
                assert _code(["serve", "nowhere", option, str(place)]) == 2
                said = capsys.readouterr().err
                assert said.count("\n") == 1
                assert str(place) in said
    # What a shell makes of <(command) is read.
    ends = os.pipe()
    os.write(ends[1], b"[serve]\nport = 'x'\n")
    os.close(ends[1])
    assert _code(["serve", "nowhere", "--config", f"/dev/fd/{ends[0]}"]) == 2
    os.close(ends[0])
    assert "--port" in capsys.readouterr().err


def test_a_pipe_that_is_put_in_the_place_of_a_file_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, pipe = tmp_path / "file.toml", tmp_path / "pipe.toml"
    file.write_text("a = 1")
    os.mkfifo(pipe)
    before = file.stat()

    def open_and_wait(*_: object) -> None:
        raise AssertionError("it would be waited for")

    monkeypatch.setattr(Path, "stat", lambda *_, **__: before)  # what it was a moment ago
    monkeypatch.setattr(Path, "open", open_and_wait)
    assert read_text(file) == "a = 1"
    with pytest.raises(InputError, match=r"pipe\.toml is a pipe; expected a file"):
        read_text(pipe)


def test_a_command_in_the_place_of_a_file_may_take_its_time() -> None:
    ends = os.pipe()

    def write() -> None:
        time.sleep(0.2)
        os.write(ends[1], b"late")
        os.close(ends[1])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert read_text(Path(f"/dev/fd/{ends[0]}")) == "late"
    finally:
        writer.join()
        os.close(ends[0])


def test_a_section_of_a_group_is_for_its_command(tmp_path: Path) -> None:
    with HashTable.create(tmp_path / "x.table", buckets=2, dim=1) as table:
        table.add([[0], [1], [1]], [[0.0], [1.0], [2.0]])
    config = tmp_path / "options.toml"
    config.write_text("[table.stats]\njson = true\n")
    done = run(COMMAND, "table", "stats", str(tmp_path / "x.table"), "--config", str(config))
    assert json.loads(done.stdout)["items"] == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bukets = 3\n", "did you mean 'buckets'?"),
        ("[fit]\nbukets = 3\n", "did you mean 'buckets'?"),
        ("[fit]\ntop = 3\n", "flowhash fit does not have"),
        ("[fitt]\nbuckets = 3\n", "did you mean 'fit'?"),
        ("[fit]\nbuckets = 'many'\n", "--buckets"),
        ("fit = 3 3\n", "is not TOML"),
        ("[table]\nstats = 3\n", "such as [table."),
        ("[table.stat]\njson = true\n", "did you mean 'stats'?"),
    ],
)
def test_a_wrong_file_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    config = tmp_path / "options.toml"
    config.write_text(text)
    done = run(COMMAND, "fit", "digits", "--config", str(config), "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_option_called_like_a_command_is_no_section(tmp_path: Path) -> None:
    config = tmp_path / "options.toml"
    config.write_text(f'table = "{tmp_path / "nothing"}"\n')
    done = run(COMMAND, "table", "stats", "--config", str(config))
    assert done.returncode == 2
    assert "does not exist" in done.stderr


def test_a_users_folder_is_meant_by_a_tilde(tmp_path: Path) -> None:
    config = tmp_path / "options.toml"
    config.write_text('table = "~/y.table"\n')
    done = run(COMMAND, "table", "check", "--config", str(config), HOME=str(tmp_path))
    assert str(tmp_path / "y.table") in done.stderr
    typed = run(COMMAND, "search", "x.table", "id:1", "--config=~/none.toml", HOME=str(tmp_path))
    assert str(tmp_path / "none.toml") in typed.stderr


def test_no_file_is_said(tmp_path: Path) -> None:
    done = run(COMMAND, "fit", "digits", "--config", str(tmp_path / "nothing.toml"))
    assert done.returncode == 2
    assert "is not there" in done.stderr


def test_options_of_other_commands_may_stand_at_the_top(tmp_path: Path) -> None:
    config = tmp_path / "options.toml"
    config.write_text("buckets = 16\ntop = 3\n")  # top is for search
    done = run(COMMAND, "bench", "solver", "--config", str(config), "--classes", "4",
               "--repeats", "1", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["buckets"] == 16
