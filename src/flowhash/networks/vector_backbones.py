"""Backbones for arrays of embeddings: none at all, or a few dense layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from flowhash.errors import InputError


class PlainVectors(nn.Module):
    """Vectors as they are: [n, inputs] -> [n, inputs]. With a head it is a linear map."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.spec: dict[str, Any] = {"name": "linear", "inputs": inputs}
        self.features = inputs

    def forward(self, vectors: Tensor) -> Tensor:
        """The vectors."""
        return vectors


class Dense(nn.Module):
    """Dense layers with ReLUs: [n, inputs] -> [n, hidden[-1]].

    Args:
        inputs: numbers in a vector.
        hidden: outputs of each layer.
        dropout: the probability of dropping a value after each layer.
    """

    def __init__(self, inputs: int, hidden: tuple[int, ...] = (256,), dropout: float = 0.0) -> None:
        super().__init__()
        if not hidden or min(hidden) < 1:
            raise InputError(f"hidden is {hidden}; expected the sizes of one or more layers")
        self.spec: dict[str, Any] = {
            "name": "mlp", "inputs": inputs, "hidden": list(hidden), "dropout": dropout,
        }  # fmt: skip
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(inputs, size), nn.ReLU(inplace=True)]
            if dropout:
                layers.append(nn.Dropout(dropout))
            inputs = size
        self.features = inputs
        self.layers = nn.Sequential(*layers)

    def forward(self, vectors: Tensor) -> Tensor:
        """Features [n, features] of vectors [n, inputs]."""
        return self.layers(vectors)  # type: ignore[no-any-return]
