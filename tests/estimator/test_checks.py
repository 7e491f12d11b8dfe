"""scikit-learn's own checks of an estimator."""

from __future__ import annotations

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
