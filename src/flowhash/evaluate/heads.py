"""Last layers on a frozen backbone, all learned from its features, which are computed once.

A hash stage with a frozen backbone sends the same images through the same network step after step.
Here augmented copies of the training set go through it once, and the layers of all losses and k
learn from what comes out, as from any array of vectors.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flowhash.data import Augmentation, LabelledItems, Preprocessing, Splits
from flowhash.data.items import ArrayItems
from flowhash.encoder import Encoder
from flowhash.evaluate.encoding import Encodings
from flowhash.learn import Settings, train, train_base
from flowhash.learn.stages import hash_start
from flowhash.networks import EmbeddingNetwork, build_backbone
from flowhash.networks.mirrored import Mirrored


@dataclass(frozen=True)
class Heads:
    """Trains last layers on a network's features.

    Attributes:
        network: whose backbone is frozen; its last layer is one base to rank by.
        splits: of images.
        features: splits of the backbone's features, from ``feature_splits``.
        device: "auto", "cpu" or "cuda".
        quiet: no progress on the terminal.
    """

    network: EmbeddingNetwork
    splits: Splits
    features: Splits
    device: str = "auto"
    quiet: bool = False

    def base(self, settings: Settings, folder: Path) -> EmbeddingNetwork:
        """The backbone with a new last layer for the embedding, learned by stage 1."""
        learned = train_base(
            self.features, _linear(settings), folder, device=self.device, quiet=self.quiet
        )
        return self._whole(learned)

    def encoder(
        self,
        settings: Settings,
        folder: Path,
        base: EmbeddingNetwork,
        directions: NDArray[np.float32],
    ) -> Encoder:
        """The base with a hash network on the same backbone, learned by Algorithm 1."""
        learned = train(
            self.features, _linear(settings), folder, base=self._short(base),
            directions=directions, device=self.device, quiet=self.quiet,
        )  # fmt: skip
        return Encoder(
            base, self._whole(learned.hash), self.splits.preprocessing, settings.active,
            self.splits.train.class_names,
        )  # fmt: skip

    def start(
        self, settings: Settings, base: EmbeddingNetwork, directions: NDArray[np.float32]
    ) -> EmbeddingNetwork:
        """The hash network of ``encoder`` before its first step."""
        started = hash_start(
            self.features, _linear(settings), self._short(base), directions, self.device
        )
        return self._whole(started)

    def _whole(self, short: EmbeddingNetwork) -> EmbeddingNetwork:
        """The whole network, from images, whose last layer learned from features."""
        backbone = copy.deepcopy(self.network.backbone)
        whole = EmbeddingNetwork(backbone, short.outputs, short.unit)
        whole.head.load_state_dict(short.head.state_dict())
        return whole.eval()

    def _short(self, whole: EmbeddingNetwork) -> EmbeddingNetwork:
        """The last layer of a whole network, from features."""
        size = whole.backbone.features
        assert isinstance(size, int)
        plain = build_backbone({"name": "linear", "inputs": size})
        short = EmbeddingNetwork(plain, whole.outputs, whole.unit)
        short.head.load_state_dict(whole.head.state_dict())
        return short.eval()


def mirrored(network: EmbeddingNetwork) -> EmbeddingNetwork:
    """The same network, which looks at each image and at its mirror image."""
    twice = EmbeddingNetwork(Mirrored(network.backbone), network.outputs, network.unit)
    twice.head.load_state_dict(network.head.state_dict())
    return twice.eval()


def feature_splits(
    splits: Splits,
    network: EmbeddingNetwork,
    encodings: Encodings,
    augmentation: Augmentation | None,
    copies: int,
    seed: int = 0,
) -> Splits:
    """Train and validation as features of a backbone.

    Args:
        splits: of images.
        network: whose backbone makes the features.
        encodings: keeps them.
        augmentation: of the copies.
        copies: augmented copies of the training set, beside the set itself.
        seed: of the augmentation.
    """
    parts = [encodings.features(splits.train, "train", network)]
    if augmentation is not None:
        parts += [
            encodings.features(
                splits.train, f"train-{seed}-{number}", network, augmentation, (seed, number)
            )
            for number in range(1, copies + 1)
        ]
    labels = np.tile(splits.train.labels, len(parts))
    held_out = encodings.features(splits.validation, "validation", network)
    return Splits(
        _vectors(np.concatenate(parts), labels, splits.train),
        _vectors(held_out, splits.validation.labels, splits.validation),
        None,
        Preprocessing("vectors"),
    )


def _vectors(
    features: NDArray[np.float32], labels: NDArray[np.int64], like: LabelledItems
) -> LabelledItems:
    source = f"{like.source} (features)"
    return LabelledItems(ArrayItems(features), labels, like.class_names, source)


def _linear(settings: Settings) -> Settings:
    """The same settings for vectors, with nothing before the last layer."""
    return replace(settings, backbone={"name": "linear"}, augment=None)
