"""Stored tables open for ever, and the page about their format tells the truth."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from flowhash import HashTable
from flowhash.table.integrity import folder_faults

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "tests" / "format"
NAMES = sorted(path.parent.name for path in STORED.glob("*/expected.json"))


def maker() -> ModuleType:
    """The script that wrote the tables; it also knows the questions."""
    spec = importlib.util.spec_from_file_location("make_v1", STORED / "make_v1.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_stored_tables() -> None:
    assert NAMES == ["v1-int64", "v1-strings", "v2-notes", "v3-short", "v4-quantised"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_stored_table_answers_as_ever(tmp_path: Path, name: str, mode: str) -> None:
    shutil.copytree(STORED / name / "table", tmp_path / "table")
    expected = json.loads((STORED / name / "expected.json").read_text())
    with HashTable.open(tmp_path / "table", mode, encoder="a fingerprint") as table:
        notes = expected.pop("notes", {})
        assert maker().answers(table) == expected
        assert table.notes() == notes
        assert table.check() == []
    assert folder_faults(tmp_path / "table") == []


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_table_can_be_changed(tmp_path: Path, name: str) -> None:
    shutil.copytree(STORED / name / "table", tmp_path / "table")
    expected = json.loads((STORED / name / "expected.json").read_text())
    with HashTable.open(tmp_path / "table", "r+") as table:
        gone = next(iter(table))
        del table[gone]
        table.compact()
        assert table.notes() == expected.get("notes", {})
        assert {str(one) for one in table} == set(expected["items"]) - {str(gone)}
        assert table.check() == []


@pytest.mark.parametrize("name", NAMES)
def test_the_example_on_the_format_page_reads_it(name: str) -> None:
    page = (ROOT / "docs" / "format.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    block = block.replace('Path("pictures.table")', f"Path({str(STORED / name / 'table')!r})")
    names: dict[str, object] = {}
    exec(compile(block, "docs/format.md", "exec"), names)
    expected = json.loads((STORED / name / "expected.json").read_text())["items"]
    items = {str(key): value for key, value in names["items"].items()}  # type: ignore[attr-defined]
    assert items.keys() == expected.keys()
    for key, (_, embedding, _) in expected.items():
        assert np.array_equal(items[key], embedding)


def test_the_manifest_has_the_fields_of_the_page() -> None:
    page = (ROOT / "docs" / "format.md").read_text()
    for stored in ("v2-notes", "v3-short", "v4-quantised"):
        manifest = json.loads((STORED / stored / "table" / "manifest.json").read_text())
        segment = [entry for entry in manifest["segments"] if entry["deleted"]][-1]
        assert ("entries" in segment) == (stored != "v2-notes") == (manifest["version"] >= 3)
        assert ("quantised" in segment) == (manifest["version"] == 4)
        for name in (*manifest, *manifest["settings"], *segment, *segment["deleted"]):
            assert f"`{name}`" in page
