"""``flowhash table`` as a person runs it, in processes of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flowhash import HashTable
from tests.cli.commands import COMMAND, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table with two segments and a deleted item."""
    path = tmp_path / "items.table"
    with HashTable.create(path, buckets=4, dim=2, active=2, encoder="[/abc]") as table:
        table.add([[0, 1], [1, 2]], [[0, 0], [1, 1]])
        table.add([[2, 3], [0, 3]], [[2, 2], [3, 3]])
        table.delete([1])
    return path


def test_help_lists_the_commands() -> None:
    done = run(COMMAND, "table", "--help")
    assert done.returncode == 0
    for name in ("check", "stats", "compact"):
        assert name in done.stdout
        assert f"flowhash table {name}" in run(COMMAND, "table", name, "--help").stdout


def test_a_clean_table(folder: Path) -> None:
    done = run(COMMAND, "table", "check", str(folder))
    assert done.returncode == 0, done.stderr
    assert "clean (3 items in 2 segments" in done.stdout


def test_damage_is_named_and_counted(folder: Path) -> None:
    name = sorted(folder.glob("segment-*"))[0]
    data = bytearray(name.read_bytes())
    data[-600] ^= 1  # in the arrays, before the checksums
    name.write_bytes(data)
    done = run(COMMAND, "table", "check", str(folder))
    assert done.returncode == 1
    assert name.name in done.stdout
    assert "1 fault" in done.stdout
    assert "Traceback" not in done.stderr


def test_stats_for_people_and_for_scripts(folder: Path) -> None:
    done = run(COMMAND, "table", "stats", str(folder))
    assert done.returncode == 0, done.stderr
    assert "SUF, measured" in done.stdout
    assert "[/abc]" in done.stdout
    figures = json.loads(run(COMMAND, "table", "stats", "--json", str(folder)).stdout)
    assert figures["items"] == 3
    assert figures["deleted"] == 1
    assert figures["load_max"] == 2


def test_stats_of_an_empty_table_are_json_too(tmp_path: Path) -> None:
    HashTable.create(tmp_path / "empty", buckets=4, dim=2).close()
    done = run(COMMAND, "table", "stats", "--json", str(tmp_path / "empty"))
    assert json.loads(done.stdout)["suf"] is None
    assert run(COMMAND, "table", "stats", str(tmp_path / "empty")).returncode == 0
    assert run(COMMAND, "table", "check", str(tmp_path / "empty")).returncode == 0


def test_compact_keeps_every_item(folder: Path) -> None:
    done = run(COMMAND, "table", "compact", str(folder))
    assert done.returncode == 0, done.stderr
    assert "2 segments to 1 segment, 1 deleted row dropped" in done.stdout
    with HashTable.open(folder) as table:
        assert sorted(table) == [0, 2, 3]
        assert np.array_equal(table[3].embedding, [3, 3])


@pytest.mark.parametrize("name", ["check", "stats", "compact"])
def test_a_path_that_is_no_table_is_one_clear_line(tmp_path: Path, name: str) -> None:
    done = run(COMMAND, "table", name, str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert done.stderr.startswith("flowhash: ")
    assert len(done.stderr.splitlines()) == 1
    assert "nowhere" in done.stderr


def test_a_table_that_is_being_written_is_not_compacted(folder: Path) -> None:
    with HashTable.open(folder, "r+"):
        done = run(COMMAND, "table", "compact", str(folder))
    assert done.returncode == 2
    assert "one writer" in done.stderr
    assert "Traceback" not in done.stderr
