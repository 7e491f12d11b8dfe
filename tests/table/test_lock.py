"""One writer and many readers, in one process and in several."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flowhash.errors import DamagedFileError, LockedTableError, StorageError
from flowhash.table import HashTable
from tests.table.test_kill import Writer
from tests.table.writer import KINDS, Model, operation


@pytest.fixture(scope="module")
def writer() -> Iterator[Writer]:
    child = Writer()
    yield child
    child.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    KINDS["listed"].create(tmp_path / "table").close()
    return tmp_path / "table"


def add(table: HashTable, *ids: int) -> None:
    codes = [[one % 5, 7] for one in ids]
    table.add(codes, np.arange(len(ids) * table.dim).reshape(len(ids), -1), list(ids))


def test_one_writer_many_readers(path: Path) -> None:
    with HashTable.open(path, "r+") as table:
        with pytest.raises(LockedTableError, match=r"table is being written .*one writer"):
            HashTable.open(path, "r+")
        readers = [HashTable.open(path) for _ in range(5)]
        add(table, 1, 2)
        with HashTable.open(path) as late:
            assert sorted(late) == [1, 2]
        for reader in readers:
            assert len(reader) == 0
            with pytest.raises(StorageError, match='mode="r\\+"'):
                add(reader, 3)
            for change in (lambda one: one.delete([1]), lambda one: one.compact()):
                with pytest.raises(StorageError, match="searched only"):
                    change(reader)
            reader.close()
    with HashTable.open(path, "r+") as again:  # closing gave the lock back
        assert sorted(again) == [1, 2]


def test_closing_twice_and_using_what_is_closed(path: Path) -> None:
    table = HashTable.open(path, "r+")
    table.close()
    table.close()
    HashTable.open(path, "r+").close()
    for use in (len, list, lambda one: one.compact(), lambda one: one.search([[0, 1]], [[0] * 5])):
        with pytest.raises(StorageError, match="closed"):
            use(table)


def test_who_could_not_open_it_does_not_hold_it(path: Path) -> None:
    manifest = (path / "manifest.json").read_bytes()
    (path / "manifest.json").write_bytes(manifest[:-9])
    with pytest.raises(DamagedFileError):
        HashTable.open(path, "r+")
    (path / "manifest.json").write_bytes(manifest)
    with pytest.raises(ValueError, match="encoder"):
        HashTable.open(path, "r+", encoder="another")
    HashTable.open(path, "r+").close()


def test_a_table_is_made_in_an_empty_folder_only(path: Path, tmp_path: Path) -> None:
    for folder in (path, tmp_path):
        with pytest.raises(StorageError, match="not empty"):
            KINDS["listed"].create(folder)
    (tmp_path / "new").mkdir()
    with KINDS["listed"].create(tmp_path / "new"), pytest.raises(LockedTableError):
        HashTable.open(tmp_path / "new", "r+")


def test_a_lock_file_that_was_left_holds_nobody_up(path: Path) -> None:
    (path / "writer.lock").write_text("left by somebody")
    HashTable.open(path, "r+").close()
    (path / "writer.lock").unlink()
    HashTable.open(path, "r+").close()


def test_another_process_holds_the_lock_until_it_dies(writer: Writer, path: Path) -> None:
    worker = writer.start(path=str(path), kind="listed", seed=1, first=0)
    lines = writer.early
    while not any(line.startswith("done") for line in lines):
        lines += writer.expect("")
    with pytest.raises(LockedTableError):
        HashTable.open(path, "r+")
    HashTable.open(path).close()
    os.kill(worker, signal.SIGKILL)
    writer.expect("ended")
    with HashTable.open(path, "r+") as table:  # at once
        add(table, 1000)
        assert 1000 in table


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_reader_sees_whole_states(writer: Writer, tmp_path: Path, name: str) -> None:
    kind, path, last = KINDS[name], tmp_path / "table", 60
    kind.create(path).close()
    models = [Model(kind)]
    for number in range(last):
        models.append(models[-1].after(operation(kind, 9, number)))
    reader = HashTable.open(path)
    writer.start(path=str(path), kind=name, seed=9, first=0, last=last)
    if "open" not in writer.early:
        writer.expect("open")
    at, seen, working = 0, set(), True
    while working:
        working = is_locked(path)  # the last look is after the last change
        reader.refresh()
        if at % 2:  # a fresh reader must see the same
            reader.close()
            reader = HashTable.open(path)
        ids = set(reader)
        later = [number for number in range(at, last + 1) if models[number].items.keys() == ids]
        later = [number for number in later if models[number].differences(reader) == []]
        assert later, f"no state from {at} on"
        at = later[0]
        assert models[at].wrong_answers(reader) == []
        assert reader.check() == []
        seen.add(at)
    writer.expect("ended")
    assert models[last].differences(reader) == []
    reader.close()
    assert len(seen) > 1


def is_locked(path: Path) -> bool:
    try:
        HashTable.open(path, "r+").close()
    except LockedTableError:
        return True
    return False


def test_refresh_says_whether_there_was_anything_new(path: Path) -> None:
    reader = HashTable.open(path)
    with HashTable.open(path, "r+") as table:
        assert not reader.refresh()
        add(table, 1)
        assert 1 not in reader
        assert reader.refresh()
        assert sorted(reader) == [1]
        assert not reader.refresh()
        assert not table.refresh()  # a writer knows all there is
        table.delete([1])
        table.compact()
        add(table, 5, 6, 7)
        # The files that the reader has mapped are gone; it keeps what it has until it refreshes.
        assert sorted(reader) == [1]
        assert reader.check() == []
        assert reader.search([[1, 7]], np.zeros((1, 5))).ids[0, 0] == 1
        assert reader.refresh()
        assert sorted(reader) == [5, 6, 7]
    reader.close()
    assert not HashTable.create(buckets=3, dim=2).refresh()


def test_a_refresh_that_fails_can_be_tried_again(path: Path) -> None:
    reader = HashTable.open(path)
    with HashTable.open(path, "r+") as table:
        add(table, 1)
    (segment,) = path.glob("segment-*")
    content = segment.read_bytes()
    segment.unlink()
    for _ in range(2):
        with pytest.raises(DamagedFileError, match=segment.name):
            reader.refresh()
        assert len(reader) == 0  # as before
    segment.write_bytes(content)
    assert reader.refresh()
    assert sorted(reader) == [1]
    reader.close()


@pytest.mark.parametrize("restart", [False, True], ids=["same writer", "next writer"])
def test_a_reader_that_saw_what_was_taken_back(
    monkeypatch: pytest.MonkeyPatch, path: Path, restart: bool
) -> None:
    """The last flush of a commit fails, and a reader looks just before the commit is undone."""
    reader, table = HashTable.open(path), HashTable.open(path, "r+")
    rename, flush = os.replace, os.fsync
    renamed = False

    def note_rename(source: Path, target: Path) -> None:
        nonlocal renamed
        rename(source, target)
        renamed = True

    def fail_once(handle: int) -> None:
        nonlocal renamed
        if renamed:
            renamed = False
            monkeypatch.undo()
            reader.refresh()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(handle)

    monkeypatch.setattr(os, "replace", note_rename)
    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(StorageError, match=str(path)):
        add(table, 1, 2)
    assert sorted(reader) == [1, 2]  # it saw them
    assert sorted(table) == []
    if restart:
        table.close()
        table = HashTable.open(path, "r+")
    add(table, 8, 9)
    table.close()
    reader.refresh()
    assert sorted(reader) == [8, 9]
    reader.close()
