"""Encoders of one's own: one, or several of one base, in the same comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash import Encoder
from flowhash.data import Splits, open_data
from flowhash.errors import InputError
from flowhash.evaluate import evaluate
from flowhash.learn import Settings, preset, train, train_base


def short(**changes: Any) -> Settings:
    """Long enough to be far from chance."""
    settings = preset("cpu-digits", **changes)
    assert settings.base is not None
    return replace(
        settings, base=replace(settings.base, steps=60), hash=replace(settings.hash, steps=60)
    )


@pytest.fixture(scope="module")
def digits() -> Splits:
    """A part of them to learn from, which is searched too."""
    splits = open_data("digits")
    return replace(splits, train=splits.train.subset(np.arange(400)))


@pytest.fixture(scope="module")
def encoders(digits: Splits, tmp_path_factory: pytest.TempPathFactory) -> list[Encoder]:
    """Hash networks of one base, for k = 1 and 2."""
    folder: Path = tmp_path_factory.mktemp("own")
    base = train_base(digits, short(), folder / "base", quiet=True)
    return [train(digits, short(active=k), folder / f"k{k}", base=base, quiet=True) for k in (1, 2)]


def test_several_are_compared_as_each_alone(encoders: list[Encoder], digits: Splits) -> None:
    together = evaluate(encoders, digits, progress=False)
    for encoder in encoders:
        alone = evaluate(encoder, digits, progress=False)
        for row in alone.rows:
            (same,) = [
                other
                for other in together.rows
                if (other.table, other.method, other.k) == (row.table, row.method, row.k)
            ]
            assert (same.pr1, same.pr16, same.suf) == (row.pr1, row.pr16, row.suf), row
        if encoder is encoders[0]:  # the curves are of the first
            assert alone.recall_curves == together.recall_curves


def test_what_does_not_belong_together_is_refused(
    encoders: list[Encoder], digits: Splits, tmp_path: Path
) -> None:
    other = train(digits, short(seed=1, active=3), tmp_path / "other", quiet=True)
    with pytest.raises(InputError, match="different embeddings"):
        evaluate([encoders[0], other], digits, progress=False)
    with pytest.raises(InputError, match="every k once"):
        evaluate([encoders[0], encoders[0]], digits, progress=False)
    with pytest.raises(InputError, match="at least one"):
        evaluate([], digits, progress=False)
