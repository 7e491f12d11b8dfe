"""What benchmarks/paper/quotes.py puts into the README and docs/how-it-works.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.measurement import RESULTS, ROOT, put
from benchmarks.paper import quotes
from flowhash.evaluate.output.result_grid import SPACE
from tests.evaluate.test_tables import row, with_intervals


def made() -> dict[str, Any]:
    rows = [row("exhaustive", k=None), row("vq", pr1=48.0), row("vq-train"), row("classifier")]
    rows += [row("classifier", k=2, suf=2.0), row("start", suf=8.0), row("start", k=2, suf=7.0)]
    rows += [row("flowhash", pr1=52.0), row("flowhash", k=2, suf=9.0, pr1=51.0)]
    rows += [row("flowhash", "train", pr1=99.0)]
    return {loss: with_intervals(rows) for loss in quotes.LOSSES}


def test_the_pages_say_what_was_measured() -> None:
    """They cannot drift from docs/results/*.json."""
    read = {
        loss: quotes.read_rows(RESULTS / f"cifar100-{loss}-refined-classifier.json")
        for loss in quotes.LOSSES
    }
    assert quotes.results(read) in (ROOT / "README.md").read_text()
    starts = quotes.speed_ups(read["triplet"], 256)
    assert starts is not None
    assert starts in (ROOT / "docs/how-it-works.md").read_text()


def test_a_row_names_only_the_loss_that_it_saw() -> None:
    text = quotes.results(made())
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[0].startswith("| d | search | Pr@1 |")
    assert len(lines) == 2 + 2 * 6
    assert "| 256 | VQ, fitted on train | 50.00 |" in text
    assert "| 256 | start, zero steps (triplet) | 50.00 |" in text
    for line in lines[2:]:
        learned = "FlowHash" in line or "start" in line
        assert ("(triplet)" in line or "(npairs)" in line) == learned
    for words in ("cross-entropy", "frozen", "at that classifier", "masked product",
                  "mirror image", "100 classes in a batch", "One seed."):  # fmt: skip
        assert words in text


def test_bold_and_intervals() -> None:
    read = made()
    ours = "| 256 | FlowHash (triplet) | **52.00** | **40.00** | **30.00** | **10.00** | 60.00 |"
    assert f"{ours} +2.00 (−0.25{SPACE}to{SPACE}+0.50) |" in quotes.results(read)
    for one in read["triplet"]:
        if (one.method, one.table) == ("flowhash", "test"):
            one.leads["classifier"] = {name: [-0.1, 4.0] for name in one.leads["classifier"]}
    text = quotes.results(read)
    assert "| 256 | FlowHash (triplet) | 52.00 | 40.00 | 30.00 | 10.00 | 60.00 |" in text
    assert "interval above zero" in " ".join(text.split())
    bare = {loss: [row("exhaustive", k=None), row("flowhash")] for loss in quotes.LOSSES}
    assert "Nothing is bold" in quotes.results(bare)
    assert "95 %" not in quotes.results(bare)


def test_the_start_stands_beside_what_was_learned() -> None:
    text = quotes.speed_ups(made()["triplet"], 256)
    assert "| independent, even codes: SUF | 256.0 | 64.1 |" in text
    assert "| start, zero steps: SUF | 8.0 | 7.0 |" in text
    assert "| FlowHash: SUF | 10.0 | 9.0 |" in text
    assert "| classifier: SUF | 10.0 | 2.0 |" in text
    assert quotes.speed_ups([row("flowhash")], 256) is None


def test_a_page_without_its_mark_is_not_passed_over(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a <!-- x: written by somebody -->old<!-- /x --> b")
    put(page, "x", r"\1 new")
    assert page.read_text() == "a <!-- x: written by somebody -->\n\\1 new\n<!-- /x --> b"
    with pytest.raises(SystemExit, match="has no"):
        put(page, "y", "new")
