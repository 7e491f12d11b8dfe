"""The paper's network in network (NIN), without batch normalisation."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from flowhash.errors import InputError
from flowhash.networks.layout import set_layout

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
