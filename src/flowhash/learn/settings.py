"""What a training run is told: one frozen record a stage, readable from and to JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowhash.errors import InputError
from flowhash.table import MOST_BUCKETS

# λ, as the paper has it on CIFAR-100: half of the cost step, which is 1.0 for triplet and 0.3 for
# npairs. Where nobody says otherwise, the first is taken.
DEFAULT_PENALTY = 0.5
NPAIRS_PENALTY = 0.15
CODES_PENALTY = (
    5.0  # of the loss "codes", whose outputs spread to about 3: less leaves buckets empty
)
SETTLED = 7, 10  # tenths of stage 2's steps after which k is the target, and no bucket is revived


@dataclass(frozen=True)
class Schedule:
    """How the rate changes: ``kind="step"`` multiplies it by ``factor`` at each of ``at``.

    ``kind="cycle"`` rises from a tenth to the full rate over the first ``warm`` of the steps, then
    falls on a line to nothing: what short trainings want.
    """

    kind: str = "step"
    at: tuple[int, ...] = ()
    factor: float = 0.1
    warm: float = 0.2

    def __post_init__(self) -> None:
        if self.kind not in ("step", "cycle"):
            raise InputError(f'the schedule is {self.kind!r}; expected "step" or "cycle"')

    def scale(self, step: int, steps: int) -> float:
        """The factor on the rate at ``step`` of ``steps``."""
        if self.kind == "step":
            return float(self.factor ** sum(step >= milestone for milestone in self.at))
        top = max(1, round(self.warm * steps))
        if step < top:
            return 0.1 + 0.9 * step / top
        return max(0.0, (steps - step) / max(1, steps - top))


@dataclass(frozen=True)
class Stage:
    """One stage of training.

    Attributes:
        loss: its name; see ``flowhash.learn.losses.LOSSES``, and "cross-entropy" for stage 1, or
            "softmax", a plain classifier, whose outputs are the classes.
        outputs: of the last layer: m in stage 1, d buckets in stage 2.
        classes: n_c, classes in a batch.
        items: m, items of each of them.
        steps: how many batches.
        loss_options: what the loss is told, such as ``{"margin": 0.3}``.
        optimiser: "adam", the paper's, or "sgd" with Nesterov momentum.
        rate: learning rate of the last layer (and of the loss's own weights).
        backbone_rate: factor on it for the backbone.
        schedule: how the rate changes.
        decay: weight decay of the backbone's weights (never of biases or normalisation).
        head_decay: weight decay of the last layer's weights.
        start: of stage 2's last layer: "random", drawn as every last layer is (Glorot uniform);
            "small", drawn from a truncated normal of σ = 0.01, as the authors did for ImageNet; or
            "classes", which begins with outputs of its own for each class, or for near classes
            together where there are more of them. See ``flowhash.learn.stages``.
    """

    loss: str
    outputs: int
    classes: int
    items: int
    steps: int
    loss_options: dict[str, Any] = field(default_factory=dict)
    optimiser: str = "adam"
    rate: float = 1e-3
    backbone_rate: float = 1.0
    schedule: Schedule = field(default_factory=Schedule)
    decay: float = 0.0
    head_decay: float = 0.0
    start: str = "random"

    def __post_init__(self) -> None:
        for name in ("outputs", "classes", "items", "steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is {value!r}; expected a whole number, one or more")
        if self.outputs > MOST_BUCKETS:
            raise InputError(
                f"outputs is {self.outputs}; expected at most {MOST_BUCKETS}, the most buckets "
                "that a table has"
            )
        if self.optimiser not in ("adam", "sgd"):
            raise InputError(f'optimiser is {self.optimiser!r}; expected "adam" or "sgd"')
        if self.start not in ("random", "small", "classes"):
            raise InputError(f'start is {self.start!r}; expected "random", "small" or "classes"')
        if not self.rate > 0 or self.backbone_rate < 0:
            raise InputError(
                f"rate is {self.rate} and backbone_rate {self.backbone_rate}; expected a positive "
                "rate and a factor of zero or more"
            )

    @property
    def batch(self) -> int:
        """Items in a batch."""
        return self.classes * self.items


@dataclass(frozen=True)
class Settings:
    """A whole run: both stages and what they share.

    Attributes:
        backbone: description of the network; see ``flowhash.networks.build_backbone``.
        base: stage 1, or None to rank with the items' own vectors (arrays of embeddings only).
        hash: stage 2, Algorithm 1.
        active: k.
        first_active: k of the codes at the first step of stage 2; it falls evenly to ``active``
            over the first 70 % of the steps (``active_at``), so that early on every group is in
            several buckets. Validation and the encoder always have ``active``. None is ``active``
            from the first step on, as in the paper.
        revive: whether, over the first 70 % of stage 2's steps, a bucket that no group has chosen
            starts anew near one that several share. It takes codes of all groups: the loss "codes",
            or ``outside``.
        penalty: λ of the class problem (half of the authors' cost step).
        groups: what gets a code of its own in stage 2: "classes", as in the paper; or "auto", which
            cuts classes into as many groups as there are buckets where there are more buckets than
            classes, so that every bucket has work.
        outside: whether the codes of a batch count what groups of other batches hold, with the
            codes those had last; without it each batch is by itself, as in the paper. The loss
            "codes" always does; pairs have no groups that come again, and never do.
        rank: "base" ranks with the snapshot of stage 1; "whitened" with the same after a linear map
            that makes the spread within classes even, which also carries over to classes that
            training never saw; "hash" with the fine-tuned network's own outputs, so that a query
            costs one forward pass, not two.
        class_order: the weight of the class in the order in which an encoder of groups opens
            buckets; None lets validation choose among some, and is 4 without any. With 0 buckets
            are opened by their own outputs: better for classes that training never saw.
        augment: of images: ``pad`` pixels before a random crop back, ``flip`` from left to right
            (not for letters), side of a square to ``cutout``. None for no augmentation.
        seed: of everything drawn at random.
        validate_every: steps between two validations.
        checkpoint_every: steps between two checkpoints.
        log_every: steps between two lines of ``metrics.jsonl``.
    """

    backbone: dict[str, Any]
    base: Stage | None
    hash: Stage
    active: int = 1
    penalty: float = NPAIRS_PENALTY
    groups: str = "classes"
    outside: bool = False
    rank: str = "base"
    class_order: float | None = None
    augment: dict[str, Any] | None = field(default_factory=lambda: {"pad": 4, "flip": True})
    seed: int = 0
    validate_every: int = 500
    checkpoint_every: int = 250
    log_every: int = 50
    first_active: int | None = None
    revive: bool = False

    def __post_init__(self) -> None:
        if self.rank not in ("base", "whitened", "hash"):
            raise InputError(f'rank is {self.rank!r}; expected "base", "whitened" or "hash"')
        if self.groups not in ("classes", "auto"):
            raise InputError(f'groups is {self.groups!r}; expected "classes" or "auto"')
        if not 1 <= self.active <= self.hash.outputs:
            raise InputError(
                f"active is {self.active}; expected 1 to {self.hash.outputs}, the number of buckets"
            )
        if self.class_order is not None and not 0 <= self.class_order < math.inf:
            raise InputError(
                f"class_order is {self.class_order}; expected a number, zero or more, or None"
            )
        if self.first_active is not None:
            self._check_first_active(self.first_active)
        if self.revive and not self.outside and self.hash.loss != "codes":
            raise InputError(
                f"revive is True with the loss {self.hash.loss!r} of the hash stage, which does "
                "not know which buckets are free; expected codes of all groups: choose "
                'outside=True, or the loss "codes"'
            )
        if not 0 <= self.penalty < math.inf:
            raise InputError(f"penalty is {self.penalty}; expected a number, zero or more")
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}; expected zero or more")
        for name in ("validate_every", "checkpoint_every", "log_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected one or more steps")

    def _check_first_active(self, first: int) -> None:
        if not isinstance(first, int) or not self.active <= first <= self.hash.outputs:
            raise InputError(
                f"first_active is {first!r}; expected a whole number from {self.active}, which is "
                f"active, to {self.hash.outputs}, the number of buckets, or None for active from "
                "the first step on"
            )
        if self.hash.loss == "softmax":
            raise InputError(
                f"first_active is {first}, but the loss of the hash stage is softmax, which has no "
                'codes; leave first_active out, or choose the loss "codes"'
            )

    def active_at(self, step: int) -> int:
        """The k of the codes at a step of stage 2, counted from 0.

        It has each value from ``first_active`` down to ``active`` + 1 for about as many steps, all
        within the first 70 % of them.
        """
        if self.first_active is None or self.settled(step):
            return self.active
        falls = SETTLED[0] * self.hash.steps
        return self.first_active - (self.first_active - self.active) * SETTLED[1] * step // falls

    def settled(self, step: int) -> bool:
        """Whether 70 % of stage 2's steps are done at ``step``: k stays, no bucket is revived."""
        return SETTLED[1] * step >= SETTLED[0] * self.hash.steps

    def to_json(self) -> dict[str, Any]:
        """As plain dicts and lists."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Settings:
        """From what ``to_json`` gave."""
        options = dict(values)
        for name in ("base", "hash"):
            if options[name] is not None:
                options[name] = _stage(options[name])
        return cls(**options)


def _stage(values: Mapping[str, Any]) -> Stage:
    schedule = dict(values["schedule"])
    schedule["at"] = tuple(schedule["at"])
    return Stage(**{**values, "schedule": Schedule(**schedule)})
