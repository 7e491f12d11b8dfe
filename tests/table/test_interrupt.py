"""Interrupted at any moment of a commit, also twice: the table is one state or the other, whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from flowhash import HashTable, StorageError
from flowhash.table.integrity import folder_faults

STEPS = ("fsync", "replace", "unlink", "open")


@contextmanager
def interrupting(number: int, twice: bool, kind: type[BaseException]) -> Iterator[list[str]]:
    """Raise at the ``number``-th call of the system, before or after it, and perhaps once more."""
    seen: list[str] = []
    raised: list[str] = []
    real = {name: getattr(os, name) for name in STEPS}

    def stand_in(name: str):  # type: ignore[no-untyped-def]
        def call(*words, **options):  # type: ignore[no-untyped-def]
            seen.append(name)
            place = len(seen) - 1
            if place == number or (twice and raised and len(raised) < 2):
                raised.append(name)
                if place % 2 == 0:
                    real[name](*words, **options)  # it was done, then interrupted
                raise kind(5, "on purpose") if kind is OSError else kind
            return real[name](*words, **options)

        return call

    for name in STEPS:
        setattr(os, name, stand_in(name))
    try:
        yield raised
    finally:
        for name in STEPS:
            setattr(os, name, real[name])


def make(path: Path) -> None:
    generator = np.random.default_rng(0)
    with HashTable.create(path, buckets=4, dim=2, active=2) as table:
        for first in (0, 10):
            codes = np.argsort(generator.random((10, 4)), axis=1)[:, :2]
            table.add(codes, generator.integers(0, 9, size=(10, 2)), range(first, first + 10))
        table.delete([3, 13])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("what", ["add", "delete", "compact", "recode"])
def test_interrupted_anywhere(
    tmp_path: Path, what: str, twice: bool, kind: type[BaseException]
) -> None:
    make(tmp_path / "base")
    before = set(range(20)) - {3, 13}
    after = {"add": before | {50}, "delete": before - {1, 11}}.get(what, before)
    for number in range(40):
        path = tmp_path / "table"
        shutil.copytree(tmp_path / "base", path)
        table = HashTable.open(path, "r+")
        with interrupting(number, twice, kind) as raised:
            try:
                if what == "add":
                    table.add([[0, 1]], [[5, 5]], [50])
                elif what == "delete":
                    table.delete([1, 11])
                elif what == "recode":
                    table.recode(lambda vectors: [[0, 3]] * len(vectors), "new")
                else:
                    table.compact()
            except (KeyboardInterrupt, StorageError):
                pass
        assert set(table) in (before, after), (number, raised)
        recoded = table.encoder == "new"
        assert recoded == (len(table.bucket(3)) == 18), (number, raised)
        assert recoded or raised or what != "recode"
        shutil.copytree(path, tmp_path / "copy")  # what a process that ends here leaves
        with HashTable.open(tmp_path / "copy", "r+") as left:
            assert set(left) == set(table), (number, raised)
            assert left.encoder == table.encoder, (number, raised)
            assert set(left.bucket(3)) == set(table.bucket(3)), (number, raised)
            assert left.check() == []
        shutil.rmtree(tmp_path / "copy")
        table.add([[0, 2]], [[6, 6]], [60])  # goes on from there
        now = set(table)
        assert now in (before | {60}, after | {60})
        table.close()
        for mode in ("r", "r+", "r"):
            with HashTable.open(path, mode) as again:
                assert set(again) == now
        assert folder_faults(path) == []
        shutil.rmtree(path)
        if not raised:
            break
    assert number > 5


def test_a_folder_that_another_process_fills_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look into the folder and the lock somebody else makes a table there."""
    from flowhash.table.storage import table_folder as folder

    path = tmp_path / "table"
    real = folder.take_lock

    def late(where: Path):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(folder, "take_lock", real)
        make(path)
        return real(where)

    monkeypatch.setattr(folder, "take_lock", late)
    with pytest.raises(StorageError, match="not empty"):
        HashTable.create(path, buckets=4, dim=2)
    with HashTable.open(path) as table:
        assert len(table) == 18


def test_a_table_made_anew_is_not_a_newer_state(tmp_path: Path) -> None:
    make(tmp_path / "table")
    with HashTable.open(tmp_path / "table") as reader:
        shutil.rmtree(tmp_path / "table")
        make(tmp_path / "table")
        with pytest.raises(StorageError, match="another table by now"):
            reader.refresh()
        assert len(reader) == 18  # what it has open stays whole


def test_an_older_manifest_costs_no_file(tmp_path: Path) -> None:
    path = tmp_path / "table"
    make(path)
    older = (path / "manifest.json").read_bytes()
    with HashTable.open(path, "r+") as table:
        table.compact()
    newer = (path / "manifest.json").read_bytes()
    files = sorted(path.glob("segment-*"))
    (path / "manifest.json").write_bytes(older)
    with pytest.raises(StorageError, match="missing"):
        HashTable.open(path, "r+")
    assert sorted(path.glob("segment-*")) == files
    (path / "manifest.json").write_bytes(newer)
    with HashTable.open(path) as table:
        assert len(table) == 18
