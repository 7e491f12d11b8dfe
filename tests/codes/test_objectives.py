"""The paper's objectives against their formulas written out, and the bound between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from flowhash.codes import (
    assign_codes,
    class_means,
    item_objective,
    objective,
    upper_bound_gap,
)
from tests.codes import oracles


@st.composite
def batches(draw: Any) -> tuple[Any, Any, int, Any]:
    """Items of a few classes of one size, and an item penalty."""
    classes, each = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    size = draw(st.integers(1, 3))
    active = draw(st.integers(1, size))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = rng.permutation(np.repeat(np.arange(classes), each))
    penalty = draw(st.sampled_from([0.0, 0.1, 1.0])) * rng.random(size)
    return rng.normal(size=(classes * each, size)), labels, active, penalty


@settings(max_examples=60)
@given(batches())
def test_equal_their_formulas(batch: tuple[Any, Any, int, Any]) -> None:
    items, labels, active, penalty = batch
    rng = np.random.default_rng(len(items))
    codes = [tuple(sorted(rng.choice(items.shape[1], active, False))) for _ in items]
    assert objective(codes, items, penalty) == pytest.approx(
        oracles.class_cost(codes, items, penalty), abs=1e-12
    )
    assert item_objective(codes, items, labels, penalty) == pytest.approx(
        oracles.item_cost(codes, items, labels, penalty), abs=1e-12
    )
    assert upper_bound_gap(items, labels, active) == pytest.approx(
        oracles.largest_gap(items, labels, active), abs=1e-12
    )


@settings(max_examples=60)
@given(batches())
def test_the_bound_holds(batch: tuple[Any, Any, int, Any]) -> None:
    """Eq. 4: min g <= m · min ĝ + M for classes of m items; λ of a class pair is m · λ of items.

    For one or two items a class, m · min ĝ is above min g by at most M.
    """
    items, labels, active, penalty = batch
    means, classes = class_means(items, labels)
    each = len(items) // len(classes)
    found = assign_codes(means, active, each * penalty)
    gap = upper_bound_gap(items, labels, active)
    least = min(
        oracles.item_cost(codes, items, labels, penalty)
        for codes in oracles.all_codes(*items.shape, active)
    )
    assert gap >= -1e-12
    assert each * found.objective + gap >= least - 1e-9
    shared = item_objective(found.codes[labels], items, labels, penalty)
    assert shared == pytest.approx(each * found.objective, abs=1e-9)
    assert each <= 2
    assert -1e-9 <= each * found.objective - least <= gap + 1e-9


@pytest.mark.parametrize(("each", "least", "best"), [(2, -2.0, -1.0), (3, -3.0, -1.0)])
def test_the_minima_can_differ_by_more_than_the_gap(each: int, least: float, best: float) -> None:
    """Against the paper's sentence after Eq. 4: min (m · ĝ + M) can be more than M above min g.

    Without the constant M two items differ by just M, three by more. docs/results/paper-claims.md
    has these cases.
    """
    items, labels = np.eye(each), np.zeros(each, int)  # each item has a bucket of its own
    gap = upper_bound_gap(items, labels, 1)
    assert gap == pytest.approx(1.0)
    costs = [
        oracles.item_cost(codes, items, labels, np.zeros(each))
        for codes in oracles.all_codes(each, each, 1)
    ]
    assert min(costs) == pytest.approx(least)
    found = each * assign_codes(class_means(items, labels)[0], 1, 0.0).objective
    assert found == pytest.approx(best)
    assert found + gap - least > gap + 0.5
    assert (found - least > gap + 0.5) == (each > 2)


def test_class_means_of_uneven_and_named_classes() -> None:
    items = np.array([[1.0, 2.0], [3.0, 4.0], [10.0, 20.0]])
    means, classes = class_means(items, ["cat", "cat", "ant"])
    assert classes.tolist() == ["ant", "cat"]
    np.testing.assert_allclose(means, [[10.0, 20.0], [2.0, 3.0]])


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        ([[0, 0]], "a bucket twice"),
        ([[0, 5]], "expected 0 to 2"),
        ([[-1, 1]], "expected 0 to 2"),
        ([[0], [1]], "2 rows; expected 1"),
        ([[0.5, 1.0]], "whole numbers"),
        ([[0, 1, 2, 2]], "active is 4"),
    ],
)
def test_bad_codes_say_what_to_do(codes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        objective(codes, np.zeros((1, 3)), 0.1)


def test_labels_must_match_the_items() -> None:
    with pytest.raises(ValueError, match=r"expected \(3,\), one label an item"):
        class_means(np.zeros((3, 2)), [0, 1])


@pytest.mark.parametrize(
    ("labels", "words"),
    [([0, None, 1], "no None"), ([0.0, np.nan, 1.0], "labels contain NaN")],
)
def test_missing_labels_are_refused(labels: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        class_means(np.zeros((3, 2)), labels)
