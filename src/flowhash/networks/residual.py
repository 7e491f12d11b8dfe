"""A small residual network that two cores train to good embeddings in half an hour."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from flowhash.errors import InputError
from flowhash.networks.layout import set_layout


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
        self, width: int = 32, blocks: tuple[int, ...] = (1, 1, 1, 1), stem: int = 1
    ) -> None:
        super().__init__()
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
                layers.append(_Block(channels, outputs, 2 if stage and not block else 1))
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


class _Block(nn.Module):
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
