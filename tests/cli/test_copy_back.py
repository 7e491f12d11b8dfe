"""A copy back into a folder that is killed: the next one removes what it left, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.cli.app import _code
from flowhash.durable_files import LOCK, folder_aside as aside, put_folder
from flowhash.engines import create_engine
from flowhash.errors import InputError
from flowhash.table import HashTable
from tests.cli.commands import COMMAND

# Copies, and says so in the middle: its items have come, and are not compared yet.
SLOW = """
import sys, time
from flowhash.cli import main
from flowhash.cli.commands import copy
def wait(*_):
    print("begun", flush=True)
    time.sleep(1000)
copy._refuse_mixture = wait
main(sys.argv[1:])
"""


@pytest.fixture
def address(tmp_path: Path) -> str:
    pytest.importorskip("qdrant_client", reason="the tests of Qdrant need flowhash[qdrant]")
    made = f"qdrant+local://{tmp_path / 'qdrant'}?collection=pets"
    with create_engine(made, buckets=5, dim=2) as engine:
        engine.add([[0], [1], [4]], np.ones((3, 2)))
    return made


def begun(address: str, folder: Path) -> subprocess.Popen[str]:
    """A copy in a process of its own, in the middle."""
    words = [sys.executable, "-c", SLOW, "copy", address, str(folder), "-q"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir() if path.name.startswith("."))


def test_what_a_killed_copy_left_is_removed(address: str, tmp_path: Path) -> None:
    back = tmp_path / "here" / "back.table"
    process = begun(address, back)
    (left,) = hidden(back)
    assert (back.parent / left / "table" / "manifest.json").exists()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert hidden(back) == [left]
    # Of other copies, of other programs, or nobody knows whose: they stay.
    others = [".back.table.copy-notes", ".other.table.copy-00000000", ".back.table-abcd"]
    for other in others:
        (back.parent / other).mkdir()
        (back.parent / other / "table").mkdir()
        (back.parent / other / "table" / "file").write_text("mine")
        (back.parent / other / "notes").write_text("mine")
    (back.parent / ".back.table.copy-file").write_text("mine")
    (tmp_path / "elsewhere" / "table").mkdir(parents=True)
    (tmp_path / "elsewhere" / LOCK).touch()
    (back.parent / ".back.table.copy-link").symlink_to(tmp_path / "elsewhere")
    (back.parent / ".back.table.copy-00000001").mkdir()  # killed before it had a lock
    assert _code(["copy", address, str(back), "-q"]) == 0
    assert hidden(back) == sorted([*others, ".back.table.copy-file", ".back.table.copy-link"])
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["table", LOCK]
    assert all((back.parent / other / "table" / "file").exists() for other in others)
    with HashTable.open(back) as table:
        assert len(table) == 3


def test_what_a_living_copy_makes_is_left_alone(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    back = tmp_path / "here" / "back.table"
    with aside(back) as made:
        made.mkdir()
        (one,) = hidden(back)
        with aside(back) as other:
            assert other.parent.name != one
            assert hidden(back) == sorted([one, other.parent.name])
        assert hidden(back) == [one]
        # The other one was first.
        assert _code(["copy", address, str(back), "-q"]) == 0
        (made / "file").touch()
        with pytest.raises(InputError, match="made by somebody else meanwhile"):
            put_folder(made, back)
    assert [path.name for path in back.parent.iterdir()] == ["back.table"]
    assert capsys.readouterr().err == ""


def test_killed_while_it_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock goes last, so that the next one knows what is left for dead."""
    back = tmp_path / "back.table"

    class Killed(BaseException):
        pass

    def die(path: Path, *_: Any, **__: Any) -> None:
        raise Killed

    for name in ("unlink", "rmdir"):
        with monkeypatch.context() as patch, contextlib.suppress(Killed), aside(back) as made:
            made.mkdir()
            patch.setattr(Path, name, die)
        (left,) = hidden(back)
        assert [path.name for path in (tmp_path / left).iterdir()] == ([LOCK] * (name == "unlink"))
        with aside(back):
            assert left not in hidden(back)
        assert hidden(back) == []


def test_an_interrupt_begins_anew(address: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", SLOW, "copy", address, str(tmp_path / "back"), "-q"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert (process.returncode, said.count("\n")) == (130, 1), said
    assert "the same command begins anew" in said
    assert hidden(tmp_path / "back") == []
    done = subprocess.run(
        [COMMAND, "copy", address, str(tmp_path / "back")], capture_output=True, check=False
    )
    assert done.returncode == 0


def test_what_is_not_quite_ours_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = tmp_path / "back.table"
    others = [
        tmp_path / f".back.table.copy-{end}" for end in ("x", "0123456", "0123456789", "ABCDEF01")
    ]
    for other in others:
        other.mkdir()
    dead = tmp_path / ".back.table.copy-01234567"
    dead.mkdir()

    def refused(place: Path) -> None:
        raise PermissionError(13, "Permission denied", str(place))

    with monkeypatch.context() as patched, aside(back):
        assert not dead.exists()
        dead.mkdir()
        # One of another user, whose folder we may not look into, holds nobody up.
        patched.setattr("flowhash.durable_files._remove_dead", refused)
        with aside(back):
            assert dead.exists()
    assert hidden(back) == sorted(other.name for other in [*others, dead])


def test_what_cannot_be_removed_now_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = tmp_path / "back.table"
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_, **__: None)
        with aside(back) as place:
            place.mkdir()
    assert (place.parent / LOCK).exists()  # by which the next one knows it
    with aside(back):
        assert not place.parent.exists()
    assert hidden(back) == []
