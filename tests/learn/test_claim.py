"""Whose run a folder holds, and what may change when it goes on."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.data.sets.embedding_arrays import arrays
from flowhash.errors import InputError, TrainingError
from flowhash.learn import Coder, make_loss, train
from tests.learn.trainer import clouds, vector_settings


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_run_on_other_data_is_refused(tmp_path: Path) -> None:
    settings = vector_settings()
    train(clouds(), settings, tmp_path, quiet=True)
    before = contents(tmp_path)
    with pytest.raises(InputError, match=r"run on other data \(.*labels"):
        train(clouds(classes=7), settings, tmp_path, quiet=True)
    with pytest.raises(InputError, match=r"run on other data \(preprocessing"):
        train(clouds(noise=0.5), settings, tmp_path, quiet=True)
    encoder = train(clouds(), settings, tmp_path / "other", quiet=True)
    with pytest.raises(InputError, match=r"run on other data \(base"):
        train(clouds(), settings, tmp_path, base=encoder, quiet=True)
    assert {name: value for name, value in contents(tmp_path).items() if "other" not in name} == (
        before
    )


def test_a_rate_that_was_too_high_may_be_lowered(tmp_path: Path) -> None:
    settings = vector_settings()
    assert settings.base is not None
    high = replace(settings, base=replace(settings.base, rate=1e30))
    with pytest.raises(TrainingError, match="lower the rate"):
        train(clouds(), high, tmp_path, quiet=True)
    train(clouds(), settings, tmp_path, quiet=True)
    assert json.loads((tmp_path / "settings.json").read_text())["settings"]["base"]["rate"] == 0.05


def test_a_finished_run_keeps_all_its_settings(tmp_path: Path) -> None:
    settings = vector_settings()
    train(clouds(), settings, tmp_path, quiet=True)
    other = replace(settings, hash=replace(settings.hash, rate=0.5))
    with pytest.raises(InputError, match=r"other settings \(hash\)"):
        train(clouds(), other, tmp_path, quiet=True)


@pytest.mark.parametrize(
    ("stage", "changes", "message"),
    [
        ("hash", {"classes": 9}, "classes_per_batch is 9, but there are 6"),
        ("hash", {"loss": "cross-entropy"}, "no distance to gate"),
        ("hash", {"loss_options": {"margins": 1}}, "cannot take"),
        ("base", {"loss": "tripled"}, "choose one of"),
    ],
)
def test_both_stages_are_checked_before_anything_happens(
    stage: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    settings = vector_settings()
    settings = replace(settings, **{stage: replace(getattr(settings, stage), **changes)})
    with pytest.raises(InputError, match=message):
        train(clouds(), settings, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()  # neither trained nor taken


def test_a_base_brings_its_preprocessing(tmp_path: Path) -> None:
    settings = vector_settings()
    base = train(clouds(), settings, tmp_path / "base", quiet=True)
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(6), 24)
    other = arrays((5 + 3 * rng.normal(size=(144, 8))).astype(np.float32), labels)
    encoder = train(other, settings, tmp_path / "hash", base=base, quiet=True)
    np.testing.assert_array_equal(encoder.preprocessing.mean, base.preprocessing.mean)
    one, two = base.encode(other.validation), encoder.encode(other.validation)
    np.testing.assert_allclose(one.embeddings, two.embeddings, rtol=1e-5)


def test_the_solvers_share_is_a_share_wherever_validations_fall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solve = Coder.codes

    def slowly(self: Coder, *arguments: Any) -> Any:
        time.sleep(0.02)  # nearly all of a step: counted for too few of them it is more than one
        self.seconds += 0.02
        return solve(self, *arguments)

    monkeypatch.setattr(Coder, "codes", slowly)
    settings = vector_settings(validate_every=7, log_every=4)
    train(clouds(), settings, tmp_path, quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    shares = [line["solver_share"] for line in lines if "solver_share" in line]
    assert shares
    assert all(0 < share < 1 for share in shares)


def test_a_loss_of_the_library_by_name() -> None:
    with pytest.raises(InputError, match="has no 'MarginLos'"):
        make_loss("library", name="MarginLos")
    with pytest.raises(InputError, match="cannot take"):
        make_loss("library")
