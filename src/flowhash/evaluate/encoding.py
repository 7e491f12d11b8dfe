"""Outputs of networks for whole splits, kept on disk; a backbone that several share runs once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from flowhash.bars import tracked
from flowhash.data import Augmentation, LabelledItems, Preprocessing
from flowhash.networks import EmbeddingNetwork
from flowhash.networks.embedding import device_of
from flowhash.networks.inference import outputs

BATCH = 500  # images that go through a network at once
ROWS = 10_000  # features that go through a last layer at once


class Encodings:
    """Makes and keeps features of backbones and outputs of networks, by their weights.

    Args:
        folder: where they are kept.
        preprocessing: what the networks take.
        device: "auto", "cpu" or "cuda".
    """

    def __init__(self, folder: Path, preprocessing: Preprocessing, device: str = "auto") -> None:
        self.folder, self.preprocessing = folder, preprocessing
        self.device = device_of(device)

    def outputs(
        self, items: LabelledItems, name: str, network: EmbeddingNetwork
    ) -> NDArray[np.float32]:
        """A network's outputs [n, outputs]; its backbone's features are computed once."""

        def make() -> NDArray[np.float32]:
            return self._finished(self.features(items, name, network), network)

        return self._kept(f"outputs-{name}-{_split(items)}-{digest(network)}", make)

    def features(
        self,
        items: LabelledItems,
        name: str,
        network: EmbeddingNetwork,
        augmentation: Augmentation | None = None,
        seed: tuple[int, ...] = (),
    ) -> NDArray[np.float32]:
        """A backbone's features [n, features], of images or of augmented ones.

        Args:
            items: a split.
            name: of it, in the file's name.
            network: whose backbone.
            augmentation: what is done to each image, or None.
            seed: of the augmentation.
        """

        def batch(start: int) -> NDArray[np.float32]:
            taken = items.take(np.arange(start, min(start + BATCH, len(items))))
            if augmentation is None:
                return self.preprocessing(taken)
            draws = augmentation.draw(len(taken), np.random.default_rng([*seed, start]))
            return self.preprocessing.augmented(taken, draws, augmentation)

        def make() -> NDArray[np.float32]:
            starts = range(0, len(items), BATCH)
            batches = (batch(start) for start in starts)
            made = outputs([network.backbone.to(self.device)], batches, self.device)
            shown = tracked(made, f"encode {name}", len(starts))
            return np.concatenate([part for [part] in shown])

        return self._kept(f"features-{name}-{_split(items)}-{digest(network.backbone)}", make)

    def _kept(self, name: str, make: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
        """What the file holds, mapped; made where there is none, and put in place in one step."""
        path = self.folder / f"{name}.npy"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part.npy")
            np.save(part, make(), allow_pickle=False)
            part.replace(path)
        found: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
        return found

    def _finished(
        self, features: NDArray[np.float32], network: EmbeddingNetwork
    ) -> NDArray[np.float32]:
        network = network.to(self.device).eval()
        parts = []
        with torch.inference_mode():
            for start in range(0, len(features), ROWS):
                rows = torch.from_numpy(np.array(features[start : start + ROWS]))
                parts.append(network.finish(rows.to(self.device)).float().cpu().numpy())
        return np.concatenate(parts)


def _split(items: LabelledItems) -> str:
    """What tells two splits of one name apart, without reading all items."""
    return hashlib.sha256(np.ascontiguousarray(items.labels).tobytes()).hexdigest()[:8]


def digest(network: nn.Module) -> str:
    """What tells the weights of two networks apart."""
    found = hashlib.sha256()
    for name, value in network.state_dict().items():
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
