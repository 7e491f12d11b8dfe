"""Two real processes train what one process trains, and none waits for a dead one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flowhash.learn import train
from flowhash.learn.training.process_group import Processes
from flowhash.model_files import read_json, read_tensors
from tests.learn import ranks
from tests.learn.launcher import two_processes
from tests.learn.trainer import facts


def last_weights(folder: Path, stage: str) -> dict[str, torch.Tensor]:
    record = read_json(folder / stage / "last.json")
    return read_tensors(folder / stage / record["tensors"])


def test_seeds_what_torch_would() -> None:
    """What is drawn then is what ``torch.manual_seed`` gives."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        wanted = torch.rand(3)
        torch.rand(7)
        Processes().seed(5)
        assert torch.equal(torch.rand(3), wanted)


@pytest.mark.long
def test_two_processes_train_what_one_does(both: Any, tmp_path: Path) -> None:
    same_training("vectors", both, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("case", list(ranks.OTHERS))
def test_two_processes_train_the_others(case: str, both_others: Any, tmp_path: Path) -> None:
    same_training(case, both_others, tmp_path)


def same_training(case: str, both: Any, tmp_path: Path) -> None:
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


@pytest.mark.long
def test_one_process_that_is_told_to_stop_stops_all_and_they_go_on(both: Any) -> None:
    folder, said = both
    for mine in said:
        assert mine["interrupted"]
        assert mine["resumed"] == said[0]["vectors"]
    assert facts(folder / "resumed") == facts(folder / "vectors")


@pytest.mark.long
def test_fewer_processes_go_on_with_the_run_of_two(both: Any) -> None:
    """What ``--nnodes 1:2`` does when a host does not come back; the batch is the global one."""
    folder, _ = both
    begun = (folder / "fewer" / "metrics.jsonl").read_bytes()
    record = read_json(folder / "fewer" / "base" / "last.json")
    assert 0 < record["step"] < ranks.STEPS
    train(*ranks.CASES["vectors"](), folder / "fewer", device="cpu", quiet=True)
    # Not from the beginning: the lines up to the checkpoint are the old ones, with their clocks.
    found = (folder / "fewer" / "metrics.jsonl").read_bytes()
    assert found.startswith(begun[: record["journal"]])
    one, two = facts(folder / "fewer"), facts(folder / "vectors")
    assert [(line["stage"], line["step"]) for line in one] == [
        (line["stage"], line["step"]) for line in two
    ]
    for stage in ("base", "hash"):
        weights = last_weights(folder / "fewer", stage)
        for name, value in last_weights(folder / "vectors", stage).items():
            torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=2e-5, msg=name)


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
