"""Small encoders for tests. As a script: saves two of them in turns, until it is killed."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flowhash.data.preprocess import Preprocessing
from flowhash.encoder import Encoder
from flowhash.networks import BucketOrder, EmbeddingNetwork, build_backbone, custom_backbone

IMAGES = ("nin", "residual", "vit", "custom")
KINDS = (*IMAGES, "mlp", "linear")
SIZE = (16, 14)  # not a square, so that height and width are not taken for each other
DIM = 5
CLASSES = ("ant", "bée", "cow")


class Own(nn.Module):
    """A user's own network."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, channels, 3)

    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = self.layer(images)
        return made.mean((2, 3)).tanh()


def backbone(kind: str) -> nn.Module:
    if kind == "custom":
        return custom_backbone(Own(), features=3)
    if kind == "vit":
        # More than ten labels: numbers and strings order them differently.
        config = {
            "model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8,
            "num_attention_heads": 2, "image_size": list(SIZE), "patch_size": 2,
            "id2label": {number: f"label {number}" for number in range(12)},
        }  # fmt: skip
        return build_backbone({"name": "transformers", "config": config})
    specs: dict[str, dict[str, Any]] = {
        "nin": {"name": "nin", "width": 0.05},
        "residual": {"name": "residual", "width": 4, "blocks": [1, 1]},
        "mlp": {"name": "mlp", "inputs": DIM, "hidden": [7]},
        "linear": {"name": "linear", "inputs": DIM},
    }
    return build_backbone(specs[kind])


def preprocessing_of(kind: str) -> Preprocessing:
    random = np.random.default_rng(3)
    if kind in IMAGES:
        mean = random.uniform(0.3, 0.6, (*SIZE, 3)).astype(np.float32)
        return Preprocessing("images", SIZE, 1 / 255, mean, np.full(3, 0.25, np.float32))
    mean = random.normal(size=DIM).astype(np.float32)
    return Preprocessing("vectors", None, 1.0, mean, np.float32(1.5) * np.ones((), np.float32))


def make(
    kind: str,
    seed: int = 0,
    *,
    shared: bool = False,
    base: bool = True,
    ordered: bool = False,
    **changes: Any,
) -> Encoder:
    """An encoder with 4 numbers to rank by and 11 buckets, 2 of them active."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = backbone(kind)
        hashing = EmbeddingNetwork(module, 11)
        if ordered:
            hashing.order = BucketOrder(torch.rand(3, 11).softmax(0), 4.0)
        other = copy.deepcopy(module) if shared else backbone(kind)
        ranking = EmbeddingNetwork(other, 4, unit=True) if base else None
        for network in (hashing, ranking):
            if network is not None:
                stir(network)
    if shared and ranking is not None:
        ranking.backbone.load_state_dict(hashing.backbone.state_dict())
    arguments: dict[str, Any] = {
        "preprocessing": preprocessing_of(kind), "active": 2, "class_names": CLASSES,
    }  # fmt: skip
    return Encoder(ranking, hashing, **(arguments | changes))


def stir(network: nn.Module) -> None:
    """Running means and biases as after training, not all zero or one."""
    for name, value in network.state_dict().items():
        if name.endswith(("running_mean", "running_var", "bias")):
            value.copy_(torch.rand_like(value) + 0.5)


def items_of(kind: str, count: int, seed: int = 0) -> NDArray[Any]:
    random = np.random.default_rng(seed)
    if kind in IMAGES:
        return random.integers(0, 256, (count, *SIZE, 3), dtype=np.uint8)
    return random.normal(size=(count, DIM)).astype(np.float32)


def save_for_ever(folder: Path) -> None:
    pair = [make("mlp", seed) for seed in (1, 2)]
    pair[0].save(folder)
    print("ready", flush=True)
    turn = 1
    while True:
        pair[turn % 2].save(folder)
        turn += 1


if __name__ == "__main__":
    save_for_ever(Path(sys.argv[1]))
