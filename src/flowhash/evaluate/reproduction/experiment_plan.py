"""What is trained to reproduce an experiment of the paper, by preset."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flowhash.errors import Argument, InputError
from flowhash.evaluate.paper_numbers import Experiment, paper_experiment
from flowhash.learn import Schedule, Settings, preset

# How presets differ from the paper and its code, for people; each is a paragraph of the results.
CODE_WORDS = (
    "Where paper and released code disagree about the method, this is the paper, so that it is not "
    "the released code run again. Codes and gradient of a step come from one forward pass; the "
    "code makes the codes in a pass of their own, with other crops and dropout. The npairs loss is "
    "Eq. 8: all items of other classes are negatives, and similarity is minus the gated distance; "
    "in the code each of CIFAR-100's 64 pairs has 63 negatives, in one direction, and a masked "
    "product is the default. The npairs regulariser has the paper's λ; at the same λ the code's is "
    "half as strong (0.0015 for CIFAR-100, 0.001 and 0.0015 for ImageNet follow it). A crop and a "
    "flip are drawn for each image; the code draws them once for a batch.",
    "About the data it is the code: the train table holds the images that were trained on (45,000 "
    "of CIFAR-100; the paper's text has 50,000), ImageNet's validation split has 50 images a "
    "class. The code keeps the checkpoint of the best validation Pr@1, at every epoch; here it is "
    "the best Pr@1 among states that have at least nine tenths of the largest SUF so far, every "
    "{every:,} steps, so that none is kept which is precise because it scans nearly everything. "
    "The code picked hyper-parameters on the test set; nothing here was chosen by it.",
    "The triplet embedding ranks at unit length, as it is trained; the code ranks the raw one. "
    "Exhaustive search and VQ are shown by both. VQ is k-means by FAISS, which starts at random "
    "items and makes 25 rounds, the best of ten starts; the code has scikit-learn's k-means++, "
    "with as many starts.",
)
PAPER_WORDS = (
    "Both stages have the paper's network, losses, steps and rates; where the paper leaves "
    "something out, they follow the released code.",
    *CODE_WORDS,
)
METHOD_WORDS = (
    "The paper's method, as large as two cores allow. Losses, batches, margins, λ, the "
    "random start of the hash layer, the backbone's tenth of the rate and the ranking by a "
    "snapshot of stage 1 are the paper's; there is no cross-entropy, no mean over mirror images "
    "and no start at a classifier. What differs: the network is a small residual one of width "
    "{width} with batch normalisation (the paper: NIN, without), and the steps are fewer, {base:,} "
    "of stage 1 and {hash:,} for each k (the paper: 175,000 and 70,000), with one cycle of the "
    "rate instead of a step{faster}.",
    *CODE_WORDS,
    "FlowHash with λ = 0 is the same training without the penalty, so that nothing keeps classes "
    "from sharing a bucket: the difference is what the flow adds.",
    "The classifier is a layer with an output for each class and cross-entropy, fine-tuned from "
    "the same base with the same batches, rates and number of steps as one k; its classes are the "
    "buckets, ranked by the same embedding. It stands beside every k.",
)
FASTER_WORDS = (
    "; {stages} at up to {rate:g}, {times:g} times the paper's rate, which was chosen on the "
    "validation split, by one run of each rate"
)
CPU_WORDS = (
    "Trained otherwise than in the paper, so that two cores do it in an hour: a small "
    "residual network with batch normalisation (the paper: NIN), stage 1 by cross-entropy on unit "
    "vectors (the paper: the metric loss), once for all losses and k. What differs between the "
    "losses is a last layer of the base (m = d outputs) and the hash network. Its backbone is "
    "stage 1's, frozen, so that only its last layer is learned by Algorithm 1, from features of "
    "the training images and an augmented copy; where there are as many buckets as classes, "
    "it starts at stage 1's classifier. The paper starts at random and fine-tunes the backbone "
    "too. Features are the mean over an image and its mirror image, for all methods: a query takes "
    "two forward passes, as in the paper, but one network. A batch of stage 2 has 100 classes (the "
    "paper: 64), or all where there are fewer; npairs uses the masked product of the authors' "
    "code, not the paper's distance (Eq. 6 and 8).",
    "So these tables do not show the paper's method. Where the hash network starts at the "
    "classifier, they show a classifier's buckets, refined: the row “start, zero steps” is the "
    "same network before any step of Algorithm 1, in which each class has as many buckets as there "
    "are for it, at most k.",
    "The train table holds the 45,000 images that were trained on; the paper's text has 50,000, "
    "its code 45,000 too.",
    "The classifier is stage 1's own, whose classes are the buckets, ranked by the same embedding.",
)
UNSEEN_WORDS = (
    "Unseen classes: trained on four fifths of the classes, drawn by the seed{shorter}. The test "
    "images of the other classes are searched among themselves. The classifier has no bucket for "
    "the truth."
)


@dataclass(frozen=True)
class ExperimentPlan:
    """The trainings of one experiment.

    Attributes:
        experiment: of the paper.
        preset: "paper", "method" or "cpu".
        trunk: stage 1 that other losses share, or None.
        base: stage 1 of this loss, on the trunk's backbone if there is a trunk; None where the
            trunk is the base.
        hash: stage 2; k is put in.
        words: how it differs from the paper.
        copies: augmented copies of the training set whose features the last layers on a trunk
            learn from, beside the set itself.
        mirrored: whether features are the mean over an image and its mirror image, once the trunk
            is trained.
        classifier: stage 2 of the rival, a softmax over the classes from the same base; None where
            the classifier is linear on the base embedding.
        free: whether every k is trained with λ = 0 too.

    Raises:
        InputError: there is neither a trunk nor a base.
    """

    experiment: Experiment
    preset: str
    trunk: Settings | None
    base: Settings | None
    hash: Settings
    words: tuple[str, ...]
    copies: int = 0
    mirrored: bool = False
    classifier: Settings | None = None
    free: bool = False

    def __post_init__(self) -> None:
        if self.trunk is None and self.base is None:
            raise InputError("the plan has no stage 1; give a trunk, a base, or both")

    @property
    def kind(self) -> str:
        """What it shows, in a few words."""
        return {
            "paper": "the paper's training",
            "method": "the paper's method, on two cores",
            "cpu": "a classifier's buckets, refined",
        }[self.preset]

    @property
    def stem(self) -> str:
        """What the names of its results begin with; they say what it is."""
        kind = {"paper": "", "method": "-method", "cpu": "-refined-classifier"}[self.preset]
        return f"{self.experiment.data}-{self.experiment.loss}{kind}"


def make_plan(
    data: str, loss: str, name: str, seed: int = 0, classes: int = 100, unseen: bool = False
) -> ExperimentPlan:
    """The trainings that reproduce ``data`` with ``loss``.

    Args:
        data: "cifar100" or "imagenet32".
        loss: "triplet" or "npairs".
        name: "paper", the paper's own settings; for CIFAR-100 also "method", the same with another
            network and fewer steps, and "cpu", a classifier's buckets refined, for two cores.
        seed: of everything drawn at random.
        classes: how many there are to learn from; cpu's batches have no more.
        unseen: for the experiment on unseen classes, whose cpu training is shorter.

    Raises:
        InputError: no such experiment or preset.
    """
    experiment = paper_experiment(data, loss)
    if name not in ("paper", "method", "cpu"):
        raise InputError(f'the preset is {name!r}; choose "paper", "method" or "cpu"')
    if name != "paper" and data != "cifar100":
        raise InputError(
            f"there is no {name} preset for {data}: two cores would take days. Choose",
            Argument("preset", '"paper"'),
        )
    if name == "cpu":
        return _cpu_plan(experiment, seed, classes, unseen)
    settings = preset(f"{name}-{data}-{loss}", seed=seed)
    assert settings.base is not None
    rates = (settings.base.rate, settings.hash.rate)
    faster, rate = "", max(rates)
    if rate > PAPER_RATE:
        stages = f"stage {1 + rates.index(rate)} learns"
        if min(rates) == rate:
            stages = "both stages learn"
        faster = FASTER_WORDS.format(stages=stages, rate=rate, times=rate / PAPER_RATE)
    words = [
        paragraph.format(
            width=settings.backbone.get("width"), base=settings.base.steps,
            hash=settings.hash.steps, every=settings.validate_every,
            faster=faster,
        )
        for paragraph in (PAPER_WORDS if name == "paper" else METHOD_WORDS)
    ]  # fmt: skip
    words += [UNSEEN_WORDS.format(shorter="")] * unseen
    plan = ExperimentPlan(experiment, name, None, settings, settings, tuple(words))
    if name == "paper":
        return plan
    rival = replace(
        settings.hash, loss="softmax", loss_options={}, outputs=classes,
        classes=min(settings.hash.classes, classes),
    )  # fmt: skip
    return replace(plan, classifier=replace(settings, hash=rival, active=1), free=True)


PAPER_RATE = 1e-3
TRUNK_STEPS, UNSEEN_STEPS = 10_000, 1_500
HEAD_STEPS = 500  # of another loss's last layer on the trunk
HASH_STEPS = 500  # of the hash network's last layer where it starts at the classes
HASH_STEPS_RANDOM = 2_000  # and where it starts at random
COPIES = 1


def _cpu_plan(experiment: Experiment, seed: int, classes: int, unseen: bool) -> ExperimentPlan:
    """One residual network by cross-entropy; on it, frozen, the last layers of base and hash.

    Rates, batch, start and loss options of the last layers are the best of those tried on the
    validation split; see docs/evaluation.md.
    """
    shared = preset("cpu-cifar100-triplet", seed=seed, validate_every=1_000)
    assert shared.base is not None
    batch = min(64, classes)
    steps = UNSEEN_STEPS if unseen else TRUNK_STEPS
    trunk = replace(shared, base=replace(shared.base, steps=steps, classes=batch))
    settings = preset(f"cpu-cifar100-{experiment.loss}", seed=seed, validate_every=250)
    assert settings.base is not None
    base = None
    if settings.base.outputs != shared.base.outputs:
        head = replace(settings.base, steps=HEAD_STEPS, rate=0.05, classes=batch)
        base = replace(settings, base=head)
    # Where there are fewer buckets than classes, as for npairs, classes cannot each start at one.
    roomy = settings.hash.outputs >= classes
    hashing = replace(
        settings.hash,
        steps=HASH_STEPS if roomy else HASH_STEPS_RANDOM,
        classes=min(100, classes), items=2, backbone_rate=1.0,
        rate=3e-4 if roomy else 5e-3, start="classes" if roomy else "random",
        schedule=Schedule("cycle"),
    )  # fmt: skip
    settings = replace(settings, hash=hashing)
    shorter = ", and with 1,500 steps of stage 1 instead of 10,000"
    words = (*CPU_WORDS, UNSEEN_WORDS.format(shorter=shorter)) if unseen else CPU_WORDS
    return ExperimentPlan(experiment, "cpu", trunk, base, settings, words, COPIES, mirrored=True)
