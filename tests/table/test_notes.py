"""Notes of a table: committed with the rows that they are about, kept by every change."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.errors import ChangedNotesError, DamagedFileError, InputError, StorageError
from flowhash.table import HashTable
from flowhash.table.arguments import LARGEST_NOTE, LARGEST_NOTES
from flowhash.table.integrity import folder_faults

SIZES: dict[str, Any] = {"buckets": 4, "dim": 2, "active": 1}


def rows(count: int) -> tuple[Any, Any]:
    return np.arange(count).reshape(-1, 1) % 4, np.ones((count, 2))


def manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    return found


def test_every_change_keeps_them(tmp_path: Path) -> None:
    path, other = tmp_path / "table", tmp_path / "other"
    with HashTable.create(other, **SIZES) as made:
        made.add(*rows(3), [100, 101, 0], notes={"its own": 1})
    with HashTable.create(path, **SIZES) as table, HashTable.open(path) as reader:
        table.add(*rows(5), notes={"done": 5})
        known = {"done": 5}
        for step in range(12):  # with merges in between
            table.add(*rows(2), notes={f"step {step}": step} if step % 3 == 0 else None)
            known.update({f"step {step}": step} if step % 3 == 0 else {})
            assert table.notes() == known
            assert manifest(path)["notes"] == known
        assert reader.notes() == {}
        assert reader.refresh()
        assert (reader.notes(), len(reader)) == (known, len(table))
        table.delete([1, 2])
        table.merge_segments()
        table.compact()
        assert table.notes() == known
        assert table.adopt([other]) == 3
        assert table.notes() == known
        assert table.adopt([other], notes={"adopted": "other"}) == 3
        known["adopted"] = "other"  # type: ignore[assignment]
    with HashTable.open(path, "r+") as table:
        assert table.notes() == known
        given = table.notes()
        given["done"] = 7  # a copy
        assert table.notes() == known
        with pytest.raises(LookupError):
            del table[1]
    assert folder_faults(path) == []


def test_without_notes_the_table_is_what_it_was(tmp_path: Path) -> None:
    """Version 1, as every FlowHash reads it; with them an older one says that it is too old."""
    path = tmp_path / "table"
    with HashTable.create(path, **SIZES) as table:
        table.add(*rows(3))
        before = manifest(path)
        assert before["version"] == 1
        assert "notes" not in before
        table.note("nothing", None)
        assert manifest(path) == before  # nothing was committed
        table.note("a", 1)
        assert manifest(path)["version"] == 2
        table.note("a", True)
        assert manifest(path)["notes"] == {"a": True}
        table.add(*rows(0), notes={"a": None})
        assert manifest(path).keys() == before.keys()
        assert manifest(path)["version"] == 1


def test_what_is_no_note(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(101):
        deep = [deep]
    with HashTable.create(tmp_path / "table", **SIZES) as table:
        table.note("a", 1)
        wrong: list[tuple[Any, Any, str]] = [
            ("b", float("nan"), "JSON"), ("b", object(), "JSON"), ("b", deep, "101 levels deep"),
            ("b", "x" * LARGEST_NOTE, "bytes of JSON"), (5, 1, "expected a string"),
            ("x" * 1001, 1, "expected a string of at most"),
        ]  # fmt: skip
        for name, value, words in wrong:
            with pytest.raises(InputError, match=words):
                table.note(name, value)
            with pytest.raises(InputError, match=words):
                table.add(*rows(2), notes={"a": 2, name: value})
        many = {f"note {number}": "x" * (LARGEST_NOTE - 2) for number in range(260)}
        assert sum(map(len, many.values())) > LARGEST_NOTES
        with pytest.raises(InputError, match="bytes of JSON together; expected at most"):
            table.add(*rows(2), notes=many)
        assert (len(table), table.notes()) == (0, {"a": 1})
        with pytest.raises(ChangedNotesError):
            table.add(*rows(2), expected_notes={"a": 2})
        table.add(*rows(2), expected_notes={"a": 1, "b": None})
    with HashTable.open(tmp_path / "table") as table:
        assert (len(table), table.notes()) == (2, {"a": 1})
        with pytest.raises(StorageError, match="searched only"):
            table.note("a", 2)


@pytest.mark.parametrize("what", ["add", "note", "adopt"])
def test_a_disk_that_fails_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Both are there or neither, whichever flush fails."""
    path, other = tmp_path / "table", tmp_path / "other"
    with HashTable.create(other, **SIZES) as made:
        made.add(*rows(3), [50, 51, 52])
    flush, ends = os.fsync, set()
    for fails in range(1, 20):
        shutil.rmtree(path, ignore_errors=True)
        with HashTable.create(path, **SIZES) as table:
            table.add(*rows(4), notes={"done": 4})
            left = [fails]

            def failing(handle: int, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] == 0:
                    raise OSError(errno.EIO, "a broken disk")
                flush(handle)

            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", failing)
                try:
                    if what == "add":
                        table.add(*rows(3), notes={"done": 7})
                    elif what == "note":
                        table.note("done", 7)
                    else:
                        table.adopt([other], notes={"done": 7})
                except StorageError:
                    done = 4
                else:
                    done = 7
            items = 4 if what == "note" else done
            assert (len(table), table.notes()) == (items, {"done": done})
        with HashTable.open(path) as again:
            assert (len(again), again.notes()) == (items, {"done": done})
        ends.add(done)
        if left[0] > 0:
            break
    assert ends == {4, 7}


def test_any_change_of_a_note_in_the_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "table"
    with HashTable.create(path, **SIZES) as table:
        table.add(*rows(3), notes={"done": 3, "list": [1, {"a": "b"}]})
    file = path / "manifest.json"
    text = file.read_text()
    body = json.loads(text)
    start = text.index('"notes"')
    for place in range(start, text.index("}", start), 3):
        file.write_text(f"{text[:place]}{chr(ord(text[place]) ^ 1)}{text[place + 1 :]}")
        with pytest.raises((DamagedFileError, StorageError), match="manifest"):
            HashTable.open(path)
    for notes in (5, None, [], {}):
        file.write_text(json.dumps({**body, "notes": notes}, indent=1, sort_keys=True) + "\n")
        with pytest.raises(DamagedFileError, match="manifest"):
            HashTable.open(path)
    file.write_text(text)
    assert HashTable.open(path).notes() == body["notes"]
