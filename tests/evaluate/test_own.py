"""Encoders of one's own: one, or several of one base, in the same comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowhash import Encoder
from flowhash.data import open_data
from flowhash.errors import InputError
from flowhash.evaluate import evaluate
from flowhash.learn import preset, train, train_base


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> list[Encoder]:
    """Hash networks of one base, for k = 1 and 2."""
    folder: Path = tmp_path_factory.mktemp("own")
    splits = open_data("digits")
    base = train_base(splits, preset("cpu-digits"), folder / "base", quiet=True)
    return [
        train(splits, preset("cpu-digits", active=k), folder / f"k{k}", base=base, quiet=True)
        for k in (1, 2)
    ]


def test_several_are_compared_as_each_alone(encoders: list[Encoder]) -> None:
    splits = open_data("digits")
    together = evaluate(encoders, splits, progress=False)
    for encoder in encoders:
        alone = evaluate(encoder, splits, progress=False)
        for row in alone.rows:
            (same,) = [
                other
                for other in together.rows
                if (other.table, other.method, other.k) == (row.table, row.method, row.k)
            ]
            assert (same.pr1, same.pr16, same.suf) == (row.pr1, row.pr16, row.suf), row


def test_what_does_not_belong_together_is_refused(encoders: list[Encoder], tmp_path: Path) -> None:
    splits = open_data("digits")
    other = train(splits, preset("cpu-digits", seed=1, active=3), tmp_path / "other", quiet=True)
    with pytest.raises(InputError, match="different embeddings"):
        evaluate([encoders[0], other], splits, progress=False)
    with pytest.raises(InputError, match="every k once"):
        evaluate([encoders[0], encoders[0]], splits, progress=False)
    with pytest.raises(InputError, match="at least one"):
        evaluate([], splits, progress=False)
