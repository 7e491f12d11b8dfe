"""The page of benchmarks/engines/run.py against the stored figures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.engines import report
from benchmarks.measurement import RESULTS


@pytest.fixture
def known() -> Any:
    return json.loads((RESULTS / "engines.json").read_text())


def test_the_page_says_what_was_measured(known: Any) -> None:
    """It cannot drift from docs/results/engines.json."""
    assert report.page(known) == (RESULTS / "engines.md").read_text()


def test_a_bar_that_is_missed_says_so(known: Any) -> None:
    lines = known["postgres"]["lines"]
    for line in lines:
        line |= {"ratio": 3.0, "exact": line["queries"]}
    known["copy"]["ratio"], known["bulk"]["ratio"], known["bulk"]["exact"] = 0.5, 0.6, True
    assert "missed" not in report.page(known)
    lines[0]["ratio"] = 2.999
    assert report.page(known).count("**missed**") == 1
    lines[1]["exact"] -= 1
    assert report.page(known).count("**missed**") == 2
    known["copy"]["ratio"] = 0.49
    assert report.page(known).count("**missed**") == 3
    known["bulk"]["exact"] = False
    found = report.page(known)
    assert found.count("**missed**") == 4
    assert "**some answers differ**" in found
