"""Two real processes train what one process trains, and none waits for a dead one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flowhash.artefact import read_json, read_tensors
from flowhash.learn import train
from flowhash.learn.processes import Processes
from tests.learn import ranks
from tests.learn.trainer import facts

PROGRAM = Path(ranks.__file__)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def two_processes(folder: Path, what: str) -> int:
    """Run the program in two processes as a user would; the exit code of the launcher."""
    source = Path(sys.modules["flowhash"].__file__ or "").parents[1]
    path = f"{source}{os.pathsep}{PROGRAM.parents[2]}"
    launcher = subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
            "--master-addr", "127.0.0.1", "--master-port", str(free_port()),
            str(PROGRAM), str(folder), what,
        ],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        return launcher.wait(600)  # against hanging only
    except subprocess.TimeoutExpired:
        launcher.terminate()
        launcher.wait(60)
        raise


@pytest.fixture(scope="module")
def both(tmp_path_factory: Any) -> tuple[Path, list[dict[str, Any]]]:
    """What two processes made of all cases, and what each of them says."""
    folder = tmp_path_factory.mktemp("two")
    assert two_processes(folder, "compare") == 0
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def last_weights(folder: Path, stage: str) -> dict[str, torch.Tensor]:
    record = read_json(folder / stage / "last.json")
    return read_tensors(folder / stage / record["tensors"])


@pytest.mark.parametrize("case", list(ranks.CASES))
def test_two_processes_train_what_one_does(case: str, both: Any, tmp_path: Path) -> None:
    folder, said = both
    train(*ranks.CASES[case](), tmp_path, device="cpu", quiet=True)
    one, two = facts(tmp_path), facts(folder / case)
    assert [(line["stage"], line["step"], "loss" in line) for line in one] == [
        (line["stage"], line["step"], "loss" in line) for line in two
    ]
    for expected, found in zip(one, two, strict=True):
        assert found.keys() == expected.keys()
        for name in {"loss", "rate", "class_objective", "item_objective", "bound_gap"}:
            if name in expected:
                assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name
    for stage in ("base", "hash"):
        expected_weights, weights = (
            last_weights(tmp_path, stage),
            last_weights(folder / case, stage),
        )
        assert weights.keys() == expected_weights.keys()
        for name, value in expected_weights.items():
            torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=2e-5, msg=name)
    # Both processes return the same encoder, though only one of them selected and wrote.
    assert said[0][case] == said[1][case]


def test_one_process_that_is_told_to_stop_stops_all_and_they_go_on(both: Any) -> None:
    folder, said = both
    for mine in said:
        assert mine["interrupted"]
        assert mine["resumed"] == said[0]["vectors"]
    assert facts(folder / "resumed") == facts(folder / "vectors")


def test_a_dead_process_ends_the_others_with_a_message(tmp_path: Path) -> None:
    assert two_processes(tmp_path, "dead") != 0
    assert not (tmp_path / "1.json").exists()
    message = json.loads((tmp_path / "0.json").read_text())["error"]
    assert message is not None
    assert "process 0 lost another one" in message
    path = tmp_path / "run" / "base" / "last.json"
    assert f"the last good checkpoint is {path}" in message
    assert read_json(path)["step"] >= 3
    tensors = last_weights(tmp_path / "run", "base")
    assert all(bool(value.isfinite().all()) for value in tensors.values())


def test_a_single_process_shares_nothing() -> None:
    alone = Processes()
    network, rows = torch.nn.Linear(2, 2), torch.ones(3, 2)
    assert alone.first
    assert alone.wrap(network) is network
    assert alone.gather(rows) is rows
    assert (alone.any(True), alone.any(False)) == (True, False)
    alone.wait()
