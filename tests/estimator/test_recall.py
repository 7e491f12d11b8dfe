"""A recall that an estimator is asked for."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from flowhash import FlowHasher
from flowhash.errors import InputError


def clouds(seed: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Vectors of twelve classes that overlap."""
    centres = np.random.default_rng(7).normal(size=(12, 6))
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 12, count)
    return (centres[labels] + generator.normal(size=(count, 6))).astype(np.float32), labels


def recall_of(hasher: FlowHasher, recall: float, items: NDArray[np.float32]) -> float:
    """What new queries find, by brute force."""
    queries, _ = clouds(3, 400)
    squares = np.square(queries[:, None].astype(np.float64) - items[None]).sum(axis=2)
    nearest = np.argsort(squares, axis=1)[:, :10]
    found = hasher.kneighbors(queries, 10, return_distance=False, recall=recall)
    shared = [len({*a} & {*b}) for a, b in zip(found.tolist(), nearest.tolist(), strict=True)]
    return float(np.mean(shared)) / 10


def test_recall_is_reached_saved_and_carried(tmp_path: Path) -> None:
    items, labels = clouds(0, 2_000)
    hasher = FlowHasher(buckets=24, hidden=(), steps=150, random_state=0).fit(items, labels)
    with pytest.raises(InputError, match="never calibrated"):
        hasher.kneighbors(items[:3], recall=0.9)
    hasher.calibrate(clouds(1, 800)[0])
    for recall in (0.8, 0.9, 0.97):
        assert abs(recall_of(hasher, recall, items) - recall) < 0.035
    hits = hasher.search(clouds(3, 400)[0], 10, recall=0.9)
    assert hits.recall == 0.9
    assert hits.scanned.mean() < 0.8 * len(items)
    hasher.save(tmp_path / "saved")
    for other in (FlowHasher.load(tmp_path / "saved"), pickle.loads(pickle.dumps(hasher))):
        again = other.search(clouds(3, 400)[0], 10, recall=0.9)
        assert again.ids.tolist() == hits.ids.tolist()
        assert again.opened.tolist() == hits.opened.tolist()


def test_items_of_the_table_calibrate_too() -> None:
    items, labels = clouds(0, 2_000)
    hasher = FlowHasher(buckets=24, hidden=(), steps=150, random_state=0).fit(items, labels)
    hasher.calibrate()
    assert hasher.table_.calibration is not None
    assert hasher.table_.calibration.stored
    assert abs(recall_of(hasher, 0.9, items) - 0.9) < 0.05
    itself = hasher.search(None, 10, recall=0.9)  # items among the others
    assert (itself.ids != np.arange(2_000)[:, None]).all()


def test_arguments_are_checked_in_words() -> None:
    items, labels = clouds(0, 400)
    hasher = FlowHasher(buckets=12, hidden=(), steps=5, random_state=0)
    for name in ("copies", "recall"):
        with pytest.raises(InputError, match=f"{name} is True; expected a number"):
            FlowHasher(buckets=12, hidden=(), steps=5, **{name: True}).fit(items, labels)
    hasher.fit(items, labels).calibrate(tops=5)
    assert hasher.table_.calibration is not None
    assert list(hasher.table_.calibration.thresholds) == [5]
    for wrong in ("0.9", [0.9], np.array([0.9]), True):
        with pytest.raises(InputError, match="recall is"):
            hasher.kneighbors(items[:3], 5, recall=wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="recall is"):
            hasher.set_params(recall=wrong).kneighbors(items[:3], 5)
        hasher.set_params(recall="auto")
    with pytest.raises(InputError, match="queries is '9'"):
        hasher.calibrate(queries="9")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"queries has shape \(400, 6\).* as X: calibrate\(X\)$"):
        hasher.calibrate(queries=items)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"queries is a dict; expected a whole number from 1$"):
        hasher.calibrate(queries=dict.fromkeys(range(99)))  # type: ignore[arg-type]
    router = FlowHasher(buckets=4, steps=5, random_state=0, copies=0).fit(items)
    for top in ("5", 2.5, True):
        with pytest.raises(TypeError, match=r"n_neighbors is .* expected a whole number"):
            router.kneighbors(items[:3], top)  # type: ignore[arg-type]
