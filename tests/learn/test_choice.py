"""Settings of vectors: where they start, what is tried, and which of them is taken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from flowhash.data.sets.embedding_arrays import arrays
from flowhash.learn import choose_settings, vector_settings
from flowhash.learn.discriminant import discriminant
from flowhash.learn.presets import bucket_counts
from flowhash.learn.settings import Settings
from flowhash.learn.settings_choice import Trial, largest_speed_up
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

    settings, trials = choose_settings(
        arrays(rows.astype(np.float32), labels), make, buckets=3, say=heard.append
    )
    assert [trial.hidden for trial in trials] == (
        [(), (512,)] if bend else [trials[0].hidden, trials[1].hidden]
    )
    assert len(heard) == len(trials) == 2
    assert heard[0].startswith("3 buckets, no hidden layer: Pr@1")
    if bend:
        assert settings.backbone["hidden"] == [512]


def test_nothing_is_tried_where_nothing_is_open_or_there_is_nothing_to_choose_on() -> None:
    rows, labels = clouds(2_000, 6, 4)
    splits = arrays(rows.astype(np.float32), labels)

    def make(buckets: int, hidden: tuple[int, ...]) -> Settings:
        return vector_settings(labels, buckets, hidden, steps=2)

    assert choose_settings(splits, make, 8, ())[1] == []
    rows, labels = clouds(60, 6, 4)
    settings, trials = choose_settings(arrays(rows.astype(np.float32), labels), make)
    assert trials == []
    assert settings.hash.outputs == 4
