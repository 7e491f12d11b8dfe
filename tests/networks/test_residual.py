"""The small residual network: its layers written out, its shapes and its description."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flowhash.errors import InputError
from flowhash.networks import build_backbone
from flowhash.networks.convolutional_backbones import Residual


def plain(network: Residual, images: Tensor) -> Tensor:
    """The network by functions of its state, in evaluation."""
    state = network.state_dict()

    def convolved(made: Tensor, name: str, stride: int) -> Tensor:
        weight = state[f"{name}.weight"]
        return functional.conv2d(made, weight, None, stride, weight.shape[2] // 2)

    def normalised(made: Tensor, name: str) -> Tensor:
        mean, variance, scale, shift = (
            state[f"{name}.{part}"][:, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (made - mean) / torch.sqrt(variance + 1e-5) * scale + shift

    stem = network.spec["stem"]
    made = normalised(convolved(images, "layers.0", stem), "layers.1").clamp(min=0)
    number = 3
    for stage, count in enumerate(network.spec["blocks"]):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            name = f"layers.{number}"
            inner = normalised(convolved(made, f"{name}.first", stride), f"{name}.first_norm")
            inner = convolved(inner.clamp(min=0), f"{name}.second", 1)
            inner = normalised(inner, f"{name}.second_norm")
            short = made
            if f"{name}.shortcut.0.weight" in state:
                short = convolved(made, f"{name}.shortcut.0", stride)
                short = normalised(short, f"{name}.shortcut.1")
            made = (inner + short).clamp(min=0)
            number += 1
    return made.mean((2, 3))


@pytest.mark.parametrize(
    ("width", "blocks", "stem"), [(4, (1, 1), 1), (4, (2, 1, 1), 2), (8, (1,), 1)]
)
def test_equals_its_layers_written_out(width: int, blocks: tuple[int, ...], stem: int) -> None:
    torch.manual_seed(0)
    network = Residual(width, blocks, stem)
    images = torch.randn(3, 3, 16, 16)
    network.train()(images)  # running means that are not zero
    found = network.eval()(images)
    assert tuple(found.shape) == (3, width * 2 ** (len(blocks) - 1))
    assert network.features == found.shape[1]
    torch.testing.assert_close(found, plain(network, images), atol=1e-5, rtol=1e-4)


def test_cost_of_the_defaults() -> None:
    """The docstring's 63 million multiplications for an image of 32 × 32."""
    network, total = Residual().eval(), 0

    def count(layer: Any, inputs: Any, output: Tensor) -> None:
        nonlocal total
        total += output[0].numel() * layer.weight[0].numel()

    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(count)
    assert tuple(network(torch.rand(1, 3, 32, 32)).shape) == (1, 256)
    assert 62e6 < total < 64e6


def test_is_built_again_from_its_description() -> None:
    network = Residual(4, (1, 2))
    again = build_backbone(network.spec)
    again.load_state_dict(network.state_dict())
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(network.eval()(images), again.eval()(images))


@pytest.mark.parametrize("options", [{"width": 0}, {"blocks": ()}, {"blocks": (1, 0)}, {"stem": 0}])
def test_refuses(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected positive numbers, and at least one stage"):
        Residual(**options)
