"""``torchrun`` starts all processes anew when one is killed, and the run goes on, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as distributed

from flowhash.errors import InputError, TrainingError
from flowhash.learn import train
from flowhash.learn.stages import Stages
from flowhash.learn.training.process_group import Processes, agreed_name
from flowhash.learn.training.training_log import read_journal
from flowhash.model_files import read_json
from tests.learn import ranks
from tests.learn.launcher import PROGRAM, free_port
from tests.learn.test_processes import last_weights
from tests.learn.trainer import facts

# A stage has eight steps and a checkpoint after every third. Who waits while the eighth batch of a
# stage is made has left a checkpoint of step 6, and the line of a seventh step that is not in it.
VICTIMS = {"the other one, in stage 1": (1, "base", 8), "who writes, in stage 2": (0, "hash", 16)}


@contextmanager
def launched(
    folder: Path, victim: int, batch: int, dropout: float, restarts: int
) -> Iterator[subprocess.Popen[bytes]]:
    """``torchrun`` with two processes, as docs/learning.md has it; ended if it has not."""
    source = Path(sys.modules["flowhash"].__file__ or "").parents[1]
    path = f"{source}{os.pathsep}{PROGRAM.parents[2]}"
    launcher = subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}",
            "--rdzv-id", "test", "--max-restarts", str(restarts),
            str(PROGRAM), str(folder), "elastic", str(victim), str(batch), str(dropout),
        ],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        yield launcher
    finally:
        if launcher.poll() is None:
            launcher.terminate()
            launcher.wait(120)


def killed(folder: Path, stage: str, launcher: subprocess.Popen[bytes]) -> bytes:
    """Kill the process that waits for it; the lines that the last checkpoint vouches for."""
    waiting, journal = folder / "victim", folder / "run" / "metrics.jsonl"

    def ready() -> bool:
        done = [(line["stage"], line["step"]) for line in read_journal(journal)]
        return waiting.exists() and (stage, 7) in done

    while not ready():
        assert launcher.poll() is None, "torchrun ended before its process could be killed"
        time.sleep(0.05)
    record = read_json(folder / "run" / stage / "last.json")
    assert record["step"] == 6
    kept = journal.read_bytes()[: record["journal"]]
    os.kill(int(waiting.read_text()), signal.SIGKILL)
    return kept


def said(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    "who",
    [
        pytest.param(who, marks=mark)
        for who, mark in zip(VICTIMS, (pytest.mark.long, pytest.mark.slow), strict=True)
    ],
)
def test_a_killed_process_is_started_again(who: str, both_others: Any, tmp_path: Path) -> None:
    victim, stage, batch = VICTIMS[who]
    with launched(tmp_path, victim, batch, 0.3, 2) as launcher:
        kept = killed(tmp_path, stage, launcher)
        assert launcher.wait(600) == 0
    # Both were started once more, and not again.
    assert [mine["restarts"] for mine in said(tmp_path)] == [1, 1]
    # Not from the beginning: the lines up to the checkpoint are the old ones, with their clocks.
    assert kept
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes().startswith(kept)
    # Nothing lost, nothing double, the same numbers as where none is killed.
    undisturbed, others = both_others
    assert facts(tmp_path / "run") == facts(undisturbed / "elastic")
    for name in ("base", "hash"):
        runs = (undisturbed / "elastic", tmp_path / "run")
        expected, weights = (last_weights(run, name) for run in runs)
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[key], value) for key, value in expected.items())
    fingerprints = {mine["fingerprint"] for mine in said(tmp_path)}
    assert fingerprints == {mine["elastic"] for mine in others}


@pytest.mark.slow  # test_processes.py has it with a run that was interrupted, not killed
def test_fewer_processes_go_on_with_a_run_that_was_killed(tmp_path: Path) -> None:
    with launched(tmp_path, 1, 8, 0.0, 0) as launcher:
        kept = killed(tmp_path, "base", launcher)
        assert launcher.wait(600) != 0
    splits, settings = ranks.elastic_case(0.0)
    train(splits, settings, tmp_path / "run", device="cpu", quiet=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes().startswith(kept)
    train(splits, settings, tmp_path / "alone", device="cpu", quiet=True)
    one, two = facts(tmp_path / "alone"), facts(tmp_path / "run")
    assert [(line["stage"], line["step"]) for line in one] == [
        (line["stage"], line["step"]) for line in two
    ]
    for expected, found in zip(one, two, strict=True):
        if "loss" in expected:
            assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4, abs=1e-5)
    for stage in ("base", "hash"):
        weights = last_weights(tmp_path / "run", stage)
        for name, value in last_weights(tmp_path / "alone", stage).items():
            torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=2e-5, msg=name)


def test_a_number_of_processes_that_does_not_divide_the_batch_is_refused(tmp_path: Path) -> None:
    splits, settings = ranks.elastic_case(0.0)
    stages = Stages(splits, settings, tmp_path, Processes(0, 5), None, True)
    with pytest.raises(InputError, match="a batch of 12 cannot be shared by 5 processes evenly"):
        stages.check(None)


@pytest.mark.parametrize("late", [0, 2])
def test_a_name_is_agreed_on_by_those_who_live(late: int) -> None:
    """Whoever comes last; the store keeps what starts before have written, unanswered asks too."""
    store = distributed.HashStore()
    store.set("flowhash/asks/1", "of a process that was killed before it was answered")
    names: list[str] = []
    for _ in range(2):
        with ThreadPoolExecutor(3) as pool:
            order = sorted(range(3), key=lambda rank: rank == late)
            starts = []
            for rank in order:
                if rank == late:
                    time.sleep(0.1)
                starts.append(pool.submit(agreed_name, store, rank, 3))
            (name,) = {start.result() for start in starts}
        names.append(name)
    assert names[0] != names[1]


def test_a_process_that_does_not_come_is_named() -> None:
    store = distributed.HashStore()
    store.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(TrainingError, match=r"processes \[1, 2\] of 3 did not come"):
        agreed_name(store, 0, 3)
