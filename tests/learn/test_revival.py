"""Buckets that no group has chosen start anew near those that several share."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowhash.errors import InputError
from flowhash.learn import Settings, Stage, train
from flowhash.learn.training.training_loop import make_optimiser, revive
from flowhash.networks import EmbeddingNetwork, build_backbone
from tests.learn.trainer import clouds, facts, lines, vector_settings, watched

STEPS = 40


def crowded(**changes: Any) -> Settings:
    """Six classes in twelve buckets whose small penalty leaves groups together."""
    stage = Stage("codes", 12, 5, 2, STEPS, rate=1e-2)
    told = Settings(
        {"name": "linear"}, None, stage, penalty=0.2, groups="auto", augment=None,
        validate_every=10, checkpoint_every=3, log_every=1, revive=True,
    )  # fmt: skip
    return replace(told, **changes)


def stepped(optimiser: str) -> tuple[EmbeddingNetwork, torch.optim.Optimizer]:
    torch.manual_seed(0)
    network = EmbeddingNetwork(build_backbone({"name": "linear", "inputs": 3}), 6)
    made = make_optimiser(
        network, torch.nn.Identity(), Stage("codes", 6, 2, 2, 5, optimiser=optimiser)
    )
    network(torch.rand(4, 3)).square().sum().backward()
    made.step()
    return network, made


def state(network: EmbeddingNetwork, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Weights, biases and what the optimiser knows of them, as arrays."""
    found = {}
    for name, parameter in network.head.named_parameters():
        found[name] = parameter.detach().numpy().copy()
        for key, value in optimiser.state[parameter].items():
            if key != "step":
                found[f"{name}.{key}"] = value.numpy().copy()
    return found


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_an_empty_bucket_becomes_nearly_the_fullest(optimiser: str) -> None:
    loads = np.array([2, 0, 1, 5, 0, 0])  # 3 is copied to 1, then 0 to 4; for 5 nothing is left
    network, made = stepped(optimiser)
    before = state(network, made)
    assert revive(network, made, loads, np.random.default_rng(0)) == 2
    after = state(network, made)
    for name, was in before.items():
        np.testing.assert_array_equal(after[name][[0, 2, 3, 5]], was[[0, 2, 3, 5]])
    for new, old in ((1, 3), (4, 0)):
        assert after["bias"][new] == before["bias"][old]
        aside = after["weight"][new] - before["weight"][old]
        size = np.sqrt(np.mean(before["weight"][old] ** 2))
        assert 0 < np.abs(aside).max() < 0.5 * size
        for name, was in before.items():
            if name.endswith("exp_avg_sq"):
                np.testing.assert_array_equal(after[name][new], was[old])
            elif "." in name:
                assert (was[new] != 0).any()
                assert (after[name][new] == 0).all()
    again, theirs = stepped(optimiser)
    revive(again, theirs, loads, np.random.default_rng(0))
    for name, value in state(again, theirs).items():
        np.testing.assert_array_equal(value, after[name])


@pytest.mark.parametrize("loads", [[1, 1, 1, 1, 1, 1], [9, 2, 1, 1, 1, 1], [1, 0, 1, 0, 1, 1]])
def test_where_none_is_empty_or_none_is_shared_nothing_changes(loads: list[int]) -> None:
    network, made = stepped("adam")
    before = state(network, made)
    assert revive(network, made, np.array(loads), np.random.default_rng(0)) == 0
    for name, value in state(network, made).items():
        np.testing.assert_array_equal(value, before[name])


def test_a_revived_bucket_gets_work(tmp_path: Path) -> None:
    used = {}
    for each in (False, True):
        folder = tmp_path / str(each)
        train(clouds(), crowded(revive=each), folder, quiet=True)
        found = [line["buckets_used"] for line in lines(folder) if "loss" in line]
        used[each] = 12 * np.mean(found[STEPS // 2 :])
    assert used[False] < 10  # of twelve
    assert used[True] > used[False] + 1.5
    said = [line for line in lines(tmp_path / "True") if "revived" in line]
    assert sum(line["revived"] for line in said) > 0
    # Every twentieth of the steps, within the first 70 %, once all groups have had a code.
    steps = [line["step"] for line in said]
    assert steps == list(range(steps[0], int(0.7 * STEPS), 2))
    assert steps[0] <= STEPS // 4
    assert not any("revived" in line for line in lines(tmp_path / "False"))


def test_a_run_that_goes_on_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    told = crowded()

    def stop() -> None:
        raise KeyboardInterrupt

    whole = train(clouds(), told, tmp_path / "whole", quiet=True)
    with pytest.raises(KeyboardInterrupt):
        train(watched(clouds(), told, 22, stop), told, tmp_path / "cut", quiet=True)
    step = json.loads((tmp_path / "cut/hash/last.json").read_text())["step"]
    at = [line["step"] for line in lines(tmp_path / "whole") if line.get("revived")]
    assert min(at) <= step < max(at)  # some before, and some after it went on
    resumed = train(clouds(), told, tmp_path / "cut", quiet=True)
    assert facts(tmp_path / "cut") == facts(tmp_path / "whole")
    assert resumed.fingerprint == whole.fingerprint
    other = train(clouds(), replace(told, seed=1), None, quiet=True)
    assert other.fingerprint != whole.fingerprint


def test_nothing_is_revived_where_nobody_knows_what_is_free() -> None:
    with pytest.raises(InputError, match=r"revive is True with the loss 'npairs'.*outside=True"):
        vector_settings(revive=True)
    assert vector_settings(revive=True, outside=True).revive
    with pytest.raises(InputError, match="revive is True, but the data are pairs"):
        train(clouds(), crowded(groups="classes"), None, pairs=[[0, 1], [2, 3], [4, 5]], quiet=True)
