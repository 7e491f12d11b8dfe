"""``measure`` against the rules written out by hand, and its blocks against one another."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from flowhash.codes import topk_codes
from flowhash.errors import InputError
from flowhash.quality import LabelledTable, Measured, Queries, exact_answers, measure
from tests.quality.make_cases import PATH, TOPS
from tests.quality.rules import by_hand, each_by_hand

CASES = json.loads(PATH.read_text())


def arrays(items: list[dict[str, Any]]) -> tuple[Any, Any, Any]:
    return (
        np.array([item["activations"] for item in items], np.float32),
        np.array([item["embedding"] for item in items], np.float32),
        np.array([item["label"] for item in items], np.int64),
    )


def filled(case: dict[str, Any], blocks: int = 1) -> LabelledTable:
    activations, embeddings, labels = arrays(case["items"])
    index = LabelledTable(activations.shape[1], embeddings.shape[1], case["active"], 4)
    codes = topk_codes(activations, case["active"])
    for part in np.array_split(np.arange(len(labels)), blocks):
        index.add(codes[part], embeddings[part], labels[part])
    return index


def asked(case: dict[str, Any]) -> Queries:
    own = np.arange(len(case["items"])) if case["itself"] else None
    return Queries(*arrays(case["queries"]), own)


def measured(case: dict[str, Any], tops: tuple[int, ...]) -> Measured:
    index, queries = filled(case), asked(case)
    exact = exact_answers(index, [queries], max(tops))
    return measure(index, [queries], tops, probe=case.get("probe"), exact=exact, average=True)


def values(found: Measured, top: int) -> dict[str, float]:
    assert found.recall is not None
    return {
        "precision": found.precision[top],
        "speed_up": found.speed_up,
        "speed_up_at": found.speed_ups[top],
        "recall": found.recall[top],
        "average": found.average_precision or 0.0,
    }


def test_there_are_twenty_cases_and_they_follow_the_rules() -> None:
    assert len(CASES) == 20
    for case in CASES:
        for top in TOPS:
            answers = {name: str(value) for name, value in by_hand(case, top).items()}
            assert answers == case["answers"][str(top)]


@pytest.mark.parametrize("number", range(20))
def test_equals_the_rules_written_out(number: int) -> None:
    case = CASES[number]
    found = measured(case, TOPS)
    for top in TOPS:
        for name, value in values(found, top).items():
            expected = float(Fraction(case["answers"][str(top)][name]))
            assert value == pytest.approx(expected, abs=1e-12), (name, top)


def test_the_first_case_by_hand() -> None:
    """One that a reader can follow: three items in two buckets, two queries from outside."""
    items = [
        {"activations": [1, 0], "embedding": [0, 0], "label": 0},
        {"activations": [1, 0], "embedding": [3, 0], "label": 1},
        {"activations": [0, 1], "embedding": [1, 0], "label": 1},
    ]
    queries = [
        # Opens bucket 0: items 0 and 1. Item 2 would be nearer than item 1, but is not there.
        {"activations": [5, 2], "embedding": [1, 0], "label": 1},
        # Opens bucket 1: item 2 only; for K = 2 it goes on to bucket 0 and has all three.
        {"activations": [2, 5], "embedding": [0, 0], "label": 0},
    ]
    case = {"items": items, "queries": queries, "itself": False, "active": 1}
    found = measured(case, (1, 2))
    assert found.precision == {1: 0.0, 2: pytest.approx((1 + 1) / 4)}
    assert found.scanned == pytest.approx((2 + 1) / 2)
    assert found.speed_up == pytest.approx(3 / 1.5)
    assert found.speed_ups == {1: pytest.approx(3 / 1.5), 2: pytest.approx(3 / 2.5)}
    # Nearest of all: item 2 for the first query, item 0 for the second; neither is found at K = 1.
    assert found.recall == {1: 0.0, 2: pytest.approx((1 + 2) / 4)}
    # R = 2 for label 1: ranked 0, 1: right at place 2, so (1/2)/2. R = 1 for label 0: not found.
    assert found.average_precision == pytest.approx((0.25 + 0) / 2)


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    buckets = draw(st.integers(1, 6))

    def some(count: int) -> list[dict[str, Any]]:
        return [
            {
                "activations": rng.integers(-4, 5, buckets).tolist(),
                "embedding": rng.integers(-5, 6, 3).tolist(),
                "label": int(rng.integers(0, 4)),
            }
            for _ in range(count)
        ]

    itself = draw(st.booleans())
    items = some(draw(st.integers(5, 14)))
    active = draw(st.integers(1, buckets))
    return {
        "items": items,
        "queries": items if itself else some(draw(st.integers(1, 6))),
        "itself": itself,
        "active": active,
        "probe": draw(st.integers(active, buckets)),
    }


@settings(max_examples=150)
@given(cases())
def test_equals_brute_force(case: dict[str, Any]) -> None:
    found = measured(case, (1, 3))
    for top in (1, 3):
        expected = by_hand(case, top)
        for name, value in values(found, top).items():
            assert value == pytest.approx(float(expected[name]), abs=1e-12), (name, top)
        each = each_by_hand(case, top)
        assert found.right[top].tolist() == [right for right, _ in each]
        assert found.counts.tolist() == [scanned for _, scanned in each]


@settings(max_examples=30)
@given(cases(), st.integers(1, 4), st.integers(1, 3))
def test_blocks_change_nothing(case: dict[str, Any], blocks: int, every: int) -> None:
    queries = asked(case)
    whole, parted = filled(case), filled(case, blocks)
    assert whole.counts.tolist() == parted.counts.tolist()
    assert whole.labels.tolist() == parted.labels.tolist()
    pieces = [queries.rows(slice(start, start + 2)) for start in range(0, len(queries), 2)]
    once = exact_answers(whole, [queries], 3, every)
    again = exact_answers(parted, pieces, 3, every)
    assert once.ids.tolist() == again.ids.tolist()
    assert len(once.ids) == -(-len(queries) // every)
    options: dict[str, Any] = {"probe": case["probe"], "average": True}
    first = measure(whole, [queries], (1, 3), exact=once, **options)
    second = measure(parted, pieces, (1, 3), exact=again, **options)
    assert first.average_precision == pytest.approx(second.average_precision)
    assert replace(first, average_precision=None) == replace(second, average_precision=None)
    assert first.counts.tolist() == second.counts.tolist()
    for top in (1, 3):
        assert first.right[top].tolist() == second.right[top].tolist()


def test_what_is_kept_of_each_query_is_small() -> None:
    found = measured(CASES[0], (1, 3))
    assert found.right[3].itemsize == found.counts.itemsize == 1
    assert found.right[3].sum() / (3 * found.queries) == pytest.approx(found.precision[3])


def test_mean_average_precision_is_the_librarys() -> None:
    """mAP@R of exhaustive search is that of pytorch-metric-learning."""
    calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    import torch

    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(60, 4)).astype(np.float32)
    labels = rng.integers(0, 5, 60)
    index = LabelledTable(1, 4, 1, 5)
    index.add(np.zeros((60, 1), np.int32), embeddings, labels)
    nothing = np.zeros((60, 1), np.float32)
    found = measure(
        index, [Queries(nothing, embeddings, labels, np.arange(60))], (1,), average=True
    )
    theirs = calculator.AccuracyCalculator(
        include=("mean_average_precision_at_r", "precision_at_1"), k="max_bin_count",
        device=torch.device("cpu"),
    ).get_accuracy(torch.from_numpy(embeddings), torch.from_numpy(labels))  # fmt: skip
    assert found.average_precision == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-6)
    assert found.precision[1] == pytest.approx(theirs["precision_at_1"], abs=1e-6)


def test_a_class_that_is_not_there_has_no_average_precision() -> None:
    index = LabelledTable(2, 1, 1, 3)
    index.add(
        np.array([[0], [0]], np.int32), np.array([[0.0], [1.0]], np.float32), np.array([0, 0])
    )
    query = Queries(
        np.array([[1.0, 0.0], [1.0, 0.0]], np.float32), np.zeros((2, 1), np.float32),
        np.array([2, 0]),
    )  # fmt: skip
    assert measure(index, [query], (1,), average=True).average_precision == pytest.approx(1.0)


def test_refuses_what_makes_no_sense() -> None:
    index = LabelledTable(2, 1, 1, 2)
    vectors = np.array([[0.0], [1.0]], np.float32)
    index.add(np.array([[0], [1]], np.int32), vectors, np.array([0, 1]))
    activations = np.array([[0.0, 1.0], [0.0, 1.0]], np.float32)
    with pytest.raises(InputError, match="query 0 is said to be item 0"):
        measure(index, [Queries(activations, vectors, np.array([0, 1]), np.arange(2))], (1,))
    with pytest.raises(InputError, match="2 items and Pr@3 is asked for"):
        measure(index, [Queries(activations, vectors, np.array([0, 1]))], (3,))
    plain = Queries(activations, vectors, np.array([0, 1]))
    with pytest.raises(InputError, match="probe is 0; expected 1 to 2"):
        measure(index, [plain], (1,), probe=0)
    with pytest.raises(InputError, match=r"tops is \(\)"):
        measure(index, [plain], ())
    with pytest.raises(InputError, match="labels of queries go from 0 to 7"):
        measure(index, [Queries(activations, vectors, np.array([0, 7]))], (1,))
    owned = Queries(activations[:1], vectors[:1], np.array([0]), np.array([1]))
    with pytest.raises(InputError, match="some blocks of queries have own"):
        measure(index, [plain, owned], (1,))
    with pytest.raises(InputError, match="exact has 1 answers of 1 items"):
        measure(index, [plain], (1,), exact=exact_answers(index, [plain.rows(slice(0, 1))], 1))
    with pytest.raises(InputError, match="no queries"):
        measure(index, [], (1,))
    with pytest.raises(InputError, match="2 activations, 1 embeddings"):
        Queries(activations, vectors[:1], np.array([0, 1]))
    with pytest.raises(InputError, match="labels go from 0 to 2"):
        index.add(np.array([[0], [1]], np.int32), vectors, np.array([0, 2]))
