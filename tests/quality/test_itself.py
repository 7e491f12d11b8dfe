"""Pr@K, SUF and NMI against brute force over all pairs, and against scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.metrics import normalized_mutual_info_score

from flowhash.errors import InputError
from flowhash.quality import bucket_nmi, search_quality


def order_of(row: Any) -> list[int]:
    """Buckets, the largest activation first; of equal ones the lowest first."""
    return sorted(range(len(row)), key=lambda bucket: (-row[bucket], bucket))


def brute_force(
    activations: Any, embeddings: Any, labels: Any, active: int, top: int
) -> tuple[float, float, list[int]]:
    """Pr@K and SUF by the paper's rules, item by item; and how many items each bucket has."""
    count, size = activations.shape
    codes = [set(order_of(row)[:active]) for row in activations]
    found = scanned = 0
    for query in range(count):
        order = order_of(activations[query])
        others = [item for item in range(count) if item != query]

        def inside(opened: int, order: Any = order, others: Any = others) -> list[int]:
            return [item for item in others if codes[item] & set(order[:opened])]

        scanned += len(inside(active))
        opened = active
        while len(inside(opened)) < top and opened < size:
            opened += 1
        gaps = {
            item: float(((embeddings[item] - embeddings[query]) ** 2).sum())
            for item in inside(opened)
        }
        nearest = sorted(gaps, key=lambda item: gaps[item])[:top]
        found += sum(labels[item] == labels[query] for item in nearest)
    suf = (count - 1) * count / scanned if scanned else math.inf
    loads = [sum(bucket in code for code in codes) for bucket in range(size)]
    return found / (count * top), suf, loads


@st.composite
def searches(draw: Any) -> tuple[Any, Any, Any, int]:
    count, size = draw(st.integers(2, 14)), draw(st.integers(1, 6))
    active = draw(st.integers(1, size))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    activations = rng.normal(size=(count, size)).astype(np.float32)
    if draw(st.booleans()):
        activations = np.round(activations)  # equal activations
    embeddings = rng.normal(size=(count, 3)).astype(np.float32)
    return activations, embeddings, rng.integers(0, draw(st.integers(1, 4)), count), active


@settings(max_examples=100)
@given(searches())
def test_equals_brute_force(search: tuple[Any, Any, Any, int]) -> None:
    activations, embeddings, labels, active = search
    tops = tuple(sorted({1, min(2, len(labels) - 1), min(4, len(labels) - 1)}))
    found = search_quality(activations, embeddings, labels, active, tops)
    assert set(found.precision) == set(tops)
    for top in tops:
        precision, suf, loads = brute_force(activations, embeddings, labels, active, top)
        assert found.precision[top] == pytest.approx(precision)
        if math.isfinite(suf):
            assert found.speed_up == pytest.approx(suf)
        assert found.loads.tolist() == loads
    if active == 1:
        buckets = [order_of(row)[0] for row in activations]
        assert found.nmi == pytest.approx(
            normalized_mutual_info_score(labels, buckets, average_method="arithmetic"), abs=1e-9
        )
    else:
        assert found.nmi is None


def test_further_buckets_are_opened_until_there_are_enough() -> None:
    # Item 0 is alone in bucket 0; its next best bucket is 2, where an item of its class is, though
    # the item of bucket 1 is nearer.
    activations = np.array([[3, 1, 2], [0, 3, 0], [0, 0, 3], [0, 0, 3]], np.float32)
    embeddings = np.array([[0.0], [0.1], [5.0], [6.0]], np.float32)
    labels = np.array([0, 1, 0, 0])
    found = search_quality(activations, embeddings, labels, 1, (1, 3))
    # Item 1 is alone as well and goes on to bucket 0, item 0: another class.
    assert found.precision[1] == pytest.approx(3 / 4)
    # Of three others: items 0, 2, 3 find two of theirs, item 1 none; and K divides always.
    assert found.precision[3] == pytest.approx((2 + 0 + 2 + 2) / 12)
    # Scanned besides oneself: 0, 0, 1, 1 of three others.
    assert found.speed_up == pytest.approx(3 / (2 / 4))


def test_twins_do_not_push_the_query_out() -> None:
    """Five equal items: whichever the table returns first, each has four others of its class."""
    activations = np.ones((5, 2), np.float32)
    embeddings = np.zeros((5, 3), np.float32)
    found = search_quality(activations, embeddings, np.zeros(5, np.int64), 1, (1, 2, 4))
    assert found.precision == {1: 1.0, 2: 1.0, 4: 1.0}
    assert found.speed_up == pytest.approx(1.0)


def test_all_alone_is_finite() -> None:
    found = search_quality(
        np.eye(4, dtype=np.float32), np.eye(4, dtype=np.float32), np.arange(4), 1
    )
    assert math.isfinite(found.speed_up)
    assert found.speed_up > 3


def test_many_queries_are_searched_in_blocks(monkeypatch: Any) -> None:
    rng = np.random.default_rng(0)
    activations = rng.normal(size=(23, 4)).astype(np.float32)
    embeddings = rng.normal(size=(23, 3)).astype(np.float32)
    labels = rng.integers(0, 3, 23)
    once = search_quality(activations, embeddings, labels, 2, (1, 5))
    monkeypatch.setattr("flowhash.quality.retrieval_metrics.QUERIES_AT_ONCE", 5)
    blocks = search_quality(activations, embeddings, labels, 2, (1, 5))
    assert blocks.precision == once.precision
    assert blocks.speed_up == once.speed_up


@pytest.mark.parametrize(("count", "top"), [(1, 1), (3, 3)])
def test_refuses_more_than_there_are(count: int, top: int) -> None:
    rows = np.ones((count, 2), np.float32)
    with pytest.raises(InputError, match=f"{count} items and Pr@{top} is asked for"):
        search_quality(rows, rows, np.zeros(count, np.int64), 1, (top,))


@settings(max_examples=200)
@given(
    st.integers(1, 30), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32 - 1)
)  # fmt: skip
def test_nmi_equals_scikit_learns(count: int, buckets: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = rng.permutation(1000)  # numbers with gaps, in any order
    groups = names[rng.integers(0, buckets, count)].astype(np.int32)
    labels = names[rng.integers(0, classes, count)]
    expected = normalized_mutual_info_score(labels, groups, average_method="arithmetic")
    assert bucket_nmi(groups, labels) == pytest.approx(expected, abs=1e-9)


def test_nmi_of_equal_and_unrelated_groups() -> None:
    labels = np.repeat(np.arange(4), 4)
    assert bucket_nmi((labels * 3).astype(np.int32), labels) == pytest.approx(1.0)
    assert bucket_nmi(np.tile(np.arange(4, dtype=np.int32), 4), labels) == pytest.approx(0.0)
    assert bucket_nmi(np.zeros(16, np.int32), labels) == pytest.approx(0.0)
