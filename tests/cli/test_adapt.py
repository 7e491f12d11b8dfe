"""``flowhash adapt`` as a person runs it, in processes of their own; killed, and given again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from flowhash import HashTable
from flowhash.encoder import Encoder
from tests.cli.commands import COMMAND, run
from tests.encoder.encoders import DIM, make

ITEMS = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a table, its encoder, and queries that are items of it."""
    make("mlp").save(tmp_path / "encoder")
    values = np.random.default_rng(5).normal(size=(ITEMS, DIM)).astype(np.float32)
    np.save(tmp_path / "items.npy", values)
    np.save(tmp_path / "query.npy", values[:2])
    done = run(COMMAND, "index", "encoder", "items.npy", "--out", "x.table", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path


def found(folder: Path) -> list[int]:
    """The ids that a search finds, which is told of no encoder."""
    done = run(COMMAND, "search", "x.table", "query.npy", "--top", "1", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return [answer["hits"][0]["id"] for answer in json.loads(done.stdout)["answers"]]


def test_a_table_is_adapted_and_searched_without_a_word(folder: Path) -> None:
    assert found(folder) == [0, 1]
    old = make("mlp").fingerprint
    done = run(COMMAND, "adapt", "x.table", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["items"], facts["adapted"], facts["resumed"]) == (ITEMS, True, False)
    assert facts["suf"] > facts["suf_before"]
    with HashTable.open(folder / "x.table") as table:
        assert table.encoder == facts["fingerprint"] != old
        new = Encoder.load(folder / "x.adapted" / "encoder")
        assert new.fingerprint == table.encoder
        made = new.encode(np.load(folder / "items.npy")).codes
        assert table.codes_of(list(range(ITEMS))) == made.tolist()
    assert found(folder) == [0, 1]
    assert Encoder.load(folder / "encoder").fingerprint == old
    # Given again, there is nothing to do; where it is asked for, it goes into another folder.
    again = run(COMMAND, "adapt", "x.table", cwd=folder)
    assert again.returncode == 0
    assert "was adapted before, and nothing has changed since" in again.stdout
    assert not (folder / "x.adapted-2").exists()
    more = run(COMMAND, "adapt", "x.table", "--again", cwd=folder)
    assert more.returncode == 0, more.stderr
    assert (folder / "x.adapted-2" / "encoder" / "encoder.json").exists()
    # Items are added with the encoder of the table, by the file that says so.
    rows = np.random.default_rng(6).normal(size=(5, DIM)).astype(np.float32)
    np.save(folder / "more.npy", rows)
    added = run(COMMAND, "index", "x.adapted-2", "more.npy", "--out", "x.table", cwd=folder)
    assert added.returncode == 0, added.stderr
    assert found(folder) == [0, 1]
    config = str(folder / "x.adapted-2" / "adapt.toml")
    last = run(COMMAND, "adapt", "--config", config, cwd=folder)
    assert last.returncode == 0, last.stderr
    assert (folder / "x.adapted-3").exists()
    assert found(folder) == [0, 1]


def test_an_adapted_encoder_may_move(folder: Path) -> None:
    """What ``index`` knows by then stays; what nobody knows is asked for."""
    assert run(COMMAND, "adapt", "x.table", cwd=folder).returncode == 0
    (folder / "models").mkdir()
    (folder / "x.adapted").rename(folder / "models" / "x.adapted")
    notes = folder / "x.table" / "index.toml"
    stale = notes.read_text()
    lost = run(COMMAND, "adapt", "x.table", cwd=folder)
    assert lost.returncode == 2
    assert "which is not there any more; say where it is with --encoder" in lost.stderr
    assert notes.read_text() == stale
    words = ("index", "models/x.adapted", "items.npy", "--out", "x.table")
    assert run(COMMAND, *words, cwd=folder).returncode == 0
    told = notes.read_text()
    again = run(COMMAND, "adapt", "x.table", "--out", "new", cwd=folder)
    assert again.returncode == 0, again.stderr
    said = " ".join(again.stdout.split())
    assert "nothing has changed since; its encoder is" in said
    assert "models/x.adapted/encoder; new was not used. To adapt" in said
    assert not (folder / "new").exists()
    assert notes.read_text() == told
    assert found(folder) == [0, 1]
    # Who knows where it is says so once.
    notes.write_text(stale)
    known = run(COMMAND, "adapt", "x.table", "--encoder", "models/x.adapted", cwd=folder)
    assert known.returncode == 0, known.stderr
    assert found(folder) == [0, 1]
    other = run(COMMAND, "adapt", "x.table", "--encoder", "encoder", cwd=folder)
    assert other.returncode == 2
    assert "was made with encoder" in other.stderr


def test_killed_at_any_moment_it_goes_on(folder: Path) -> None:
    """By time here; ``tests/indexing`` kills it at every flush."""
    old = make("mlp").fingerprint
    words = [COMMAND, "adapt", "x.table", "-q"]
    killed = 0
    for early in (True, False):
        process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL)
        if early:  # in the middle of what it does first
            time.sleep(0.2)
        while not early and process.poll() is None and not (folder / "x.adapted").exists():
            time.sleep(0.002)  # until the new encoder appears
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        assert found(folder) == [0, 1]
        assert Encoder.load(folder / "encoder").fingerprint == old
    assert killed >= 1
    done = run(*words, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert found(folder) == [0, 1]
    with HashTable.open(folder / "x.table") as table:
        assert table.encoder == Encoder.load(folder / "x.adapted" / "encoder").fingerprint
        assert table.check() == []
    assert not (folder / "x.adapted-2").exists()
    assert [one.name for one in folder.iterdir() if one.name.startswith(".")] == []


def test_ctrl_c_says_what_is_kept(folder: Path) -> None:
    environment = {**os.environ, "NO_COLOR": "1"}
    slow = folder / "slow.py"  # the same command, with a table that is long in taking its codes
    slow.write_text(
        "import sys, time\n"
        "from flowhash.cli import main\n"
        "from flowhash.encoder import Encoder\n"
        "real = Encoder.encode_stored\n"
        "def waiting(*given):\n"
        "    open('begun', 'w').close()\n"
        "    time.sleep(30)\n"
        "    return real(*given)\n"
        "Encoder.encode_stored = waiting\n"
        "sys.argv = ['flowhash', 'adapt', 'x.table', '-q']\n"
        "main()\n"
    )
    python = str(Path(COMMAND).with_name("python"))
    process = subprocess.Popen(
        [python, str(slow)], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not (folder / "begun").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "x.table is as it was; the encoder is fitted, in x.adapted; the same command" in said
    assert "Traceback" not in said
    done = run(COMMAND, "adapt", "x.table", "--json", cwd=folder)
    assert json.loads(done.stdout)["resumed"] is True
    assert found(folder) == [0, 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.table",), "nowhere.table"),
        (("encoder",), "encoder"),
        (("x.table", "--encoder", "nowhere"), "nowhere does not exist; expected the folder that"),
        (("x.table", "--encoder", "other"), "was made with encoder"),
        (("x.table", "--out", "encoder"), "is there already, and was not fitted to the table as"),
        (("x.table", "--seed", "-1"), "--seed"),
        (("postgresql://me@host/shop",), "is an address; only the items of a folder get new codes "
         "in place. Copy it into a folder (flowhash copy), adapt that, and copy it"),
        (("x.table", "--out", "qdrant://host/x"), "--out is an address; expected a folder"),
        (("empty.table",), "empty.table is empty; put items into it"),
        (("own.table",), "does not say which encoder made it; give --encoder"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(words: tuple[str, ...], said: str, folder: Path) -> None:
    make("mlp", seed=6).save(folder / "other")
    HashTable.create(folder / "empty.table", buckets=3, dim=2).close()
    with HashTable.create(folder / "own.table", buckets=3, dim=2) as table:
        table.add([[0]], [[1, 2]])
    done = run(COMMAND, "adapt", *words, cwd=folder)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "x.adapted").exists()


def test_a_table_that_somebody_writes_to_is_refused(folder: Path) -> None:
    with HashTable.open(folder / "x.table", "r+"):
        done = run(COMMAND, "adapt", "x.table", cwd=folder)
    assert done.returncode == 2
    assert "a table has one writer" in done.stderr
    assert done.stderr.count("\n") == 1
