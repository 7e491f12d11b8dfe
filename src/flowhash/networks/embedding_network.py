"""A backbone with a last layer: what both stages train."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flowhash.errors import InputError
from flowhash.networks.backbones import PlainVectors

SHORTEST = 1e-6  # rows that are shorter count as zero


class EmbeddingNetwork(nn.Module):
    """Features, then one fully connected layer: [n, …] -> [n, outputs].

    Args:
        backbone: makes features; has ``features`` (how many) and ``spec`` (its description).
        outputs: of the last layer: the embedding's length m, or d buckets. None leaves the layer
            out, so that the features are the embedding.
        unit: L2-normalise the outputs, as triplet losses have it.
    """

    def __init__(self, backbone: nn.Module, outputs: int | None, unit: bool = False) -> None:
        super().__init__()
        features = getattr(backbone, "features", None)
        if not isinstance(features, int) or not isinstance(getattr(backbone, "spec", None), dict):
            raise InputError(
                f"the backbone {type(backbone).__name__} does not say how many features it makes; "
                "wrap it: flowhash.networks.custom_backbone(module, features=…)"
            )
        if outputs is not None and outputs < 1:
            raise InputError(f"outputs is {outputs}; expected one or more")
        self.backbone = backbone
        try:
            self.head: nn.Module = (
                nn.Identity() if outputs is None else nn.Linear(features, outputs)
            )
        except RuntimeError as error:  # torch's words for it are many lines
            raise InputError(
                f"a last layer of {features} × {outputs} weights does not fit into memory; choose "
                "fewer outputs, which are buckets of a hash network"
            ) from error
        self.outputs: int = features if outputs is None else outputs
        self.unit = unit
        if isinstance(self.head, nn.Linear):
            nn.init.xavier_uniform_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    @property
    def spec(self) -> dict[str, Any]:
        """What it takes to build it again, without its weights."""
        headless = isinstance(self.head, nn.Identity)
        return {
            "backbone": self.backbone.spec,
            "outputs": None if headless else self.outputs,
            "unit": self.unit,
        }

    @property
    def passes_through(self) -> bool:
        """Whether it gives vectors as they are: no backbone, no last layer."""
        return isinstance(self.backbone, PlainVectors) and isinstance(self.head, nn.Identity)

    def forward(self, items: Tensor) -> Tensor:
        """The embeddings [n, outputs]."""
        return self.finish(self.backbone(items))

    def finish(self, features: Tensor) -> Tensor:
        """The embeddings [n, outputs] of features [n, features]: last layer, then unit length."""
        made: Tensor = self.head(features)
        return unit_vectors(made) if self.unit else made


def unit_vectors(values: Tensor) -> Tensor:
    """Rows of length one; a row that is zero stays zero and gets no gradient.

    A new head maps features that are all zero to zero exactly. The usual division by the length,
    kept from zero by a tiny number, has a gradient of 1e12 there, and one such item in a batch ends
    a training.
    """
    lengths = values.norm(dim=1, keepdim=True)
    scaled = values / lengths.clamp(min=SHORTEST)
    return torch.where(lengths > SHORTEST, scaled, torch.zeros_like(values))


def device_of(name: str) -> torch.device:
    """The device called ``name``; "auto" is the GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise InputError(f'device is {name!r}; expected "auto", "cpu" or "cuda"') from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f'device is {name!r}, but torch finds no GPU here; use "auto" or "cpu"')
    return device
