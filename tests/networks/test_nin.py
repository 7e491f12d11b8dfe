"""The paper's NIN: its weights counted by hand, its pools against TensorFlow's rule in loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn import functional

from flowhash.errors import InputError
from flowhash.networks import EmbeddingNetwork, build_backbone
from flowhash.networks.convolutional_backbones import NIN

# Size of the kernel, channels in, channels out, as the paper's table has them.
CONVOLUTIONS = [
    (5, 3, 192), (1, 192, 160), (1, 160, 96),
    (5, 96, 192), (1, 192, 192), (1, 192, 192),
    (3, 192, 192), (1, 192, 192),
]  # fmt: skip


def test_weights_are_those_of_the_table() -> None:
    network = NIN()
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert [tuple(layer.weight.shape) for layer in layers] == [
        (outputs, inputs, size, size) for size, inputs, outputs in CONVOLUTIONS
    ]
    # 14,400 + 30,720 + 15,360 + 460,800 + 36,864 + 36,864 + 331,776 + 36,864
    assert sum(layer.weight.numel() for layer in layers) == 963_648
    # 192 + 160 + 96 + 3 · 192 + 2 · 192 biases, and nothing else: no batch normalisation.
    assert sum(value.numel() for value in network.parameters()) == 963_648 + 1_408
    assert not list(network.buffers())
    assert network.features == 192
    head = EmbeddingNetwork(network, 64)
    assert sum(value.numel() for value in head.parameters()) == 965_056 + 192 * 64 + 64


def test_shapes_after_each_layer() -> None:
    network = NIN().eval()
    shapes: dict[str, tuple[int, ...]] = {}
    order: list[str] = []

    def seen(name: str) -> Any:
        def record(layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            shapes[name] = tuple(output.shape[1:])

        return record

    for number, layer in enumerate(network.layers):
        name = f"{number} {type(layer).__name__}"
        order.append(type(layer).__name__)
        layer.register_forward_hook(seen(name))
    assert tuple(network(torch.rand(1, 3, 32, 32)).shape) == (1, 192)
    pooled = {name.split()[1]: shape for name, shape in shapes.items() if "Pool" in name}
    assert pooled == {
        "MaxPool2d": (96, 16, 16), "AvgPool2d": (192, 8, 8), "AdaptiveAvgPool2d": (192, 1, 1),
    }  # fmt: skip
    sizes = [shape for name, shape in shapes.items() if "Conv2d" in name]
    assert sizes == [
        (192, 32, 32), (160, 32, 32), (96, 32, 32),
        (192, 16, 16), (192, 16, 16), (192, 16, 16),
        (192, 8, 8), (192, 8, 8),
    ]  # fmt: skip
    group = ["Conv2d", "LeakyReLU"]
    assert order == [
        *group * 3, "MaxPool2d", "Dropout", *group * 3, "AvgPool2d", "Dropout",
        *group, "Conv2d", "AdaptiveAvgPool2d", "Flatten", "ReLU",
    ]  # fmt: skip


def same_pool(image: Any, kind: str) -> Any:
    """TensorFlow's 3 × 3 pool of stride 2 with SAME padding, by its documented formula."""
    height, width = image.shape
    rows, columns = math.ceil(height / 2), math.ceil(width / 2)
    top = max((rows - 1) * 2 + 3 - height, 0) // 2
    left = max((columns - 1) * 2 + 3 - width, 0) // 2
    result = np.zeros((rows, columns))
    for row in range(rows):
        for column in range(columns):
            inside = [
                image[y, x]
                for y in range(row * 2 - top, row * 2 - top + 3)
                for x in range(column * 2 - left, column * 2 - left + 3)
                if 0 <= y < height and 0 <= x < width
            ]
            result[row, column] = max(inside) if kind == "max" else sum(inside) / len(inside)
    return result


@settings(max_examples=30)
@given(
    # Even sizes: for odd ones SAME also pads on the left. The paper's are 32 and 16.
    st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_pools_are_tensorflows(rows: int, columns: int, seed: int) -> None:
    image = np.random.default_rng(seed).normal(size=(2 * rows, 2 * columns))
    pools = [layer for layer in NIN(width=1 / 96).layers if "Pool2d" in type(layer).__name__]
    for pool, kind in zip(pools[:2], ("max", "mean"), strict=True):
        found = pool(torch.from_numpy(image)[None, None])[0, 0].numpy()
        np.testing.assert_allclose(found, same_pool(image, kind), atol=1e-12)


def test_equals_the_same_layers_written_out() -> None:
    torch.manual_seed(0)
    network = NIN(width=1 / 16).eval()
    weights = [
        (layer.weight, layer.bias) for layer in network.layers if isinstance(layer, nn.Conv2d)
    ]
    images = torch.rand(3, 3, 16, 16)
    made = images
    for number, (weight, bias) in enumerate(weights):
        made = functional.conv2d(made, weight.contiguous(), bias, padding=weight.shape[2] // 2)
        if number < 7:
            made = torch.where(made > 0, made, made / 5.5)
        if number in (2, 5):
            pooled = [
                [
                    same_pool(plane.detach().numpy(), "max" if number == 2 else "mean")
                    for plane in one
                ]
                for one in made
            ]
            made = torch.from_numpy(np.array(pooled)).float()
    expected = made.mean((2, 3)).clamp(min=0)
    torch.testing.assert_close(network(images), expected, atol=1e-5, rtol=1e-4)


def test_initial_weights() -> None:
    torch.manual_seed(0)
    for layer in NIN().layers:
        if not isinstance(layer, nn.Conv2d):
            continue
        deviation = math.sqrt(2.6 / (layer.in_channels * layer.kernel_size[0] ** 2))
        weights = layer.weight.detach()
        assert float(weights.abs().max()) <= 2 * deviation * (1 + 1e-6)
        # Cut off at two deviations, a normal has 0.8796 of its deviation left.
        assert float(weights.std()) == pytest.approx(0.8796 * deviation, rel=0.03)
        assert abs(float(weights.mean())) < 0.05 * deviation
        assert layer.bias is not None
        assert not layer.bias.any()


def test_the_fully_connected_layer_is_glorot_uniform() -> None:
    torch.manual_seed(0)
    head = EmbeddingNetwork(NIN(), 256).head
    assert isinstance(head, nn.Linear)
    limit = math.sqrt(6 / (192 + 256))
    assert limit * 0.99 < float(head.weight.detach().abs().max()) <= limit
    assert float(head.weight.detach().std()) == pytest.approx(limit / math.sqrt(3), rel=0.02)
    assert not head.bias.any()


@pytest.mark.parametrize(
    ("width", "channels"), [(0.5, (96, 80, 48)), (1 / 16, (12, 10, 6)), (0.001, (1, 1, 1))]
)
def test_width(width: float, channels: tuple[int, int, int]) -> None:
    wide, middle, narrow = channels
    network = NIN(width)
    outputs = [layer.out_channels for layer in network.layers if isinstance(layer, nn.Conv2d)]
    assert outputs == [wide, middle, narrow, wide, wide, wide, wide, wide]
    assert network.features == wide
    assert tuple(network(torch.rand(2, 3, 8, 8)).shape) == (2, wide)


@pytest.mark.parametrize("width", [0, -1.0, 17, float("nan")])
def test_refuses_widths(width: float) -> None:
    with pytest.raises(InputError, match="width is"):
        NIN(width)


def test_memory_is_channels_last() -> None:
    network = NIN(width=1 / 16).eval()
    for layer in network.layers:
        if isinstance(layer, nn.Conv2d):
            assert layer.weight.is_contiguous(memory_format=torch.channels_last)
    images = torch.rand(2, 3, 8, 8)
    layouts = []
    network.layers[0].register_forward_hook(
        lambda layer, inputs, output: layouts.append(
            inputs[0].is_contiguous(memory_format=torch.channels_last)
        )
    )
    one = network(images)
    other = network(images.contiguous(memory_format=torch.channels_last))
    assert layouts == [True, True]
    assert torch.equal(one, other)


def test_dropout() -> None:
    assert [layer.p for layer in NIN().layers if isinstance(layer, nn.Dropout)] == [0.5, 0.5]
    network = NIN(width=1 / 16, dropout=0.0)
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(network.train()(images), network.eval()(images))
    dropped = NIN(width=1 / 4)
    assert not torch.equal(dropped.train()(images), dropped.eval()(images))


def test_is_built_again_from_its_description() -> None:
    network = NIN(width=1 / 16, dropout=0.25)
    again = build_backbone(network.spec)
    again.load_state_dict(network.state_dict())
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(network.eval()(images), again.eval()(images))
    assert again.spec == network.spec
