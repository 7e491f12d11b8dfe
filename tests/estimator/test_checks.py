"""scikit-learn's own checks of an estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from flowhash.estimator import EXPECTED_FAILED_CHECKS, FlowHasher
from tests.estimator.clouds import quick


def expected(estimator: FlowHasher) -> dict[str, str]:
    return EXPECTED_FAILED_CHECKS


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [quick(), quick(active=2, rank="codes"), quick(metric="cosine", output="distance")],
    expected_failed_checks=expected,
)
@pytest.mark.filterwarnings("ignore")  # they give odd shapes of y on purpose
def test_passes_the_checks_of_scikit_learn(estimator: FlowHasher, check: Any) -> None:
    check(estimator)


def test_every_check_that_fails_is_on_the_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "estimator.md").read_text("utf-8")
    assert ("it is empty" in page) == (not EXPECTED_FAILED_CHECKS)
    for name, reason in EXPECTED_FAILED_CHECKS.items():
        assert name in page
        assert reason in page
