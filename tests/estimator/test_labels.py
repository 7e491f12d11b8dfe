"""Labels that are missing, several labels an item, and the labels of neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import sparse, stats
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from flowhash.errors import InputError
from flowhash.estimator import FlowHasher
from flowhash.estimator.flow_hasher import commonest
from tests.estimator.clouds import clouds, quick
from tests.estimator.test_files import same


def without_some(kind: str, labels: Any, known: Any) -> Any:
    """Labels of which only the ``known`` are there, in the forms that people have them in."""
    named = [f"c{label}" if "text" in kind else int(label) for label in labels]
    cells = [label if there else None for label, there in zip(named, known, strict=True)]
    if kind == "floats":
        return np.where(known, labels, np.nan)
    if kind == "text and NaN":
        return [float("nan") if cell is None else cell for cell in cells]
    if kind == "NA of text":
        pandas = pytest.importorskip("pandas")
        return pandas.Series(cells, dtype="string")
    if kind == "NA of objects":
        pandas = pytest.importorskip("pandas")
        return np.array([pandas.NA if cell is None else cell for cell in cells], object)
    if kind == "polars":
        return pytest.importorskip("polars").Series(cells)
    return cells


@pytest.mark.parametrize(
    "kind",
    ["numbers", "text", "floats", "text and NaN", "NA of text", "NA of objects", "polars"],
)
def test_items_without_a_label_are_found_but_not_learned_from(kind: str, tmp_path: Path) -> None:
    rows, labels = clouds()
    known = np.arange(120) % 3 > 0
    given_labels = without_some(kind, labels, known)
    hasher = quick().fit(rows, given_labels)
    name: Any = np.arange(4.0) if kind in ("floats", "polars") else np.arange(4)
    if "text" in kind:
        name = np.array([f"c{label}" for label in range(4)])
    assert hasher.classes_.tolist() == name.tolist()
    learned = quick().fit(rows[known], name[labels[known]])
    assert hasher.encoder_.fingerprint == learned.encoder_.fingerprint
    assert hasher.n_samples_fit_ == 120
    assert (hasher.kneighbors(rows, 1)[1][:, 0] == np.arange(120)).all()
    # The same items, put in later.
    learned.add(rows[~known])
    order = np.concatenate((np.flatnonzero(known), np.flatnonzero(~known)))
    assert hasher.score(rows, name[labels]) == learned.score(rows, name[labels])
    np.testing.assert_array_equal(hasher.predict(rows), learned.predict(rows))
    np.testing.assert_array_equal(hasher.kneighbors(rows)[0], learned.kneighbors(rows)[0])
    np.testing.assert_array_equal(hasher._numbers[order], learned._numbers)
    # Queries without a label do not count.
    assert hasher.score(rows, given_labels) == hasher.score(rows[known], name[labels[known]])
    hasher.save(tmp_path)
    again = FlowHasher.load(tmp_path)
    same(hasher, again, rows)
    np.testing.assert_array_equal(again.predict(rows), hasher.predict(rows))
    added = again.add(rows, given_labels)
    np.testing.assert_array_equal(again._numbers[added], hasher._numbers)


def test_neighbours_without_a_label_do_not_count_in_a_score() -> None:
    rows, labels = clouds(spread=1.0)
    known = np.arange(len(labels)) % 3 > 0
    hasher = quick(n_neighbors=5).fit(
        rows, [int(label) if there else None for label, there in zip(labels, known, strict=True)]
    )
    right = labelled = 0
    for query, near in enumerate(hasher.kneighbors(rows, return_distance=False).tolist()):
        right += sum(labels[item] == labels[query] for item in near if known[item])
        labelled += sum(known[item] for item in near)
    assert 0 < labelled < 5 * len(labels)  # or nothing is tested
    assert hasher.score(rows, labels) == pytest.approx(right / labelled)


def test_refuses_labels_of_which_none_is_known() -> None:
    rows, labels = clouds()
    hasher = quick().fit(rows, labels)
    with pytest.raises(InputError, match="no label that is known; expected two classes"):
        quick().fit(rows, [None] * 120)
    with pytest.raises(InputError, match="no label that is known"):
        hasher.score(rows, [None] * 120)
    assert len(hasher.add(rows, [None] * 120)) == 120
    with pytest.raises(InputError, match="item 2 has a label that fit did not see"):
        hasher.add(rows[:3], [None, 0, 17])
    with pytest.raises(InputError, match="one class only, 0"):
        quick().fit(rows, [None, 0] * 60)
    with pytest.raises(ValueError, match="Unknown label type"):
        quick().fit(rows, [None, 0, "a"] * 40)


@pytest.mark.parametrize(
    ("several", "said"),
    [
        (np.eye(4, dtype=int), r"y has shape \(120, 4\)"),
        (sparse.csr_matrix(np.eye(4)), r"y has shape \(120, 4\)"),
        (["a", ["b"], ["a", "b"], ["c"]], r"y\[2\] is \['a', 'b'\]"),
        (["a", {"b"}, {"c"}, "d"], r"y\[1\] is \{'b'\}"),
        ([("a", "b"), (), ("c",), ("d",)], r"y\[0\] is \('a', 'b'\)"),
    ],
)
def test_several_labels_an_item_are_refused_with_a_way(several: Any, said: str) -> None:
    rows, _ = clouds()
    whole = several * 30 if isinstance(several, list) else several[np.arange(120) % 4]
    for labels in (whole, np.array(whole, object) if said[2] == "\\" else whole):
        with pytest.raises(InputError, match=said + r".*several labels an item.*argmax.*sorted"):
            quick().fit(rows, labels)


@pytest.mark.parametrize("text", [False, True])
def test_predicts_as_the_classifier_by_neighbours_of_scikit_learn(text: bool) -> None:
    rows, labels = clouds(200, spread=2.5)
    named = np.array(["d", "a", "c", "b"])[labels] if text else labels
    for count in (1, 2, 4, 7):
        # With every bucket open the neighbours are the same; ties go to the first class.
        hasher = quick(active=8, n_neighbors=count).fit(rows[:150], named[:150])
        theirs = KNeighborsClassifier(count).fit(rows[:150], named[:150])
        found = hasher.predict(rows[150:])
        np.testing.assert_array_equal(found, theirs.predict(rows[150:]))
        assert found.dtype == hasher.classes_.dtype
    assert 0.3 < (found == named[150:]).mean() < 1
    # Items without a label do not vote, even where they are the nearest.
    hasher.add(rows[150:])
    np.testing.assert_array_equal(hasher.predict(rows[150:]), theirs.predict(rows[150:]))
    few = quick(n_neighbors=9).fit(rows[:12], [*named[:6], *([None] * 6)])
    most = stats.mode(few._numbers[:6]).mode
    assert set(few.predict(rows)) == {few.classes_[most]}
    with pytest.raises(ValueError, match="n_neighbors = 13, n_samples_fit = 12"):
        few.set_params(n_neighbors=13).predict(rows)


@pytest.mark.parametrize("places", [[0, 1], [3, 11], [0, 1, 2, 3, 11], list(range(2, 9))])
def test_items_do_not_vote_for_themselves(places: list[int]) -> None:
    """Of few that have a label, all others vote, and nobody in the place of the item itself."""
    rows, _ = clouds(12)
    labels = np.full(12, np.nan)
    labels[places] = np.arange(len(places)) % 2
    hasher = quick(n_neighbors=9).fit(rows, labels)
    others = [[labels[one] for one in places if one != item] for item in range(12)]
    expected = [stats.mode(some).mode for some in others]
    np.testing.assert_array_equal(hasher.predict(None), expected)


def test_accuracy_in_a_cross_validation() -> None:
    rows, labels = clouds()
    assert cross_val_score(quick(), rows, labels, cv=2, scoring="accuracy").mean() > 0.9


@given(
    st.integers(1, 7).flatmap(
        lambda width: st.lists(
            st.lists(st.integers(0, 3), min_size=width, max_size=width), min_size=1, max_size=6
        )
    )
)
def test_the_commonest_of_a_row_is_the_one_of_scipy(rows: list[list[int]]) -> None:
    numbers = np.array(rows, np.int64)
    np.testing.assert_array_equal(commonest(numbers), stats.mode(numbers, axis=1).mode)


def test_there_is_no_partial_fit_and_it_says_what_to_do() -> None:
    assert not hasattr(quick(), "partial_fit")
    with pytest.raises(AttributeError, match=r"learned from all items at once.*add\(X, y\)"):
        quick().partial_fit  # noqa: B018
