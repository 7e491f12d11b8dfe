"""Small pictures, and plans that train on them in a second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flowhash.data import LabelledItems, Preprocessing, Splits
from flowhash.data.item_sources import ArrayItems
from flowhash.evaluate import paper_experiment
from flowhash.evaluate.reproduction import experiment_plan as plans

CLASSES = 20


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Networks here are so small that a second thread only makes them wait for it."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def pictures() -> Splits:
    """One pattern a class, under noise: 20 to train on, 4 to validate, 6 to test."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (CLASSES, 8, 8, 3))

    def some(each: int) -> LabelledItems:
        labels = np.repeat(np.arange(CLASSES), each)
        noise = rng.integers(0, 64, (len(labels), 8, 8, 3))
        images = np.clip(patterns[labels] * 0.75 + noise, 0, 255).astype(np.uint8)
        names = tuple(f"class {number}" for number in range(CLASSES))
        return LabelledItems(ArrayItems(images), labels, names, "pictures")

    train = some(20)
    return Splits(train, some(4), some(6), Preprocessing.fit(train))


@pytest.fixture(scope="module")
def short() -> Iterator[None]:
    """Plans with a few steps, a small network and two values of k."""
    original = plans.preset

    def small(name: str, **changes: Any) -> Any:
        settings = original(name, **changes)
        if name.startswith(("paper", "method")):
            assert settings.base is not None
            few = {"steps": 20, "rate": 0.02, "classes": 10, "items": 2, "outputs": 32}
            settings = replace(
                settings, base=replace(settings.base, **few), hash=replace(settings.hash, **few)
            )
        return replace(settings, backbone={"name": "residual", "width": 4, "blocks": [1, 1]})

    def experiment(data: str, loss: str) -> Any:
        return replace(paper_experiment(data, loss), active=(1, 2))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "preset", small)
        patch.setattr(plans, "paper_experiment", experiment)
        for name, value in {
            "TRUNK_STEPS": 30, "UNSEEN_STEPS": 10, "HEAD_STEPS": 20, "HASH_STEPS": 30,
            "HASH_STEPS_RANDOM": 30,
            "COPIES": 1,
        }.items():  # fmt: skip
            patch.setattr(plans, name, value)
        yield
