"""The paired bootstrap against loops, and against scipy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from flowhash.errors import InputError
from flowhash.quality import (
    paired_bootstrap as bootstrap,
    percentile_interval,
    resampled_sums,
)


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 16), min_size=3, max_size=3), min_size=1, max_size=9),
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
)
def test_sums_are_those_of_the_drawn_queries(
    rows: list[list[int]], resamples: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    expected = []
    for _ in range(resamples):
        drawn = rng.integers(0, len(rows), len(rows)).tolist()
        expected.append([sum(rows[query][column] for query in drawn) for column in range(3)])
    found = resampled_sums(np.array(rows, np.uint8), resamples, seed)
    assert found.tolist() == expected


def test_blocks_change_nothing(monkeypatch: Any) -> None:
    columns = np.random.default_rng(0).integers(0, 9, (40, 2))
    once = resampled_sums(columns, 30)
    monkeypatch.setattr(bootstrap, "AT_ONCE", 100)
    assert (resampled_sums(columns, 30) == once).all()


@pytest.mark.parametrize("together", [0.0, 0.9])
def test_the_interval_is_scipys(together: float) -> None:
    """Of the difference of two methods that answered the same 300 queries, alike or not."""
    rng = np.random.default_rng(3)
    one = rng.integers(0, 5, 300)
    same = rng.random(300) < together
    other = np.where(same, one, rng.integers(0, 5, 300))
    sums = resampled_sums(np.stack([one, other], axis=1), 20_000)
    low, high = percentile_interval((sums[:, 0] - sums[:, 1]) / 300)

    def difference(left: Any, right: Any, axis: int) -> Any:
        return left.mean(axis=axis) - right.mean(axis=axis)

    theirs = stats.bootstrap(
        (one, other), difference, paired=True, method="percentile", n_resamples=20_000,
        random_state=np.random.default_rng(4),
    ).confidence_interval  # fmt: skip
    width = high - low
    assert low == pytest.approx(theirs.low, abs=0.05 * width)
    assert high == pytest.approx(theirs.high, abs=0.05 * width)


def test_refuses_no_queries() -> None:
    with pytest.raises(InputError, match="there are 0 queries for 5 draws"):
        resampled_sums(np.zeros((0, 2), np.int64), 5)
