"""Small labelled embeddings, and estimators that learn them in a moment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.estimator import FlowHasher


def clouds(
    items: int = 120, features: int = 6, classes: int = 4, seed: int = 0, spread: float = 0.5
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    middles = 2 * rng.normal(size=(classes, features))
    labels = np.arange(items) % classes
    rng.shuffle(labels)
    return middles[labels] + spread * rng.normal(size=(items, features)), labels


def quick(**parameters: Any) -> FlowHasher:
    return FlowHasher(**{"buckets": 8, "hidden": (), "steps": 5, "random_state": 0, **parameters})
