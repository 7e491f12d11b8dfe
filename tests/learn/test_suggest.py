"""Settings for data of one's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowhash.data.sets.embedding_arrays import arrays
from flowhash.errors import InputError
from flowhash.learn import suggest, train
from tests.learn.trainer import clouds, pictures


def test_vectors_rank_as_they_are() -> None:
    settings = suggest(clouds())
    assert settings.base is None
    assert settings.backbone["name"] == "linear"
    assert (settings.hash.outputs, settings.hash.classes, settings.active) == (6, 6, 1)


def test_images_get_the_residual_network_and_both_stages() -> None:
    settings = suggest(pictures(), buckets=16, active=2)
    assert settings.base is not None
    assert settings.base.loss == "cross-entropy"
    assert settings.backbone == {"name": "residual", "stem": 1, "width": 16}  # a small set
    assert (settings.hash.outputs, settings.active) == (16, 2)


def test_many_classes_get_buckets_enough() -> None:
    labels = np.repeat(np.arange(150), 4)
    settings = suggest(arrays(np.eye(150, dtype=np.float32)[labels], labels))
    assert settings.hash.outputs == 150
    assert settings.hash.classes == 64
    assert settings.hash.items == 4  # each of which may come twice


def test_one_class_is_nothing_to_learn() -> None:
    labels = np.zeros(10, np.int64)
    with pytest.raises(InputError, match="one class only"):
        suggest(arrays(np.random.default_rng(0).normal(size=(10, 4)), labels))


@pytest.mark.parametrize("data", [clouds, pictures])
def test_what_is_suggested_trains(data: object, tmp_path: Path) -> None:
    splits = data()  # type: ignore[operator]
    settings = suggest(splits)
    settings = replace(settings, hash=replace(settings.hash, steps=3), validate_every=3)
    if settings.base is not None:
        settings = replace(settings, base=replace(settings.base, steps=3))
    encoder = train(splits, settings, tmp_path, quiet=True)
    assert len(encoder.encode(splits.validation)) == len(splits.validation)
