"""Checkpoints: what is put back is what was taken, in its own memory layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from flowhash.errors import DamagedFileError
from flowhash.learn import best_validation, training_seconds
from flowhash.learn.training.checkpoints import Checkpoints, restore, state_tensors
from flowhash.networks import EmbeddingNetwork, build_backbone


def made() -> tuple[EmbeddingNetwork, nn.Module, torch.optim.Optimizer]:
    network = EmbeddingNetwork(build_backbone({"name": "nin", "width": 0.05}), 4)
    loss = nn.Linear(4, 2)
    return network, loss, torch.optim.Adam([*network.parameters(), *loss.parameters()], 0.1)


def step(network: EmbeddingNetwork, loss: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    torch.manual_seed(7)
    loss(network(torch.rand(2, 3, 16, 16))).square().sum().backward()
    optimiser.step()
    optimiser.zero_grad()


def parameters(optimiser: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value for group in optimiser.param_groups for value in group["params"]]


def test_what_is_put_back_is_what_was_taken(tmp_path: Path) -> None:
    one, other = made(), made()
    step(*one)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save("last", {"step": 1}, state_tensors(*one))
    read = checkpoints.load("last")
    assert read is not None
    restore(read, *other)
    for theirs, ours in zip(parameters(one[2]), parameters(other[2]), strict=True):
        for name, value in one[2].state[theirs].items():
            found = other[2].state[ours][name]
            assert torch.equal(value, found)
            # Another layout would add up in another order, and the next step not be bit-equal.
            assert value.stride() == found.stride()
    step(*one)
    step(*other)
    for name, value in one[0].state_dict().items():
        assert torch.equal(value, other[0].state_dict()[name]), name


def test_only_the_newest_is_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load("last") is None
    for number in (1, 2):
        checkpoints.save("last", {"step": number}, {"network.a": torch.full((2,), float(number))})
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["last-0000002.safetensors"]
    read = checkpoints.load("last")
    assert read is not None
    assert read.record["step"] == 2
    assert read.part("network")["a"].tolist() == [2, 2]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"step": 1}'])
def test_a_damaged_record_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "last.json").write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"last\.json"):
        Checkpoints(tmp_path).load("last")


def test_missing_or_cut_tensors_are_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save("best", {"step": 3}, {"network.a": torch.ones(2)})
    file = tmp_path / "best-0000003.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match=file.name):
        checkpoints.load("best")
    file.unlink()
    with pytest.raises(DamagedFileError, match=file.name):
        checkpoints.load("best")


def test_other_rooms_read_the_record_and_not_the_file(tmp_path: Path) -> None:
    assert best_validation(tmp_path) is None
    assert training_seconds(tmp_path) is None
    record = {"step": 7, "seconds": 1.5, "best": {"pr1": 0.5, "suf": 3.0}}
    for name in ("best", "last"):
        Checkpoints(tmp_path).save(name, record, {"network.a": torch.zeros(2)})
    assert best_validation(tmp_path) == {"pr1": 0.5, "suf": 3.0, "step": 7}
    assert training_seconds(tmp_path) == 1.5
    path = tmp_path / "last.json"
    path.write_text(path.read_text().replace("1.5", "9.5"))
    with pytest.raises(DamagedFileError, match=r"last\.json"):
        training_seconds(tmp_path)
