"""Convolutional backbones: the paper's NIN and a small residual network, and their layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from flowhash.errors import InputError

BLOCK = 16  # channels in a block of oneDNN's: 8 with AVX2, 16 with AVX-512
SLOPE = 1 / 5.5
FEATURES = 192


class NIN(nn.Module):
    """Three groups of convolutions, pooled to 192 features: images [n, 3, 32, 32] -> [n, 192].

    1. 5×5-192, 1×1-160, 1×1-96, max-pool 3/2, dropout
    2. 5×5-192, 1×1-192, 1×1-192, average-pool 3/2, dropout
    3. 3×3-192, 1×1-192 without activation, global average pool, ReLU

    Activations are leaky ReLUs of slope 1/5.5. Pools have TensorFlow's SAME padding, which is
    ``ceil_mode`` here: the windows hang over the right and lower edge, and what is outside counts
    neither in a maximum nor in an average. Weights are drawn as the authors' code did: a truncated
    normal of σ = sqrt(2.6 / fan-in), biases zero.

    Args:
        width: factor on all channel numbers; 1 is the paper's.
        dropout: the probability of dropping a value; 0.5 is the paper's.
    """

    def __init__(self, width: float = 1.0, dropout: float = 0.5) -> None:
        super().__init__()
        if not 0 < width <= 16:
            raise InputError(f"width is {width}; expected a factor above 0, at most 16")
        self.spec: dict[str, Any] = {"name": "nin", "width": width, "dropout": dropout}
        wide, middle, narrow = (max(1, round(count * width)) for count in (FEATURES, 160, 96))
        self.features = wide
        self.layers = nn.Sequential(
            *_convolution(3, wide, 5),
            *_convolution(wide, middle, 1),
            *_convolution(middle, narrow, 1),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Dropout(dropout),
            *_convolution(narrow, wide, 5),
            *_convolution(wide, wide, 1),
            *_convolution(wide, wide, 1),
            nn.AvgPool2d(3, 2, ceil_mode=True),
            nn.Dropout(dropout),
            *_convolution(wide, wide, 3),
            nn.Conv2d(wide, wide, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.ReLU(),
        )
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                _draw(layer)
        self.layout = set_layout(self)

    def forward(self, images: Tensor) -> Tensor:
        """Features [n, features] of images [n, 3, height, width]."""
        return self.layers(images.contiguous(memory_format=self.layout))  # type: ignore[no-any-return]


def _convolution(inputs: int, outputs: int, size: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, size, padding=size // 2),
        nn.LeakyReLU(SLOPE, inplace=True),
    ]


def _draw(layer: nn.Conv2d) -> None:
    deviation = math.sqrt(2.6 / (layer.in_channels * math.prod(layer.kernel_size)))
    nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class Residual(nn.Module):
    """Basic residual blocks with batch normalisation: images [n, 3, h, w] -> [n, features].

    The first stage keeps the image's size, each later one halves it and doubles the channels, then
    comes a global average pool. The defaults take 63 million multiplications for a 32×32 image, a
    third of NIN's.

    Args:
        width: channels of the first stage.
        blocks: residual blocks of each stage.
        stem: stride of the first convolution; 1 for images of 32 pixels, 2 or 4 for larger ones.
    """

    def __init__(
        self, width: int = 32, blocks: Sequence[int] = (1, 1, 1, 1), stem: int = 1
    ) -> None:
        super().__init__()
        blocks = tuple(blocks)
        if width < 1 or not blocks or min(blocks) < 1 or stem < 1:
            raise InputError(
                f"width is {width}, blocks is {blocks}, stem is {stem}; expected positive numbers, "
                "and at least one stage"
            )
        self.spec: dict[str, Any] = {
            "name": "residual", "width": width, "blocks": list(blocks), "stem": stem,
        }  # fmt: skip
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 3, stem, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
        channels = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                outputs = width * 2**stage
                layers.append(_ResidualBlock(channels, outputs, 2 if stage and not block else 1))
                channels = outputs
        self.features = channels
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.layout = set_layout(self)

    def forward(self, images: Tensor) -> Tensor:
        """Features [n, features] of images [n, 3, height, width]."""
        return self.layers(images.contiguous(memory_format=self.layout))  # type: ignore[no-any-return]


class _ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, images: Tensor) -> Tensor:
        inner = functional.relu(self.first_norm(self.first(images)), inplace=True)
        inner = self.second_norm(self.second(inner))
        return functional.relu(inner + self.shortcut(images), inplace=True)


def set_layout(network: nn.Module) -> torch.memory_format:
    """Put the weights into the layout that the network's images should have, and return it.

    oneDNN's and cuDNN's convolutions are fastest on channels-last, by nearly half on a CPU. But
    oneDNN (3.12, as torch 2.13 brings it; https://github.com/uxlfoundation/oneDNN/issues/6035) has
    a fault in the gradient of a strided 1×1 convolution's weights, as in a residual network's
    shortcuts: on channels-last images of fewer channels than a block has it writes behind its
    workspace. Seen here with AVX2, stride 2 and 2 to 7 channels going in: the process ends. The
    report also has wrong gradients and a process that hangs, and AVX-512 below 16 channels, where
    the one machine that was tried here showed nothing.

    No write out of place was found, with AVX2 and AVX-512 and 1 to 16 channels in and out, on
    contiguous images, in the forward pass, in the gradient of the images, and in 1×1 convolutions
    of stride 1, 3×3 and 5×5 ones of stride 1 and 2; nor from 8 channels on, where gradients were
    right too. The report did not look at channels that fill their last block in part. So a network
    with such a convolution is contiguous unless its blocks are full.
    """
    layout = torch.channels_last
    for layer in network.modules():
        if not isinstance(layer, nn.Conv2d) or set(layer.kernel_size) != {1}:
            continue
        if max(layer.stride) > 1 and layer.in_channels % BLOCK:
            layout = torch.contiguous_format
    network.to(memory_format=layout)  # type: ignore[call-overload]
    return layout
