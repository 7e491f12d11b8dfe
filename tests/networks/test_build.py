"""Backbones by name, backbones of a user's own, and the layer on top."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from flowhash.errors import InputError
from flowhash.learn import LOSSES, make_loss
from flowhash.networks import BACKBONES, EmbeddingNetwork, build_backbone, custom_backbone
from flowhash.networks.embedding_network import device_of


@pytest.mark.parametrize(
    ("spec", "features"),
    [
        ({"name": "nin", "width": 1 / 16}, 12),
        ({"name": "residual", "width": 4, "blocks": [1, 1]}, 8),
        ({"name": "linear", "inputs": 7}, 7),
        ({"name": "mlp", "inputs": 7, "hidden": [5, 3]}, 3),
    ],
)
def test_names(spec: dict[str, Any], features: int) -> None:
    before = dict(spec)
    network = build_backbone(spec)
    assert network.features == features
    assert spec == before
    images = spec["name"] in ("nin", "residual")
    items = torch.rand(2, 3, 8, 8) if images else torch.rand(2, 7)
    assert tuple(network(items).shape) == (2, features)
    assert network.spec.items() >= before.items()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "vgg"}, "name is 'vgg'; choose one of 'nin', 'residual'"),
        ({}, "name is None; choose one of"),
        ({"name": "nin", "depth": 3}, "'nin' cannot take .*'depth'"),
        ({"name": "mlp"}, "'mlp' cannot take .*'inputs'"),
        ({"name": "custom", "class": "Net", "features": 3}, "pass the same kind of module again"),
    ],
)
def test_refuses(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_backbone(spec)


def test_every_name_is_there() -> None:
    known = {"nin", "residual", "linear", "mlp", "transformers", "timm", "mirrored"}
    assert set(BACKBONES) == known


def test_a_module_of_ones_own() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    assert custom_backbone(module, 5) is module
    network = EmbeddingNetwork(module, 3)
    assert tuple(network(torch.rand(2, 3, 2, 2)).shape) == (2, 3)
    assert network.spec == {
        "backbone": {"name": "custom", "class": "Sequential", "features": 5},
        "outputs": 3,
        "unit": False,
    }
    with pytest.raises(InputError, match=r"Linear does not say .*custom_backbone\(module, feat"):
        EmbeddingNetwork(nn.Linear(2, 3), 3)


def test_embedding_network() -> None:
    torch.manual_seed(0)  # a row of zeros, which chance can bring, has no direction
    backbone = build_backbone({"name": "mlp", "inputs": 4, "hidden": [6]})
    items = torch.randn(3, 4)
    raw = EmbeddingNetwork(backbone, 5)
    expected = functional.linear(backbone(items), raw.head.weight, raw.head.bias)  # type: ignore[arg-type]
    assert torch.equal(raw(items), expected)
    unit = EmbeddingNetwork(backbone, 5, unit=True)
    unit.load_state_dict(raw.state_dict())
    torch.testing.assert_close(unit(items), expected / expected.norm(dim=1, keepdim=True))
    headless = EmbeddingNetwork(backbone, None)
    assert torch.equal(headless(items), backbone(items))
    assert (headless.outputs, headless.spec["outputs"]) == (6, None)
    with pytest.raises(InputError, match="outputs is 0"):
        EmbeddingNetwork(backbone, 0)


@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"library"}))
def test_an_item_without_features_does_not_break_the_others(name: str) -> None:
    """Zero features and a new head make a zero vector; its direction is not to be had."""
    torch.manual_seed(0)
    loss = make_loss(name)
    network = EmbeddingNetwork(build_backbone({"name": "linear", "inputs": 4}), 3, loss.unit)
    items = torch.randn(6, 4)
    items[0] = 0
    codes = [torch.tensor([0, 0, 1, 1, 2, 2])[:, None]] if name == "codes" else []
    loss(network(items), torch.tensor([0, 0, 1, 1, 2, 2]), *codes).backward()
    for value in network.parameters():
        assert value.grad is not None
        assert float(value.grad.abs().max()) < 1e4


def test_devices() -> None:
    assert device_of("cpu") == torch.device("cpu")
    assert device_of("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(InputError, match="device is 'gpu'"):
        device_of("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="torch finds no GPU here"):
            device_of("cuda")


def test_a_last_layer_that_is_larger_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*sizes: int) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] can't allocate memory")

    backbone = build_backbone({"name": "mlp", "inputs": 3, "hidden": [4]})
    monkeypatch.setattr("torch.nn.Linear", fail)
    with pytest.raises(InputError, match=r"4 × 1073741824 weights does not fit into memory"):
        EmbeddingNetwork(backbone, 1 << 30)
