"""The examples of the estimator's page run, and come to what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flowhash.estimator import EXPECTED_FAILED_CHECKS

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "estimator.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(compile(block, "docs/estimator.md", "exec"), names)
    assert names["precision"] > 0.9
    assert names["speed_up"] > 8
    assert names["accuracy"] > 0.9
    assert names["graph"].shape == (1347, 1347)
    assert names["again"].n_samples_fit_ == 1797
    assert (names["search"].cv_results_["mean_test_scanned"] < 0).all()


def test_every_check_that_fails_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert ("it is empty" in page) == (not EXPECTED_FAILED_CHECKS)
    for name, reason in EXPECTED_FAILED_CHECKS.items():
        assert name in page
        assert reason in page
