"""The networks of a plan: found in their folder, or trained."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flowhash.data import ArrayItems, Augmentation, LabelledItems, Preprocessing, Splits
from flowhash.encoder import Encoder
from flowhash.evaluate.comparison.methods import Linear, fit_classifier
from flowhash.evaluate.reproduction.encoding_cache import Encodings
from flowhash.evaluate.reproduction.experiment_plan import ExperimentPlan
from flowhash.learn import (
    Checkpoints,
    Settings,
    hash_start,
    read_journal,
    train,
    train_base,
    training_seconds,
)
from flowhash.networks import EmbeddingNetwork, MirroredBackbone, build_backbone


class Trainings:
    """The trainings of one plan with one seed; what is finished is not trained again.

    Args:
        plan: what to train.
        splits: what to learn from.
        folder: of this seed; a trunk in it serves all losses.
        device: "auto", "cpu" or "cuda".
        quiet: no progress on the terminal.
        first: the trainings of another seed, whose base serves here too; None trains one.
    """

    def __init__(
        self,
        plan: ExperimentPlan,
        splits: Splits,
        folder: Path,
        device: str = "auto",
        quiet: bool = False,
        first: Trainings | None = None,
    ) -> None:
        self.plan, self.splits, self.folder = plan, splits, folder
        self.device, self.quiet, self.first = device, quiet, first
        self.own = folder / plan.experiment.loss
        self.encodings = Encodings(folder / "encoded", splits.preprocessing, device, quiet)
        if first is not None:
            self.encodings = first.encodings
        self._base: EmbeddingNetwork | None = None
        self._network: EmbeddingNetwork | None = None
        self._layers: Heads | None = None
        self._encoders: dict[int, Encoder] = {}
        self._starts: dict[int, EmbeddingNetwork] = {}
        self._free: dict[int, EmbeddingNetwork] = {}
        self._tuned: EmbeddingNetwork | None = None
        self._linear: Linear | None = None

    @property
    def base_folder(self) -> Path:
        """Where stage 1 of this loss is."""
        return self.folder / "trunk" if self.plan.base is None else self.own / "base"

    def base(self) -> EmbeddingNetwork:
        """The base network: the trunk, or a last layer of this loss on it."""
        if self.first is not None:
            return self.first.base()
        if self._base is None:
            if self.plan.trunk is None:
                assert self.plan.base is not None
                self._base = self._images(self.plan.base, self.own / "base")
            elif self.plan.base is None:
                self._base = self._trunk()
            else:
                self._base = self._heads().base(self.plan.base, self.own / "base")
        return self._base

    def encoder(self, active: int) -> Encoder:
        """The base with the hash network of one k."""
        if active not in self._encoders:
            settings = dataclasses.replace(self.plan.hash, active=active)
            folder = self.own / f"k{active}"
            if self.plan.trunk is None:
                self._encoders[active] = self._whole(settings, folder)
            else:
                self._encoders[active] = self._heads().encoder(
                    settings, folder, self.base(), self.classifier().weights
                )
        return self._encoders[active]

    def free(self, active: int) -> EmbeddingNetwork | None:
        """The hash network of one k that was trained with λ = 0; None if the plan has none."""
        if not self.plan.free:
            return None
        if active not in self._free:
            settings = dataclasses.replace(self.plan.hash, active=active, penalty=0.0)
            self._free[active] = self._whole(settings, self.own / f"k{active}-free").hash
        return self._free[active]

    def _whole(self, settings: Settings, folder: Path) -> Encoder:
        """Stage 2 from the base, backbone and all."""
        return train(
            self.splits, settings, folder, base=self.base(), device=self.device, quiet=self.quiet
        )

    def start(self, active: int) -> EmbeddingNetwork | None:
        """The hash network of one k before its first step; None where it is drawn at random."""
        settings = dataclasses.replace(self.plan.hash, active=active)
        if settings.hash.start != "classes":
            return None
        if active not in self._starts:
            if self.plan.trunk is None:
                self._starts[active] = hash_start(
                    self.splits, settings, self.base(), device=self.device
                )
            else:
                self._starts[active] = self._heads().start(
                    settings, self.base(), self.classifier().weights
                )
        return self._starts[active]

    def _images(self, settings: Settings, folder: Path) -> EmbeddingNetwork:
        return train_base(self.splits, settings, folder, device=self.device, quiet=self.quiet)

    def _trunk(self) -> EmbeddingNetwork:
        if self._network is None:
            assert self.plan.trunk is not None
            trained = self._images(self.plan.trunk, self.folder / "trunk")
            self._network = mirrored(trained) if self.plan.mirrored else trained
        return self._network

    def _heads(self) -> Heads:
        if self._layers is None:
            settings = self.plan.hash
            augmentation = None if settings.augment is None else Augmentation(**settings.augment)
            features = feature_splits(
                self.splits, self._trunk(), self.encodings, augmentation, self.plan.copies,
                settings.seed,
            )  # fmt: skip
            self._layers = Heads(self._trunk(), self.splits, features, self.device, self.quiet)
        return self._layers

    def classifier(self) -> Linear:
        """Scores of classes from base embeddings.

        Stage 1's own where that was cross-entropy, else one that is fitted on the training set's
        embeddings.
        """
        if self._linear is None:
            self._linear = self._classifier()
        return self._linear

    def tuned_classifier(self) -> EmbeddingNetwork | None:
        """The classifier that was fine-tuned from the base; None if the plan has none."""
        if self._tuned is None and self.plan.classifier is not None:
            self._tuned = self._whole(self.plan.classifier, self.own / "classifier").hash
        return self._tuned

    def scores(self, items: LabelledItems, name: str) -> NDArray[np.float32]:
        """Of the classes for a split [n, classes]: the rival's, or a linear classifier's."""
        rival = self.tuned_classifier()
        if rival is not None:
            return self.encoded(items, name, rival)
        return self.classifier().scores(self.encoded(items, name, self.base()))

    def other_length(self) -> EmbeddingNetwork:
        """The base whose outputs have length one where it has them raw, and the reverse."""
        other = copy.copy(self.base())
        other.unit = not other.unit
        return other

    def _classifier(self) -> Linear:
        weights = Checkpoints(self.base_folder / "base").load("best")
        stage = (self.plan.base or self.plan.trunk or self.plan.hash).base
        if weights is not None and stage is not None and stage.loss == "cross-entropy":
            unit = torch.nn.functional.normalize(weights.part("loss")["weight"])
            return Linear(unit.cpu().numpy(), np.zeros(len(unit), np.float32))
        items = self.splits.train
        embeddings = self.encoded(items, "train", self.base())
        return fit_classifier(embeddings, items.labels, items.classes, self.plan.hash.seed)

    def encoded(
        self, items: LabelledItems, name: str, network: EmbeddingNetwork
    ) -> NDArray[np.float32]:
        """A network's outputs for a split [n, outputs]; kept in the folder."""
        return self.encodings.outputs(items, name, network)

    def seconds(self) -> dict[str, float]:
        """How long each training ran, interruptions left out, by its name."""
        places = {
            "trunk": self.folder / "trunk" / "base",
            "base": self.own / "base" / "base",
            **{f"k = {k}": self.own / f"k{k}" / "hash" for k in self.plan.experiment.active},
            **{
                f"k = {k}, λ = 0": self.own / f"k{k}-free" / "hash"
                for k in self.plan.experiment.active
            },
            "classifier": self.own / "classifier" / "hash",
        }
        found = {name: training_seconds(place) for name, place in places.items()}
        spent = {name: seconds for name, seconds in found.items() if seconds is not None}
        if self.first is None:  # other seeds encode into the same folder
            spent["encoding"] = self.encodings.seconds()
        return spent

    def curves(self) -> dict[str, list[dict[str, Any]]]:
        """The lines of each training's ``metrics.jsonl``, by its name."""
        places = {
            "stage 1": self.base_folder,
            **{f"k = {k}": self.own / f"k{k}" for k in self.plan.experiment.active},
        }
        found = {name: read_journal(place / "metrics.jsonl") for name, place in places.items()}
        return {name: lines for name, lines in found.items() if lines}


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
    twice = EmbeddingNetwork(MirroredBackbone(network.backbone), network.outputs, network.unit)
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
