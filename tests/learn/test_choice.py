"""Settings of vectors: where they start, what is tried, and which of them is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from flowhash.data.sets.embedding_arrays import arrays
from flowhash.errors import InputError
from flowhash.learn import choose_for_new_classes, choose_settings, train, vector_settings
from flowhash.learn.discriminant import discriminant
from flowhash.learn.presets import bucket_counts
from flowhash.learn.settings import Settings
from flowhash.learn.settings_choice import TOP, Trial, largest_speed_up, right_at_scan
from flowhash.quality import LabelledTable, Queries
from tests.estimator.clouds import clouds


def test_starts_where_linear_discriminant_analysis_ends() -> None:
    rows, labels = clouds(400, 7, 4, spread=1.5)
    rows = rows.astype(np.float32)
    model = LinearDiscriminantAnalysis("lsqr", shrinkage=0.5, priors=np.full(4, 0.25))
    # Its shrinkage works on standardised numbers; give it numbers that are.
    flat = (rows - np.array([rows[labels == c].mean(0) for c in range(4)])[labels]).std(0)
    found = discriminant(rows / flat, labels)
    model.fit(rows / flat, labels)
    wanted = np.hstack((model.coef_, (model.intercept_ - np.log(0.25))[:, None]))
    wanted /= np.linalg.norm(model.coef_, axis=1).mean()
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)


def test_the_steps_are_bounded_and_few_for_little_data() -> None:
    steps = [
        vector_settings(np.arange(count) % 100, 256).hash.steps for count in (200, 50_000, 10**7)
    ]
    assert steps[0] == 200
    assert 200 < steps[1] <= steps[2] == 1_500
    assert vector_settings(np.arange(300), 256).hash.start == "classes"  # several share a bucket
    assert vector_settings(np.arange(300), 256, (64,)).hash.start == "random"


def test_a_batch_of_many_classes_has_more_of_them() -> None:
    few, many = (vector_settings(np.arange(8 * n) % n, 512).hash for n in (1_000, 2_000))
    assert (few.classes, few.items) == (64, 4)
    assert (many.classes, many.items) == (256, 2)


@given(items=st.integers(2, 10**7), classes=st.integers(2, 20_000))
def test_numbers_of_buckets(items: int, classes: int) -> None:
    counts = bucket_counts(items, classes)
    assert counts[0] == classes
    assert counts == sorted(set(counts))
    assert all(32 * count <= items and count <= 1_024 for count in counts[1:])
    assert all(count >= 1.5 * classes for count in counts[1:])


def _trial(buckets: int, right: NDArray[np.float64], speed_up: float) -> Trial:
    return Trial(buckets, (), {1: float(right.mean()), 16: float(right.mean())}, speed_up, right)


def test_the_quickest_of_those_that_are_as_precise() -> None:
    rng = np.random.default_rng(0)
    right = (rng.random(1_000) < 0.8).astype(float)
    flipped = right.copy()
    for value in (0, 1):  # as often right as wrong: no difference worth a name
        flipped[np.flatnonzero(right == value)[:20]] = 1 - value
    worse = right.copy()
    worse[np.flatnonzero(worse)[:40]] = 0
    trials = [_trial(10, right, 10), _trial(64, flipped, 60), _trial(256, worse, 200)]
    mean, error = (right - flipped).mean(), (right - flipped).std() / np.sqrt(1_000)
    assert abs(mean) <= error
    assert largest_speed_up(trials).buckets == 64
    assert largest_speed_up(trials[:1]).buckets == 10
    assert largest_speed_up(trials[::2]).buckets == 10


@pytest.mark.parametrize("bend", [False, True])
def test_a_layer_where_classes_are_not_convex(bend: bool) -> None:
    """Rings around each other want a hidden layer; clouds side by side do not."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 1_500)
    rows = rng.normal(size=(1_500, 8))
    if bend:
        rows *= (1 + 2 * labels[:, None]) / np.linalg.norm(rows, axis=1, keepdims=True)
    else:
        rows[:, 0] += 6 * labels
    heard: list[str] = []

    def make(buckets: int, hidden: tuple[int, ...]) -> Settings:
        return vector_settings(labels, buckets, hidden, steps=150)

    chosen, trials = choose_settings(
        arrays(rows.astype(np.float32), labels), make, buckets=3, say=heard.append
    )
    assert [trial.hidden for trial in trials] == (
        [(), (512,)] if bend else [trials[0].hidden, trials[1].hidden]
    )
    assert len(heard) == len(trials) == 2
    assert heard[0].startswith("3 buckets, no hidden layer: Pr@1")
    if bend:
        assert chosen.backbone["hidden"] == [512]


def test_nothing_is_tried_where_nothing_is_open_or_there_is_nothing_to_choose_on() -> None:
    rows, labels = clouds(2_000, 6, 4)
    splits = arrays(rows.astype(np.float32), labels)

    def make(buckets: int, hidden: tuple[int, ...]) -> Settings:
        return vector_settings(labels, buckets, hidden, steps=2)

    assert choose_settings(splits, make, 8, ())[1] == []
    rows, labels = clouds(60, 6, 4)
    chosen, trials = choose_settings(arrays(rows.astype(np.float32), labels), make)
    assert trials == []
    assert chosen.hash.outputs == 4


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), buckets=st.integers(1, 9), scanned=st.integers(1, 59))
def test_precision_at_a_scan_lies_between_two_numbers_of_buckets(
    seed: int, buckets: int, scanned: int
) -> None:
    """By naive loops, where every number of buckets is tried: few are, none is left out."""
    rng = np.random.default_rng(seed)
    count = 60
    scores = rng.normal(size=(count, buckets)).astype(np.float32)
    rows = rng.normal(size=(count, 2)).astype(np.float32)
    labels = rng.integers(0, 3, count)
    codes = scores.argmax(axis=1)
    index = LabelledTable(buckets, 2, 1, 3)
    index.add(codes[:, None].astype(np.int32), rows, labels)
    found = right_at_scan(index, Queries(scores, rows, labels, np.arange(count)), scanned)
    points = [(0.0, np.zeros(count), np.zeros(count))]
    for probe in [p for p in (1, 2, 3, 4, 5, 6, 7, 8, 10) if p < buckets] + [buckets]:
        scans, first, all_tops = [], np.zeros(count), np.zeros(count)
        for query in range(count):
            order = np.argsort(-scores[query])
            inside = np.isin(codes, order[:probe])
            inside[query] = False
            scans.append(inside.sum())
            for top, right in ((1, first), (TOP, all_tops)):
                opened = probe
                while inside.sum() < top and opened < buckets:  # the rule of ``measure``
                    opened += 1
                    inside = np.isin(codes, order[:opened])
                    inside[query] = False
                near = np.flatnonzero(inside)
                near = near[np.argsort(((rows[near] - rows[query]) ** 2).sum(1), kind="stable")]
                right[query] = (labels[near[:top]] == labels[query]).sum() / top
        points.append((float(np.mean(scans)), first, all_tops))
    after = next(place for place, point in enumerate(points) if point[0] >= scanned)
    (least, *low), (most, *high) = points[after - 1], points[after]
    share = (scanned - least) / (most - least)
    for top, one, two in zip((1, TOP), low, high, strict=True):
        np.testing.assert_allclose(found[top], (1 - share) * one + share * two, atol=1e-6)


def stretched(classes: int = 15, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Classes that differ in three numbers, and lie wide within in the other nine."""
    rng = np.random.default_rng(seed)
    labels = np.arange(40 * classes) % classes
    middles = np.hstack((2 * rng.normal(size=(classes, 3)), np.zeros((classes, 9))))
    spread = np.r_[np.full(3, 0.3), np.full(9, 3.0)]
    rows = middles[labels] + spread * rng.normal(size=(len(labels), 12))
    return rows.astype(np.float32), labels


def test_held_out_classes_choose_what_ranks() -> None:
    rows, labels = stretched()
    heard: list[str] = []

    def make(buckets: int, hidden: tuple[int, ...]) -> Settings:
        return vector_settings(labels, buckets, hidden, steps=60)

    chosen, trials = choose_for_new_classes(arrays(rows, labels), make, 30, say=heard.append)
    assert chosen.rank == trials[-1].rank == "whitened"
    assert chosen.class_order == 0
    assert [trial.rank for trial in trials].count("base") == 1
    assert len(heard) == len(trials) == 3
    assert heard[0].startswith("30 buckets, no hidden layer, ranked by what is given: Pr@1")
    assert "the whitened metric, neighbours 0.3: Pr@1" in heard[2]
    assert len({trial.speed_up for trial in trials}) == 1  # all at the same scan
    told = choose_for_new_classes(arrays(rows, labels), make, ranks=("base",))
    assert {trial.rank for trial in told[1]} == {"base"}
    assert {trial.buckets for trial in told[1]} == set(bucket_counts(486, 15))


def test_what_is_held_out_is_of_no_class_that_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    from flowhash.learn import settings_choice

    seen = []

    def watched(splits: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(splits)
        return train(splits, *arguments, **options)

    monkeypatch.setattr(settings_choice, "train", watched)
    made = []
    tried = settings_choice._try_new_classes
    monkeypatch.setattr(
        settings_choice, "_try_new_classes", lambda *given: made.append(given[0]) or tried(*given)
    )
    rows, labels = stretched(6)

    def make(buckets: int, hidden: tuple[int, ...]) -> Settings:
        return vector_settings(labels, buckets, hidden, steps=2)

    choose_for_new_classes(arrays(rows, labels), make, 6)
    for splits, given_splits in zip(seen, made, strict=True):
        assert splits.test is None
        assert len(splits.validation) == 0
        assert len(splits.train.class_names) == 4
        assert len(given_splits.test.class_names) == 2
        assert not set(splits.train.class_names) & set(given_splits.test.class_names)


@pytest.mark.parametrize(
    ("classes", "items", "words"), [(4, 400, "has 4 classes"), (6, 60, "items; expected 40")]
)
def test_too_little_to_hold_classes_out(classes: int, items: int, words: str) -> None:
    rows, labels = clouds(items, 6, classes)

    def make(buckets: int, hidden: tuple[int, ...]) -> Settings:
        return vector_settings(labels, buckets, hidden, steps=2)

    with pytest.raises(InputError, match=words):
        choose_for_new_classes(arrays(rows.astype(np.float32), labels), make)
