"""A backbone that looks at an image and at its mirror image."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from flowhash.errors import InputError


class Mirrored(nn.Module):
    """The mean of a backbone's features of an image and of its mirror image, left to right.

    It is for searching, after a training that mirrored images at random: two forward passes for
    features that chance moves less.

    Args:
        backbone: takes images [n, 3, height, width].
    """

    passes = 2

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        if isinstance(backbone, Mirrored):  # each more would double the work for nothing
            raise InputError("the backbone is mirrored already; mirror it once")
        self.inner = backbone
        self.features = backbone.features
        self.spec: dict[str, Any] = {"name": "mirrored", "backbone": backbone.spec}

    def forward(self, images: Tensor) -> Tensor:
        """Features [n, features]."""
        made: Tensor = (self.inner(images) + self.inner(images.flip(3))) / 2
        return made
