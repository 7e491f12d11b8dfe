"""The networks of a plan: found in their folder, or trained."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

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

Given = ParamSpec("Given")
Made = TypeVar("Made")


def _once(
    method: Callable[Concatenate[Trainings, Given], Made],
) -> Callable[Concatenate[Trainings, Given], Made]:
    """What the method makes of its arguments is kept in the instance."""

    @wraps(method)
    def found(trainings: Trainings, /, *given: Given.args, **named: Given.kwargs) -> Made:
        place = (method.__name__, given, *named.items())
        if place not in trainings.made:
            trainings.made[place] = method(trainings, *given, **named)
        made: Made = trainings.made[place]
        return made

    return found


class Trainings:
    """The trainings of one plan with one seed; what is finished is not trained again.

    With a trunk, only last layers are learned, from features of its frozen backbone; what is
    handed out are whole networks, which take images.

    Args:
        plan: what to train.
        splits: what to learn from.
        folder: of this seed; a trunk in it serves all losses.
        device: "auto", "cpu" or "cuda".
        quiet: no progress on the terminal.
        first: the trainings of another seed, whose base serves here too; rivals are not trained
            again then. None trains all.
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
        self.made: dict[Any, Any] = {}  # by the method and its arguments

    @property
    def base_folder(self) -> Path:
        """Where stage 1 of this loss is."""
        return self.folder / "trunk" if self.plan.base is None else self.own / "base"

    @_once
    def base(self) -> EmbeddingNetwork:
        """The base network: the trunk, or a last layer of this loss on it, or one without trunk."""
        if self.first is not None:
            return self.first.base()
        if self.plan.base is None:
            return self._needed_trunk()
        if self.plan.trunk is None:
            return self._stage_1(self.splits, self.plan.base, self.own / "base")
        return self._whole(
            self._stage_1(self.features(), _linear(self.plan.base), self.own / "base")
        )

    @_once
    def trunk(self) -> EmbeddingNetwork | None:
        """Stage 1 that other losses share; None if the plan has none."""
        if self.plan.trunk is None:
            return None
        trained = self._stage_1(self.splits, self.plan.trunk, self.folder / "trunk")
        return mirrored(trained) if self.plan.mirrored else trained

    def _needed_trunk(self) -> EmbeddingNetwork:
        trunk = self.trunk()
        assert trunk is not None  # callers know that the plan has one
        return trunk

    def _stage_1(self, splits: Splits, settings: Settings, folder: Path) -> EmbeddingNetwork:
        return train_base(splits, settings, folder, device=self.device, quiet=self.quiet)

    @_once
    def encoder(self, active: int) -> Encoder:
        """The base with the hash network of one k."""
        return self._stage_2(replace(self.plan.hash, active=active), f"k{active}")

    @_once
    def free(self, active: int) -> EmbeddingNetwork | None:
        """The hash network of one k that was trained with λ = 0; None if there is none."""
        if not self.plan.free or self.first is not None:
            return None
        settings = replace(self.plan.hash, active=active, penalty=0.0)
        return self._stage_2(settings, f"k{active}-free").hash

    @_once
    def tuned_classifier(self) -> EmbeddingNetwork | None:
        """The classifier that was fine-tuned from the base; None if there is none."""
        if self.plan.classifier is None or self.first is not None:
            return None
        return self._stage_2(self.plan.classifier, "classifier").hash

    def _stage_2(self, settings: Settings, name: str) -> Encoder:
        """Algorithm 1 from the base, backbone and all; on a trunk the last layer alone."""
        folder = self.own / name
        given: dict[str, Any] = {"device": self.device, "quiet": self.quiet}
        if self.plan.trunk is None:
            return train(self.splits, settings, folder, base=self.base(), **given)
        learned = train(
            self.features(), _linear(settings), folder, base=_last_layer(self.base()),
            directions=self.classifier().weights, **given,
        )  # fmt: skip
        return Encoder(
            self.base(), self._whole(learned.hash), self.splits.preprocessing, settings.active,
            self.splits.train.class_names,
        )  # fmt: skip

    @_once
    def start(self, active: int) -> EmbeddingNetwork | None:
        """The hash network of one k before its first step; None where it is drawn at random."""
        settings = replace(self.plan.hash, active=active)
        if settings.hash.start != "classes":
            return None
        if self.plan.trunk is None:
            return hash_start(self.splits, settings, self.base(), device=self.device)
        base, ways = _last_layer(self.base()), self.classifier().weights
        return self._whole(hash_start(self.features(), _linear(settings), base, ways, self.device))

    @_once
    def classifier(self) -> Linear:
        """Scores of classes from base embeddings.

        Stage 1's own where that was cross-entropy, else one that is fitted on the training set's
        embeddings.
        """
        weights = Checkpoints(self.base_folder / "base").load("best")
        stage = (self.plan.base or self.plan.trunk or self.plan.hash).base
        if weights is not None and stage is not None and stage.loss == "cross-entropy":
            unit = nn.functional.normalize(weights.part("loss")["weight"])
            return Linear(unit.cpu().numpy(), np.zeros(len(unit), np.float32))
        items = self.splits.train
        embeddings = self.encoded(items, "train", self.base())
        return fit_classifier(embeddings, items.labels, items.classes, self.plan.hash.seed)

    def scores(self, items: LabelledItems, name: str) -> NDArray[np.float32] | None:
        """Of the classes for a split [n, classes]: the rival's, or a linear classifier's.

        None where the plan has a rival that is not trained here.
        """
        if self.plan.classifier is None:
            return self.classifier().scores(self.encoded(items, name, self.base()))
        rival = self.tuned_classifier()
        return None if rival is None else self.encoded(items, name, rival)

    def other_length(self) -> EmbeddingNetwork:
        """The base whose outputs have length one where it has them raw, and the reverse."""
        other = copy.copy(self.base())
        other.unit = not other.unit
        return other

    def encoded(
        self, items: LabelledItems, name: str, network: EmbeddingNetwork
    ) -> NDArray[np.float32]:
        """A network's outputs for a split [n, outputs]; kept in the folder."""
        return self.encodings.outputs(items, name, network)

    @_once
    def features(self) -> Splits:
        """Train and validation as features of the trunk's backbone, augmented copies too."""
        items, held_out, seed = self.splits.train, self.splits.validation, self.plan.hash.seed
        trunk = self._needed_trunk()
        parts = [self.encodings.features(items, "train", trunk)]
        if self.plan.hash.augment is not None:
            augmentation = Augmentation(**self.plan.hash.augment)
            parts += [
                self.encodings.features(
                    items, f"train-{seed}-{number}", trunk, augmentation, (seed, number)
                )
                for number in range(1, self.plan.copies + 1)
            ]
        validation = self.encodings.features(held_out, "validation", trunk)
        labels = np.tile(items.labels, len(parts))
        return Splits(
            _vectors(np.concatenate(parts), labels, items),
            _vectors(validation, held_out.labels, held_out),
            None,
            Preprocessing("vectors"),
        )

    def _whole(self, last_layer: EmbeddingNetwork) -> EmbeddingNetwork:
        """The trunk, from images, with a last layer that was learned from features."""
        return _with_backbone(copy.deepcopy(self._needed_trunk().backbone), last_layer)

    def seconds(self) -> dict[str, float]:
        """How long each training ran, interruptions left out, by its name."""
        active = self.plan.experiment.active
        places = {
            "trunk": self.folder / "trunk" / "base",
            "base": self.own / "base" / "base",
            **{f"k = {k}": self.own / f"k{k}" / "hash" for k in active},
            **{f"k = {k}, λ = 0": self.own / f"k{k}-free" / "hash" for k in active},
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


def _with_backbone(backbone: nn.Module, network: EmbeddingNetwork) -> EmbeddingNetwork:
    """Another backbone before the last layer of a network."""
    made = EmbeddingNetwork(backbone, network.outputs, network.unit, copy.deepcopy(network.order))
    made.head.load_state_dict(network.head.state_dict())
    return made.eval()


def mirrored(network: EmbeddingNetwork) -> EmbeddingNetwork:
    """The same network, which looks at each image and at its mirror image."""
    return _with_backbone(MirroredBackbone(network.backbone), network)


def _last_layer(network: EmbeddingNetwork) -> EmbeddingNetwork:
    """The last layer of a whole network, from features."""
    plain = build_backbone({"name": "linear", "inputs": network.backbone.features})
    return _with_backbone(plain, network)


def _linear(settings: Settings) -> Settings:
    """The same settings for vectors, with nothing before the last layer."""
    return replace(settings, backbone={"name": "linear"}, augment=None)


def _vectors(
    features: NDArray[np.float32], labels: NDArray[np.int64], like: LabelledItems
) -> LabelledItems:
    source = f"{like.source} (features)"
    return LabelledItems(ArrayItems(features), labels, like.class_names, source)
