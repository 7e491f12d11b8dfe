"""The two stages of a run: their networks, starts, batches, losses and validation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from flowhash.data import Augmentation, LabelledItems, Preprocessing, Splits
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.learn.adaptation import MOST_CLASSES
from flowhash.learn.batches import Batches, Sample
from flowhash.learn.class_groups import (
    LEAST,
    ClassGroups,
    even_halves,
    given_groups,
    shared_out,
    split_classes,
    whole_classes,
)
from flowhash.learn.discriminant import discriminant
from flowhash.learn.losses import CodeLoss, CrossEntropyLoss, MetricLoss, SoftmaxLoss, make_loss
from flowhash.learn.samplers import (
    ClassBalancedSampler,
    PairSampler,
    enough_of_each,
    share,
)
from flowhash.learn.settings import Settings, Stage
from flowhash.learn.training.checkpoints import ORDER, Checkpoints, PassingCheckpoints
from flowhash.learn.training.process_group import Processes, join_processes
from flowhash.learn.training.training_loop import Coder, StageRun, train_stage
from flowhash.learn.training.validation import SPEED_UP_KEPT, embed, validate
from flowhash.learn.whitening import class_averages, whitened_base
from flowhash.model_files import write_sealed
from flowhash.networks import (
    VECTOR_BACKBONES,
    BucketOrder,
    EmbeddingNetwork,
    PlainVectors,
    build_backbone,
)
from flowhash.quality import search_quality

NUMBERS = {"base": 1, "hash": 2}  # of the stages, for seeds
SAMPLE = 64  # items of a class whose mean is taken, at most
ORDER_WEIGHTS = (4.0, 16.0, 1.0, 0.0)  # of the class in the order of buckets; the first unasked
COSINES = 16.0  # what stage 1's classifier multiplies them by
QUIET = 0.1  # factor on the outputs that no class starts at
SMALL = 0.01  # σ of the authors' hash layer for ImageNet


class Stages:
    """What both stages of one run share."""

    def __init__(
        self,
        splits: Splits,
        settings: Settings,
        folder: Path | None,
        processes: Processes,
        pairs: ArrayLike | None,
        quiet: bool,
        directions: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> None:
        self.splits, self.settings, self.folder = splits, settings, folder
        self.processes, self.quiet = processes, quiet
        self.pairs = None if pairs is None else np.asarray(pairs)
        self.directions = None if directions is None else np.asarray(directions)
        self.groups = None if groups is None else given_groups(groups, splits.train.labels)
        self.classified: EmbeddingNetwork | None = None  # what classifiers' directions are of
        self.checkpoints: dict[str, Checkpoints] = {
            name: PassingCheckpoints() if folder is None else Checkpoints(folder / name)
            for name in NUMBERS
        }

    def check(self, base: Encoder | EmbeddingNetwork | None, hashing: bool = True) -> None:
        """Refuse what does not fit the data now, not after an hour of stage 1.

        Args:
            base: given in place of stage 1, or None.
            hashing: whether stage 2 runs.
        """
        if hashing and self.settings.hash.loss == "cross-entropy":
            raise InputError(
                "the loss of the hash stage is cross-entropy, which has no distance to gate; "
                "choose another for it"
            )
        grouped = self.groups is not None or self.settings.groups != "classes"
        if self.settings.base is not None and self.settings.base.loss == "codes":
            raise InputError(
                'the loss of the base stage is "codes", which aims at codes that only stage 2 '
                "solves for; choose another for it"
            )
        if hashing and grouped and self.settings.hash.loss == "softmax":
            raise InputError(
                "the loss of the hash stage is softmax, whose outputs are the classes, but groups "
                'are asked for; choose groups="classes", or the loss "codes"'
            )
        if hashing and self.settings.rank == "whitened" and self.pairs is not None:
            raise InputError(
                'rank is "whitened", which takes classes, but the data are pairs; choose '
                'rank="base"'
            )
        if hashing and grouped and self.pairs is not None:
            raise InputError(
                "groups are parts of classes, but the data are pairs, each a group of its own; "
                'leave groups out, or choose groups="classes"'
            )
        if hashing and self.settings.revive and self.pairs is not None:
            raise InputError(
                "revive is True, but the data are pairs, none of which comes again, so that nobody "
                "knows which buckets are free; leave revive out"
            )
        if self.settings.base is not None and base is None:
            self._check_stage("base", self.settings.base)
        if hashing:
            self._check_stage("hash", self.settings.hash)

    def _check_stage(self, name: str, stage: Stage) -> None:
        self._loss(stage)
        if name == "hash" and stage.start == "classes":
            self._check_start(stage)
        if name == "hash" and self._cuts_classes():
            classes = min(stage.classes, self.splits.train.classes)
            if stage.loss != "codes":
                self._sample("base", replace(stage, classes=classes))  # names one that is too small
            count = min(stage.classes, self._group_count()) * stage.items
            share(np.zeros(count), 0, self.processes.world)
            return
        positions, _ = self._sample(name, stage)(0)
        share(positions, 0, self.processes.world)

    def _cuts_classes(self) -> bool:
        """Whether stage 2 will make groups that are parts of classes."""
        roomy = self.settings.hash.outputs > self.splits.train.classes
        return self.settings.groups == "auto" and roomy and self.groups is None

    def _group_count(self) -> int:
        """How many groups stage 2 has or will have."""
        train, stage = self.splits.train, self.settings.hash
        if self._cuts_classes():
            sizes = np.unique(train.labels, return_counts=True)[1]
            return int(shared_out(sizes, stage.outputs, self._least).sum())
        return train.classes if self.groups is None else len(self.groups)

    @property
    def _least(self) -> int:
        """Items of a group: as many as a batch wants of it, unless some may come twice."""
        stage = self.settings.hash
        return LEAST if stage.loss == "codes" else stage.items

    def _check_start(self, stage: Stage) -> None:
        if self.pairs is not None:
            raise InputError('start is "classes", but the data are pairs; choose start="random"')
        count = self._group_count()
        named = "class" if count == self.splits.train.classes else "group"
        given, classes = self.directions, self.splits.train.classes
        if given is not None and (given.ndim != 2 or len(given) not in (count, classes)):
            raise InputError(
                f"directions have shape {given.shape}; expected [{count}, m], one for each {named}"
            )

    def base(
        self,
        backbone: nn.Module | None,
        base: Encoder | EmbeddingNetwork | None,
        hashing: bool = True,
    ) -> tuple[EmbeddingNetwork, dict[str, Any]]:
        """The base network, trained here or given, and the record of its training."""
        network, record = self._unwhitened(backbone, base)
        self.classified = network
        if self.settings.rank == "whitened" and hashing:
            train, preprocessing = self.splits.train, self.splits.preprocessing
            network = whitened_base(
                network, train, preprocessing, self.processes.device, self.settings.seed
            )
        return network, record

    def _unwhitened(
        self, backbone: nn.Module | None, base: Encoder | EmbeddingNetwork | None
    ) -> tuple[EmbeddingNetwork, dict[str, Any]]:
        stage = self.settings.base
        if base is not None:
            network = base.base if isinstance(base, Encoder) else base
            if network is None:
                raise InputError(
                    "the encoder given as base ranks with its hash network; it has none"
                )
            return copy.deepcopy(network).to(self.processes.device), {}
        if stage is None:
            return self._as_is(), {}
        loss = self._loss(stage)
        network = EmbeddingNetwork(self._backbone(backbone), stage.outputs, loss.unit)
        network = network.to(self.processes.device)
        run = self._run("base", stage, network, loss)
        run.validate = self._validation(stage, None, None)
        return network, train_stage(run)

    def hash(
        self, base: EmbeddingNetwork, backbone: nn.Module | None, record: dict[str, Any]
    ) -> EmbeddingNetwork:
        """Algorithm 1: a copy of the base network with a new last layer, learned with its codes."""
        settings = self.settings
        network, loss = self.start(base, backbone)
        run = self._run("hash", settings.hash, network, loss)
        if loss.coded:
            counted = settings.outside or isinstance(loss, CodeLoss)
            owners = None if self.groups is None or not counted else self.groups.owners
            run.coder = Coder(settings.active, settings.penalty, owners)
        run.ranker = ranker = None if settings.rank == "hash" else base.eval()
        run.validate = self._validation(settings.hash, settings.active, ranker)
        run.before = record.get("journal", 0)
        train_stage(run)
        if run.coder is not None and isinstance(loss, CodeLoss) and ranker is not None:
            network.order = self._order(network, ranker, run.coder)
        return network

    def _make_groups(self, base: EmbeddingNetwork) -> ClassGroups:
        """What gets a code of its own: classes, or parts of them in the base embedding."""
        train, settings = self.splits.train, self.settings
        if not self._cuts_classes():
            return whole_classes(train.labels)
        made = embed(base, train, self.splits.preprocessing, self.processes.device)
        return split_classes(made, train.labels, settings.hash.outputs, settings.seed, self._least)

    def _order(
        self, network: EmbeddingNetwork, ranker: EmbeddingNetwork, coder: Coder
    ) -> BucketOrder | None:
        """By class first, where classes have several groups; settings or validation say how much.

        Of several weights that with the highest Pr@1 + Pr@16 is taken: the first bucket makes the
        former, those that are opened after it the latter. Weights that lose more than a tenth of
        the largest SUF are left out.
        """
        assert self.groups is not None
        data, device = self.splits.validation, self.processes.device
        classes = np.arange(self.splits.train.classes)
        # With a weight of 0 only an adaptation wants to know whose the buckets are.
        unused = self.settings.class_order == 0 and len(classes) > MOST_CLASSES
        if not self.groups.split or unused:
            return None
        shares = torch.from_numpy(coder.shares(classes, network.outputs))
        given = self.settings.class_order
        if given is not None or len(data) < 2:
            return BucketOrder(shares, ORDER_WEIGHTS[0] if given is None else given).to(device)
        outputs, ranking = (
            embed(each, data, self.splits.preprocessing, device) for each in (network, ranker)
        )
        tops = tuple({1, min(16, len(data) - 1)})

        found = {}
        for weight in ORDER_WEIGHTS:
            scores = BucketOrder(shares, weight)(torch.from_numpy(outputs)).numpy()
            found[weight] = search_quality(scores, ranking, data.labels, self.settings.active, tops)
        enough = SPEED_UP_KEPT * max(each.speed_up for each in found.values())
        quick = [weight for weight in ORDER_WEIGHTS if found[weight].speed_up >= enough]
        best = max(quick, key=lambda weight: sum(found[weight].precision.values()))
        if self.folder is not None and self.processes.first:
            kept = {"pr1": found[best].precision[1], "suf": found[best].speed_up, "weight": best}
            write_sealed(self.folder / "hash" / ORDER, kept)
        return BucketOrder(shares, best).to(device)

    def start(
        self, base: EmbeddingNetwork, backbone: nn.Module | None
    ) -> tuple[EmbeddingNetwork, MetricLoss]:
        """The hash network before the first step of Algorithm 1, and its loss."""
        stage, settings = self.settings.hash, self.settings
        if self.pairs is None and self.groups is None:
            self.groups = self._make_groups(base)
        torch.manual_seed(settings.seed + 1)  # the same head, whether stage 1 ran here or before
        loss = self._loss(stage)
        # Vectors that rank as they are have no network to start from.
        plain = self._ranks_vectors(base)
        features = self._backbone(backbone) if plain else copy.deepcopy(base.backbone)
        for parameter in features.parameters():  # encoders and frozen stages hold them still
            parameter.requires_grad_(True)
        network = EmbeddingNetwork(features, stage.outputs, loss.unit).to(self.processes.device)
        if stage.start == "small":
            start_small(network)
        elif stage.start == "classes":
            directions, space = self._directions(base)
            start_at_classes(network, space, directions, settings.active)
        return network, loss

    def _ranks_vectors(self, base: EmbeddingNetwork) -> bool:
        """Whether vectors rank as they are, or by a linear layer that is whitened."""
        whitened = self.settings.rank == "whitened" and isinstance(base.backbone, PlainVectors)
        return base.passes_through or whitened

    def _directions(self, base: EmbeddingNetwork) -> tuple[Tensor, EmbeddingNetwork]:
        """Of the classes or groups, and the network in whose embedding they are.

        Given, stage 1's classifier, both of the base before it is whitened; or by their means. Of
        vectors that nothing was trained on the spread within classes counts too. Groups of a class
        that has a direction get it, turned towards their own mean.
        """
        stage, trained = self.settings.base, self.checkpoints["base"].load("best")
        groups, classes, own = self.groups, None, False
        if self.directions is not None:
            classes = torch.from_numpy(np.asarray(self.directions, np.float32))
            own = groups is not None and len(classes) == len(groups)
        elif trained is not None and stage is not None and stage.loss == "cross-entropy":
            classes = nn.functional.normalize(trained.part("loss")["weight"])
        if classes is not None:
            space = self.classified or base
            if groups is None or own or not groups.split:
                return classes, space
            return self._group_directions(space, classes.cpu()), space
        train = self.splits.train
        labels = train.labels if groups is None else groups.labels
        if self._ranks_vectors(base):
            vectors = embed(base, train, self.splits.preprocessing, self.processes.device)
            present = np.unique(labels, return_inverse=True)[1]
            return torch.from_numpy(discriminant(vectors, present, self.settings.seed)), base
        return class_directions(base, train, self.splits.preprocessing, labels), base

    def _group_directions(self, base: EmbeddingNetwork, classes: Tensor) -> Tensor:
        """Each class's direction for its groups, plus how their means differ from the class's.

        The outputs are a classifier's then, and inside a class those of the nearest group. They are
        as long as the cosines with which stage 1's cross-entropy is trained.
        """
        assert self.groups is not None
        train, stage, outputs = self.splits.train, self.settings.base, base.outputs
        vectors = embed(base, train, self.splits.preprocessing, self.processes.device)
        names, present = np.unique(train.labels, return_inverse=True)
        whole = class_averages(vectors, present)[np.searchsorted(names, self.groups.owners)]
        apart = class_averages(vectors, self.groups.labels) - whole
        length = float(classes[:, :outputs].norm(dim=1).mean()) or 1.0
        turned = classes[torch.from_numpy(self.groups.owners)] / length
        turned[:, :outputs] += torch.from_numpy(apart).float()
        turned[:, :outputs] /= self._length_of_outputs(base)
        options = {} if stage is None else stage.loss_options
        return float(options.get("scale", COSINES)) * turned

    def _length_of_outputs(self, base: EmbeddingNetwork) -> float:
        """How long the base's outputs are before they are brought to length one, on average."""
        if not base.unit:
            return 1.0
        raw = copy.copy(base)
        raw.unit = False
        some = self.splits.train.subset(np.arange(min(len(self.splits.train), SAMPLE * SAMPLE)))
        made = embed(raw, some, self.splits.preprocessing, self.processes.device)
        return float(np.linalg.norm(made, axis=1).mean()) or 1.0

    def _run(
        self, name: str, stage: Stage, network: EmbeddingNetwork, loss: MetricLoss
    ) -> StageRun:
        settings, processes = self.settings, self.processes
        augmentation = None if settings.augment is None else Augmentation(**settings.augment)
        batches = Batches(
            self.splits.train, self.splits.preprocessing, self._sample(name, stage), augmentation,
            (settings.seed, NUMBERS[name]), processes.rank, processes.world,
        )  # fmt: skip
        return StageRun(
            name, stage, settings, self.folder, processes, self.quiet, network, loss, batches,
            self.checkpoints[name],
        )  # fmt: skip

    def _loss(self, stage: Stage) -> MetricLoss:
        options = stage.loss_options
        if stage.loss in ("cross-entropy", "softmax"):
            self._check_classes(stage)
            loss: MetricLoss = (
                SoftmaxLoss(**options)
                if stage.loss == "softmax"
                else CrossEntropyLoss(self.splits.train.classes, stage.outputs, **options)
            )
        else:
            loss = make_loss(stage.loss, **options)
        return loss.to(self.processes.device)

    def _check_classes(self, stage: Stage) -> None:
        """Refuse a classifier's loss where there is nothing to classify, or no output for it."""
        if self.pairs is not None:
            raise InputError(
                f"the loss is {stage.loss}, which tells classes apart, but the data are pairs; "
                "choose triplet or npairs"
            )
        classes = self.splits.train.classes
        if stage.loss == "softmax" and stage.outputs != classes:
            raise InputError(
                f"the loss is softmax with {stage.outputs} outputs, but there are {classes} "
                "classes; expected one output for each"
            )

    def _backbone(self, given: nn.Module | None) -> nn.Module:
        if given is not None:
            return copy.deepcopy(given)
        spec = dict(self.settings.backbone)
        if spec.get("name") in VECTOR_BACKBONES:
            spec["inputs"] = self._length()
        return build_backbone(spec)

    def _length(self) -> int:
        if self.splits.preprocessing.kind != "vectors":
            raise InputError(
                f"the backbone {self.settings.backbone['name']!r} takes vectors, but the data set "
                "holds images; choose nin, residual, transformers or timm"
            )
        return int(self.splits.train.take(np.zeros(1, np.int64)).shape[1])

    def _as_is(self) -> EmbeddingNetwork:
        """No base network: vectors rank as they are."""
        if self.splits.preprocessing.kind != "vectors":
            raise InputError(
                "there is no base stage, so that items rank as they are, but the data set holds "
                "images; give settings with a base stage, or base="
            )
        return EmbeddingNetwork(build_backbone({"name": "linear", "inputs": self._length()}), None)

    def _sample(self, name: str, stage: Stage) -> Sample:
        seed, labels = self.settings.seed * 2 + NUMBERS[name], self.splits.train.labels
        if self.pairs is not None:
            return PairSampler(self.pairs, stage.batch // 2, seed).batch
        classes = stage.classes
        if name == "hash" and self.groups is not None and stage.loss != "softmax":
            labels = self.groups.labels
        if name == "hash" and self.settings.groups == "auto":
            classes = min(classes, len(np.unique(labels)))  # which follow from buckets and data
        if name == "hash" and stage.loss == "codes":  # which needs no two items of a group
            return _with_repeats(labels, classes, stage.items, seed)
        return ClassBalancedSampler(labels, classes, stage.items, seed).labelled_batch

    def _validation(
        self, stage: Stage, active: int | None, ranker: EmbeddingNetwork | None
    ) -> Callable[[EmbeddingNetwork], dict[str, Any]] | None:
        data, preprocessing = self.splits.validation, self.splits.preprocessing
        if len(data) < 2:
            return None
        device, batch = self.processes.device, stage.batch
        ranking = None
        if ranker is not None and self.processes.first:  # the others wait while it validates
            ranking = embed(ranker, data, preprocessing, device, batch)
        return lambda network: validate(
            network, data, preprocessing, device, active, ranking, batch
        )


def _with_repeats(labels: NDArray[np.int64], classes: int, items: int, seed: int) -> Sample:
    """Batches in which items of a group that has too few come several times."""
    present = np.unique(labels, return_inverse=True)[1]
    chosen = enough_of_each(present, items)
    sampler = ClassBalancedSampler(labels[chosen], classes, items, seed)

    def batch(step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        positions, found = sampler.labelled_batch(step)
        return chosen[positions], found

    return batch


def hash_start(
    splits: Splits,
    settings: Settings,
    base: EmbeddingNetwork,
    directions: ArrayLike | None = None,
    device: str = "auto",
) -> EmbeddingNetwork:
    """The hash network that ``train`` begins stage 2 with: no step is taken, nothing is kept.

    What it finds shows how much of a result was there before Algorithm 1.

    Args:
        splits: what would be learned from.
        settings: what would be done.
        base: the base network that ``train`` would get.
        directions: of the classes, as ``train`` would get them.
        device: "auto", "cpu" or "cuda".
    """
    stages = Stages(splits, settings, None, join_processes(device), None, True, directions)
    stages.check(base)
    with torch.random.fork_rng():  # the caller's random numbers are left alone
        ranker, _ = stages.base(None, base)
        network, _ = stages.start(ranker, None)
    return network.eval()


def start_small(network: EmbeddingNetwork) -> None:
    """Draw the last layer's weights from a truncated normal of σ = 0.01; biases are zero.

    Truncated is TensorFlow's word: what is farther than 2 σ from zero is drawn again.
    """
    assert isinstance(network.head, nn.Linear)
    nn.init.trunc_normal_(network.head.weight, std=SMALL, a=-2 * SMALL, b=2 * SMALL)
    nn.init.zeros_(network.head.bias)


def start_at_classes(
    network: EmbeddingNetwork,
    base: EmbeddingNetwork,
    directions: Tensor,
    active: int,
) -> None:
    """Give each class outputs that are large for it: products with its direction in the base.

    A class gets as many outputs as there are for each, at most k, so that its items begin with a
    code of their own; Algorithm 1 goes on from there. What is left starts small, at random. Where
    there are more classes than outputs, classes of near directions share one, which starts at
    their mean; as many classes share each, but for one.

    Args:
        network: the hash network; its last layer is set. Its backbone is a copy of the base's, or
            none where the base ranks by vectors as they are.
        base: with a linear last layer, or with none.
        directions: of the classes in the base embedding [classes, m], or [classes, m + 1] with what
            is added to the products.
        active: k.

    Raises:
        InputError: directions of another length, or layers between the vectors and the last one.
    """
    assert isinstance(network.head, nn.Linear)
    if directions.shape[1] - base.outputs not in (0, 1):
        raise InputError(
            f"the directions of the classes have {directions.shape[1]} numbers; expected "
            f"{base.outputs}, as the base embedding has, or one more to add"
        )
    if len(directions) > network.outputs:
        directions = _shared(directions, network.outputs, base.outputs)
    classes = len(directions)
    weights, added = _scores(network, base, directions.to(network.head.weight))
    copies = min(active, network.outputs // classes)
    with torch.no_grad():
        network.head.weight *= QUIET
        for copy in range(copies):
            rows = slice(copy * classes, (copy + 1) * classes)
            network.head.weight[rows] += weights
            network.head.bias[rows] = added


def _shared(directions: Tensor, count: int, length: int) -> Tensor:
    """The mean directions of ``count`` clusters of classes, by the first ``length`` numbers."""
    inside = torch.from_numpy(even_halves(directions[:, :length].cpu().numpy(), count))
    sums = torch.zeros(count, directions.shape[1]).index_add_(0, inside, directions.cpu().float())
    return sums / torch.bincount(inside, minlength=count)[:, None]


def _scores(
    network: EmbeddingNetwork, base: EmbeddingNetwork, directions: Tensor
) -> tuple[Tensor, Tensor]:
    """Weights and biases, on the features of the network, of products with the directions."""
    weights, added = directions[:, : base.outputs], directions[:, base.outputs :].sum(1)
    plain = isinstance(base.backbone, PlainVectors)
    if plain and not isinstance(network.backbone, PlainVectors):
        raise InputError(
            'start is "classes" and the base ranks by vectors as they are, but the network has '
            'layers before its last one; choose the backbone "linear", or start="random"'
        )
    if isinstance(base.head, nn.Linear):
        return weights @ base.head.weight, weights @ base.head.bias + added
    return weights, added


def class_directions(
    base: EmbeddingNetwork,
    data: LabelledItems,
    preprocessing: Preprocessing,
    labels: NDArray[np.int64] | None = None,
) -> Tensor:
    """The mean base embedding of each class that is there, at length one [classes, outputs].

    ``labels`` are groups to take the means of, instead of classes.
    """
    labels = data.labels if labels is None else labels
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    chosen = [part[:: max(1, len(part) // SAMPLE)][:SAMPLE] for part in np.split(order, starts[1:])]
    device = next((value.device for value in base.parameters()), torch.device("cpu"))
    made = embed(base, data.subset(np.concatenate(chosen)), preprocessing, device)
    ends = np.cumsum([len(part) for part in chosen])[:-1]
    means = np.stack([part.mean(axis=0) for part in np.split(made, ends)])
    lengths = np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    return torch.from_numpy(np.asarray(means / lengths, np.float32))
