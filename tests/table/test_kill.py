"""A writer killed at any moment loses nothing that it acknowledged, nor does a loss of power."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from flowhash.table import HashTable
from flowhash.table.integrity import folder_faults
from tests.table.writer import KINDS, Kind, Model, operation, recoding, strays

WRITER = Path(__file__).with_name("writer.py")


class Writer:
    """The child that forks workers; one worker at a time."""

    def __init__(self) -> None:
        # One thread: what forks must have no others.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(WRITER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.expect("ready")

    def expect(self, word: str) -> list[str]:
        """The lines up to one that starts with ``word``, with it."""
        stdout = self.process.stdout
        assert stdout is not None
        lines = []
        for line in stdout:
            lines.append(line.strip())
            assert not line.startswith("failed"), line
            if line.startswith(word):
                return lines
        raise AssertionError(f"the writer ended after {lines}")

    def start(self, **order: Any) -> int:
        """Start a worker; its process id."""
        stdin: IO[str] | None = self.process.stdin
        assert stdin is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        # The worker may speak before its parent does; then its line is read again from here.
        self.early = self.expect("worker")
        return int(self.early.pop().split()[1])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def writer() -> Iterator[Writer]:
    child = Writer()
    yield child
    child.close()


def acknowledged(lines: list[str], first: int) -> int:
    """The number of the first operation that was not acknowledged."""
    numbers = [int(line.split()[1]) for line in lines if line.startswith("done")]
    assert numbers == list(range(first, first + len(numbers)))
    return first + len(numbers)


def state_of(path: Path, before: Model, after: Model) -> Model:
    """Which of two states a table is in; it must be one of them, whole and in order."""
    assert folder_faults(path) == []
    with HashTable.open(path) as table:
        assert table.check() == []
        found = before if before.differences(table) == [] else after
        assert found.differences(table) == []
        assert found.wrong_answers(table) == []
    return found


def kill_often(writer: Writer, path: Path, name: str, kills: int, seed: int) -> None:
    """Kill workers at random moments, one after another, on the same table."""
    kind = KINDS[name]
    kind.create(path).close()
    moments = random.Random(seed)
    model, number = Model(kind), 0
    for _ in range(kills):
        worker = writer.start(path=str(path), kind=name, seed=seed, first=number)
        lines = writer.early
        for _ in range(moments.randrange(1, 10) - len(lines)):
            lines += writer.expect("")
        time.sleep(moments.random() * 0.02)
        os.kill(worker, signal.SIGKILL)
        lines += writer.expect("ended")
        done = acknowledged(lines, number)
        for one in range(number, done):
            model = model.after(operation(kind, seed, one))
        later = model.after(operation(kind, seed, done))
        found = state_of(path, model, later)
        number = done + (found is later)
        model = found
        with HashTable.open(path, "r+") as table:
            assert model.differences(table) == []
            assert table._folder.manifest.next_id == model.next_id  # type: ignore[union-attr]
        assert strays(path) == set()
    assert number > kills  # they did work


@pytest.mark.parametrize("name", sorted(KINDS))
def test_killed_20_times(writer: Writer, tmp_path: Path, name: str) -> None:
    kill_often(writer, tmp_path / "table", name, kills=10, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize("seed", [2, 3])
def test_killed_200_times(writer: Writer, tmp_path: Path, name: str, seed: int) -> None:
    kill_often(writer, tmp_path / "table", name, kills=50, seed=seed)


def kill_recodings(writer: Writer, path: Path, name: str, kills: int, seed: int) -> None:
    """Kill workers that give all items new codes, again and again."""
    kind = KINDS[name]
    model, moments = Model(kind), random.Random(seed)
    with kind.create(path) as table:
        for number in range(40):
            change = operation(kind, seed, number)
            change.run(table)
            model = model.after(change)
    number, seen = 0, set()
    for _ in range(kills):
        worker = writer.start(path=str(path), kind=name, seed=seed, first=number, recode=True)
        lines = writer.early
        for _ in range(moments.randrange(1, 4) - len(lines)):
            lines += writer.expect("")
        time.sleep(moments.random() * 0.02)
        os.kill(worker, signal.SIGKILL)
        lines += writer.expect("ended")
        done = acknowledged(lines, number)
        for one in range(number, done):
            model = model.after(recoding(one))
        later = model.after(recoding(done))
        found = state_of(path, model, later)
        seen.add(bool(strays(path)))
        number = done + (found is later)
        model = found
        with HashTable.open(path, "r+") as table:
            assert model.differences(table) == []
        assert strays(path) == set()
    assert number
    assert True in seen  # some died in the middle of it


@pytest.mark.parametrize("name", sorted(KINDS))
def test_killed_while_it_gives_new_codes(writer: Writer, tmp_path: Path, name: str) -> None:
    kill_recodings(writer, tmp_path / "table", name, kills=15, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS))
def test_killed_200_times_while_it_gives_new_codes(
    writer: Writer, tmp_path: Path, name: str
) -> None:
    kill_recodings(writer, tmp_path / "table", name, kills=200, seed=2)


def find_operations(kind: Kind, seed: int, path: Path) -> dict[str, int]:
    """The number of an operation of each sort, also of those that make the table merge segments."""
    chosen: dict[str, int] = {}
    with kind.create(path) as table:
        for number in range(60):
            change = operation(kind, seed, number)
            generation = table._folder.manifest.generation  # type: ignore[union-attr]
            change.run(table)
            commits = table._folder.manifest.generation - generation  # type: ignore[union-attr]
            counted = "" if change.ids else " counted"
            if number > 10 and commits:
                chosen.setdefault(f"{change.name}{counted}, {commits} commits", number)
    assert any(sort.endswith("2 commits") for sort in chosen)
    assert any(sort.startswith("recode") for sort in chosen)
    return chosen


def kill_at_lines(writer: Writer, path: Path, name: str, seed: int, step: int) -> None:
    """Kill workers at every ``step``-th line that writes, in one operation of each sort."""
    kind = KINDS[name]
    for sort, target in find_operations(kind, seed, path / "scratch").items():
        base = path / f"base {target}"
        model = Model(kind)
        with kind.create(base) as table:
            for number in range(target):
                change = operation(kind, seed, number)
                change.run(table)
                model = model.after(change)
        later = model.after(operation(kind, seed, target))
        seen = set()
        line = target % step
        while True:
            copy = path / "copy"
            shutil.copytree(base, copy)
            writer.start(
                path=str(copy), kind=name, seed=seed, first=target, last=target + 1, line=line
            )
            done = acknowledged(writer.early + writer.expect("ended"), target) > target
            found = state_of(copy, later if done else model, later)
            seen.add(found is later)
            HashTable.open(copy, "r+").close()
            assert strays(copy) == set()
            shutil.rmtree(copy)
            if done:
                break
            line += step
        assert line > 50, f"{sort} was over at once"
        assert seen == {False, True} or sort.startswith("compact")


def test_killed_at_many_lines(writer: Writer, tmp_path: Path) -> None:
    kill_at_lines(writer, tmp_path, "listed", seed=4, step=29)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS))
def test_killed_at_every_third_line(writer: Writer, tmp_path: Path, name: str) -> None:
    kill_at_lines(writer, tmp_path, name, seed=4, step=3)


class Disk:
    """What of a folder is sure to survive a loss of power: what was flushed, as it was then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.contents: dict[int, bytes] = {}
        self.names: dict[str, int] = {}
        for entry in folder.iterdir():
            self.contents[entry.stat().st_ino] = entry.read_bytes()
        self.names = self.current()

    def current(self) -> dict[str, int]:
        return {entry.name: entry.stat().st_ino for entry in self.folder.iterdir()}

    def flushed(self, handle: int) -> None:
        place = Path(f"/proc/self/fd/{handle}").resolve()
        if place == self.folder:
            self.names = self.current()
        elif place.parent == self.folder:
            self.contents[os.fstat(handle).st_ino] = place.read_bytes()

    def survivors(self, target: Path) -> Iterator[Path]:
        """Folders as they may be found: with the names that were flushed, and with all names."""
        for names in (self.names, self.current()):
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            for name, number in names.items():
                (target / name).write_bytes(self.contents.get(number, b""))
            yield target


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("name", sorted(KINDS))
def test_power_may_fail_at_every_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    kind = KINDS[name]
    path = tmp_path / "table"
    table = kind.create(path)
    model = Model(kind)
    disk = Disk(path.resolve())
    flush, rename, remove = os.fsync, os.replace, os.unlink
    before = after = model
    moments = 0
    looking = False

    def look() -> None:
        nonlocal moments, looking
        if looking:  # this removes files itself
            return
        looking = True
        moments += 1
        for folder in disk.survivors(tmp_path / "survivor"):
            state_of(folder, before, after)
        looking = False

    def watched_flush(handle: int) -> None:
        look()
        flush(handle)
        disk.flushed(handle)
        look()

    def watched(function: Any) -> Any:
        def call(*arguments: Any, **others: Any) -> None:
            function(*arguments, **others)
            look()

        return call

    monkeypatch.setattr(os, "fsync", watched_flush)
    monkeypatch.setattr(os, "replace", watched(rename))
    monkeypatch.setattr(os, "unlink", watched(remove))
    for number in range(14):
        change = operation(kind, 20, number)  # also new codes, and a compaction
        before, after = model, model.after(change)
        change.run(table)
        before = model = after
        look()  # acknowledged: from here on it must be there
    table.close()
    assert moments > 100
