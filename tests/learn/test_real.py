"""A short training on the real CIFAR-100, where it is at hand."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowhash.data import cifar100
from flowhash.learn import preset, train
from flowhash.quality import search_quality

FOLDER = os.environ.get("FLOWHASH_CIFAR100")


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="FLOWHASH_CIFAR100 does not name a folder with CIFAR-100")
def test_a_few_steps_on_real_images_are_better_than_chance(tmp_path: Path) -> None:
    assert FOLDER is not None
    splits = cifar100(FOLDER)
    settings = preset("cpu-cifar100-triplet", backbone={"name": "residual", "width": 8})
    assert settings.base is not None
    few = replace(
        settings,
        base=replace(settings.base, steps=60, outputs=32),
        hash=replace(settings.hash, steps=30),
    )
    some = replace(splits, validation=splits.validation.subset(np.arange(1000)))
    encoder = train(some, few, tmp_path, quiet=True)
    made = encoder.encode(some.validation)
    found = search_quality(made.activations, made.embeddings, some.validation.labels, 1)
    assert found.precision[1] > 0.03  # by chance 0.01
    assert found.speed_up > 2
