"""The page of benchmarks/search/run.py: what it holds for, and that the stored one says so too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.measurement import ROOT
from benchmarks.search import report as search_report

ROW = {
    "name": "clusters", "k": 1, "mapped": {"one": 1.2, "batch": 1.0},
    "queries": 100, "suf": 50.0, "recall": 1.0, "flat": 30.0, "equal": 1.0,
    "batch_itself": {"theirs": 0.4, "ours": 0.2, "ratio": 2.0},
    "batch_big": {"theirs": 0.4, "ours": 0.2, "ratio": 2.0},
    "batch": {"theirs": 0.4, "ours": 0.2, "ratio": 2.0},
    "one": {"theirs": 9e-5, "ours": 1e-4, "ratio": 0.9},
    "add": {"theirs": 0.1, "ours": 0.1, "ratio": 1.0}, "memory": 1.1,
    "disk": {"add": 1.0, "size": 1.1, "import": 600.0, "open": 5.0, "first": 25.0},
}  # fmt: skip


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(search_report, "RESULTS", tmp_path)
    monkeypatch.setattr(search_report, "README", tmp_path / "README.md")
    return search_report


def test_pages_name_the_processors_and_keep_what_each_gave(report: Any, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("a\n<!-- search gains: x -->\n<!-- /search gains -->\nb\n")
    report.write_report([ROW], 2, False, True)
    report.write_report([ROW | {"name": "others"}], 2, True, True)
    model = report.machine().partition(";")[0]
    for name in ("search.md", "README.md"):
        text = (tmp_path / name).read_text()
        assert model in text
        assert report.PLAYED in text
        assert "0.90×" in text
        assert "| clusters |" in text
        assert "| others |" in text
        assert (f"## {report.PLAYED}\n" if name == "search.md" else f"| {report.PLAYED} |") in text


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [({}, "**missed**"), ({"one": {**ROW["one"], "ratio": 1.61}}, "met")],
)
def test_a_bar_is_judged_by_the_faster_call(changed: Any, verdict: str, report: Any) -> None:
    lines = report._bars([ROW | changed]).splitlines()
    assert next(line for line in lines if "one query" in line).endswith(f"{verdict}.")
    slower = ROW | {"one": {**ROW["one"], "ratio": 1.61}, "one_itself": ROW["one"]}
    lines = report._bars([slower]).splitlines()
    assert next(line for line in lines if "one query" in line).endswith("**missed**.")
    assert next(line for line in lines if "mapped" in line).endswith(
        "1.20, at most 1.15 was asked: **missed**."
    )


@pytest.mark.parametrize(
    ("name", "words"), [("README.md", "Measured on "), ("docs/results/search.md", "Machine: ")]
)
def test_the_stored_pages_do_so_too(name: str, words: str) -> None:
    assert f"\n{words}" in (ROOT / name).read_text()
