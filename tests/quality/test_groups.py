"""Buckets as groups, against scikit-learn and against counting all codes."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from flowhash.errors import InputError
from flowhash.quality import (
    adjusted_information,
    expected_speed_up,
    normalised_information,
    purity,
    scanned_variance,
)


@st.composite
def groupings(draw: Any) -> tuple[Any, Any, Any]:
    count = draw(st.integers(1, 60))
    classes, buckets = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels, places = rng.integers(0, classes, count), rng.integers(0, buckets, count)
    if draw(st.booleans()):
        places = labels % buckets  # related, not by chance
    counts = np.zeros((classes, buckets), np.int64)
    np.add.at(counts, (labels, places), 1)
    return labels, places, counts


@settings(max_examples=200)
@given(groupings())
def test_information_equals_scikit_learns(grouping: tuple[Any, Any, Any]) -> None:
    labels, places, counts = grouping
    assert normalised_information(counts) == pytest.approx(
        normalized_mutual_info_score(labels, places), abs=1e-9
    )
    assert adjusted_information(counts) == pytest.approx(
        adjusted_mutual_info_score(labels, places), abs=1e-9
    )
    largest = [max(np.bincount(labels[places == place])) for place in np.unique(places)]
    assert purity(counts) == pytest.approx(sum(largest) / len(labels))


@pytest.mark.parametrize(("buckets", "active"), [(4, 1), (5, 2), (6, 3), (4, 3), (3, 3)])
def test_expected_speed_up_by_counting_codes(buckets: int, active: int) -> None:
    """Of all pairs of codes, so many share a bucket."""
    codes = [set(code) for code in combinations(range(buckets), active)]
    shared = np.mean([bool(one & other) for one in codes for other in codes])
    assert expected_speed_up(buckets, active) == pytest.approx(1 / shared)
    items = 11
    # A sum of items - 1 independent coins.
    assert scanned_variance(items, buckets, active) == pytest.approx(
        (items - 1) * shared * (1 - shared)
    )


def test_expected_speed_up_of_the_paper() -> None:
    assert expected_speed_up(256, 2) == pytest.approx(64.13, abs=0.005)
    with pytest.raises(InputError, match="active is 3; expected 1 to 2"):
        expected_speed_up(2, 3)


@pytest.mark.parametrize(("items", "classes", "buckets"), [(30_000, 40, 60), (5_000, 2, 3)])
def test_information_of_many_items_equals_scikit_learns(
    items: int, classes: int, buckets: int
) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, items)
    places = np.where(rng.random(items) < 0.3, labels % buckets, rng.integers(0, buckets, items))
    counts = np.zeros((classes, buckets), np.int64)
    np.add.at(counts, (labels, places), 1)
    assert adjusted_information(counts) == pytest.approx(
        adjusted_mutual_info_score(labels, places), abs=1e-9
    )
