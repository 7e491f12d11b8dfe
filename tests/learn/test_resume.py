"""A run that was interrupted or killed and goes on is the uninterrupted run, bit for bit."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from flowhash.encoder import Encoder
from flowhash.errors import DamagedFileError, InputError
from flowhash.learn import train
from flowhash.model_files import read_tensors
from tests.learn import trainer
from tests.learn.trainer import KINDS, STEPS, facts

PROGRAM = Path(trainer.__file__)
# The batch that is being made when the signal comes; batches are made up to three ahead.
MOMENTS = {"base": 9, "hash": STEPS + 9, "start of base": 1, "end of base": STEPS}


ENDINGS = [
    (kind, name, moment)
    for kind in KINDS
    for name in ("SIGINT", "SIGKILL")
    for moment in ("base", "hash")
] + [
    ("vectors", "SIGTERM", "hash"),
    ("vectors", "SIGKILL", "start of base"),
    ("vectors", "SIGKILL", "end of base"),
]


@dataclass(frozen=True)
class Interrupted:
    """One run that a signal ended: its folder, and what was left behind then."""

    folder: Path
    code: int
    left: dict[str, bytes]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "tensorboard" not in path.parts
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> dict[str, tuple[Path, Encoder]]:
    """Each kind of run, uninterrupted."""
    runs = {}
    for kind, (data, settings) in KINDS.items():
        folder = tmp_path_factory.mktemp("whole") / kind
        runs[kind] = (folder, train(data(), settings(), folder, quiet=True))
    return runs


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: Any) -> Callable[[str], dict[tuple[str, str], Interrupted]]:
    """The runs of one kind, ended by each signal in each stage; children of one process."""

    @functools.cache
    def runs(kind: str) -> dict[tuple[str, str], Interrupted]:
        keys = [(name, moment) for this, name, moment in ENDINGS if this == kind]
        folders = {key: tmp_path_factory.mktemp("interrupted") / "run" for key in keys}
        orders = [
            {"kind": kind, "signal": name, "at": MOMENTS[moment], "folder": str(folder)}
            for (name, moment), folder in folders.items()
        ]
        source = Path(sys.modules["flowhash"].__file__ or "").parents[1]
        root = PROGRAM.parents[2]
        ended = subprocess.run(
            [sys.executable, str(PROGRAM)],
            input="\n".join(map(json.dumps, orders)),
            stdout=subprocess.PIPE,
            text=True,
            timeout=1800,  # against hanging only
            check=True,
            env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{root}"},
        )
        codes = list(map(int, ended.stdout.split()))
        return {
            key: Interrupted(folders[key], code, contents(folders[key]))
            for key, code in zip(keys, codes, strict=True)
        }

    return runs


@pytest.mark.parametrize(
    ("kind", "name", "moment"),
    [
        pytest.param(*ending, marks=pytest.mark.long if ending[0] == "pictures" else ())
        for ending in ENDINGS
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    kind: str, name: str, moment: str, whole: Any, interrupted: Any
) -> None:
    run: Interrupted = interrupted(kind)[name, moment]
    # It did not end by itself, and it was not at its end.
    assert run.code == (-signal.SIGKILL if name == "SIGKILL" else 130)
    assert "encoder/encoder.json" not in run.left
    stage = moment.split()[-1]
    if not moment.startswith("start"):
        assert f"{stage}/last.json" in run.left
    if moment in ("base", "start of base"):
        assert "hash/last.json" not in run.left
    folder, encoder = whole[kind]
    data, settings = KINDS[kind]
    resumed = train(data(), settings(), run.folder, quiet=True)
    # Losses, rates, objectives, loads and validations of every step, exactly.
    assert facts(run.folder) == facts(folder)
    assert resumed.fingerprint == encoder.fingerprint


def test_losses_are_of_every_step(whole: Any) -> None:
    for folder, _ in whole.values():
        steps = [(line["stage"], line["step"]) for line in facts(folder) if "loss" in line]
        assert steps == [(stage, step + 1) for stage in ("base", "hash") for step in range(STEPS)]
        losses = [line["loss"] for line in facts(folder) if "loss" in line]
        assert len(set(losses)) == 2 * STEPS  # no loss that is stuck, which any run would equal


def test_a_killed_run_had_gone_past_its_checkpoint(interrupted: Any) -> None:
    """Otherwise the test above would not see that a journal is cut back."""
    beyond = 0
    for (name, _), run in interrupted("vectors").items():
        if name != "SIGKILL" or "base/last.json" not in run.left:
            continue
        stage = "hash" if "hash/last.json" in run.left else "base"
        written = json.loads(run.left[f"{stage}/last.json"])["journal"]
        beyond += len(run.left["metrics.jsonl"]) > written
    assert beyond > 0


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_same_call_twice_gives_the_same_run(kind: str, whole: Any, tmp_path: Path) -> None:
    data, settings = KINDS[kind]
    again = train(data(), settings(), tmp_path, quiet=True)
    assert again.fingerprint == whole[kind][1].fingerprint
    other = train(data(), settings(seed=1), tmp_path / "other", quiet=True)
    assert other.fingerprint != again.fingerprint


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_finished_run_returns_its_encoder_at_once(kind: str, whole: Any) -> None:
    folder, encoder = whole[kind]
    data, settings = KINDS[kind]
    before = contents(folder)

    def fail() -> None:
        raise AssertionError("a finished run trains again")

    splits = trainer.watched(data(), settings(), 1, fail)
    again = train(splits, settings(), folder, quiet=True)
    assert again.fingerprint == encoder.fingerprint
    assert contents(folder) == before


def test_a_run_keeps_best_and_last_only(whole: Any) -> None:
    for kind, (folder, _) in whole.items():
        for stage in ("base", "hash"):
            names = sorted(path.name.split("-")[0] for path in (folder / stage).iterdir())
            ordered = ["order.json"] if (kind, stage) == ("groups", "hash") else []
            assert names == ["best", "best.json", "last", "last.json", *ordered]


def test_other_settings_are_refused(whole: Any) -> None:
    folder, _ = whole["vectors"]
    data, settings = KINDS["vectors"]
    with pytest.raises(InputError, match=r"other settings \(active, seed\)"):
        train(data(), settings(seed=5, active=2), folder, quiet=True)


@pytest.mark.parametrize("damage", ["cut", "missing", "record", "unnamed"])
@pytest.mark.parametrize("stage", ["base", "hash"])
def test_a_damaged_checkpoint_is_named(damage: str, stage: str, tmp_path: Path) -> None:
    data, settings = KINDS["vectors"]

    def stop() -> None:
        raise KeyboardInterrupt

    at = MOMENTS[stage]
    with pytest.raises(KeyboardInterrupt):
        train(trainer.watched(data(), settings(), at, stop), settings(), tmp_path, quiet=True)
    [tensors] = (tmp_path / stage).glob("last-*.safetensors")
    record = tmp_path / stage / "last.json"
    assert all(bool(value.isfinite().all()) for value in read_tensors(tensors).values())
    named = tensors if damage in ("cut", "missing") else record
    if damage == "cut":
        tensors.write_bytes(tensors.read_bytes()[:-7])
    elif damage == "missing":
        tensors.unlink()
    elif damage == "record":
        record.write_text(record.read_text()[:-20])
    else:
        record.write_text("{}")
    with pytest.raises(DamagedFileError, match=str(named)):
        train(data(), settings(), tmp_path, quiet=True)


def test_what_was_drawn_before_does_not_matter(whole: Any, tmp_path: Path) -> None:
    data, settings = KINDS["pictures"]
    torch.manual_seed(1234)
    torch.rand(17)
    again = train(data(), settings(), tmp_path, quiet=True)
    assert again.fingerprint == whole["pictures"][1].fingerprint
