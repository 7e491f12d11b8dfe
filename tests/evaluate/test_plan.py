"""What the plans train, as their words and docs/evaluation.md have it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flowhash.data import Splits
from flowhash.evaluate.comparison.comparison import passes_of
from flowhash.evaluate.reproduction.experiment_plan import CPU_WORDS, PAPER_WORDS, make_plan
from flowhash.evaluate.reproduction.trained_networks import Trainings
from flowhash.learn import make_loss
from tests.learn import oracles


@pytest.mark.parametrize(
    ("loss", "classes", "start"),
    [
        ("triplet", 100, "classes"),  # 256 buckets
        ("triplet", 80, "classes"),
        ("npairs", 100, "random"),  # 64 buckets: fewer than classes
        ("npairs", 80, "random"),
        ("npairs", 64, "classes"),
    ],
)
def test_the_hash_network_starts_at_the_classes_where_there_is_room(
    loss: str, classes: int, start: str
) -> None:
    plan = make_plan("cifar100", loss, "cpu", classes=classes, unseen=classes < 100)
    assert plan.hash.hash.start == start
    assert plan.hash.hash.classes == min(100, classes)  # in a batch
    assert "as many buckets as classes, it starts at stage 1's classifier" in CPU_WORDS[0]


@pytest.mark.parametrize("loss", ["triplet", "npairs"])
def test_the_cpu_plan_mirrors_and_copies(loss: str) -> None:
    plan = make_plan("cifar100", loss, "cpu")
    assert (plan.mirrored, plan.copies) == (True, 1)
    assert plan.trunk is not None
    assert plan.trunk.base is not None
    assert plan.trunk.base.loss == "cross-entropy"
    assert plan.hash.augment == {"pad": 4, "flip": True}
    assert (plan.base is None) == (loss == "triplet")  # whose base is the trunk
    assert make_plan("imagenet32", "npairs", "paper").hash.hash.outputs == 512
    paper = make_plan("cifar100", loss, "paper")
    assert (paper.mirrored, paper.copies, paper.trunk) == (False, 0, None)
    assert paper.hash.hash.start == "random"


@pytest.mark.parametrize(
    ("data", "base", "hashed"), [("cifar100", 0.0015, 0.0015), ("imagenet32", 0.001, 0.0015)]
)
def test_the_papers_plan_has_its_printed_regulariser_and_tells_the_codes(
    data: str, base: float, hashed: float
) -> None:
    plan = make_plan(data, "npairs", "paper")
    every = f"{plan.hash.validate_every:,} steps"
    assert plan.words == tuple(words.replace("{every:,} steps", every) for words in PAPER_WORDS)
    assert plan.hash.base is not None
    for stage, halved in ((plan.hash.base, base), (plan.hash.hash, hashed)):
        assert stage.loss_options["regulariser"] == pytest.approx(2 * halved)
        assert not stage.loss_options.get("product", False)
    told = next(words for words in PAPER_WORDS if "regulariser" in words)
    assert "(0.0015 for CIFAR-100, 0.001 and 0.0015 for ImageNet follow it)" in told


def test_npairs_has_the_masked_product_in_the_cpu_plan_only() -> None:
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(8, 6))
    labels = np.repeat(np.arange(4), 2)
    codes = oracles.distinct_codes(rng, 4, 6, 2)[labels]
    gaps, products = oracles.gated_distances(outputs, codes), oracles.gated_products(outputs, codes)
    for name, similarities in (("cpu", products), ("paper", -gaps), ("method", -gaps)):
        stage = make_plan("cifar100", "npairs", name).hash.hash
        loss = make_loss(stage.loss, **stage.loss_options)
        found = loss(*map(torch.from_numpy, (outputs, labels, codes)))
        expected = oracles.npairs(similarities, outputs, labels, 0.003)
        assert float(found) == pytest.approx(expected, rel=1e-6), name


def test_what_is_trained_by_the_cpu_plan_mirrors_and_starts_at_the_classifier(
    short: None, pictures: Splits, tmp_path: Path
) -> None:
    splits = pictures
    assert splits.test is not None
    plan = make_plan("cifar100", "triplet", "cpu", 0, splits.train.classes)
    still = replace(plan.hash, hash=replace(plan.hash.hash, steps=1, rate=1e-9))
    trainings = Trainings(replace(plan, hash=still), splits, tmp_path, quiet=True)
    images = torch.from_numpy(splits.preprocessing(splits.test.take(np.arange(len(splits.test)))))
    encoder = trainings.encoder(1)
    assert passes_of(trainings.base()) == 2
    for network in (trainings.base(), encoder.hash):
        with torch.no_grad():
            torch.testing.assert_close(network(images), network(images.flip(3)))
    made = encoder.encode(splits.test)
    classes = trainings.classifier().scores(made.embeddings).argmax(axis=1)
    assert (made.activations.argmax(axis=1) == classes).mean() > 0.8


def test_the_methods_rival_has_the_budget_of_one_k() -> None:
    plan = make_plan("cifar100", "triplet", "method", classes=80)
    assert plan.free
    rival = plan.classifier
    assert rival is not None
    assert (rival.hash.loss, rival.hash.outputs, rival.active) == ("softmax", 80, 1)
    ours = plan.hash.hash
    same = replace(rival.hash, loss=ours.loss, loss_options=ours.loss_options, outputs=ours.outputs)
    assert same == ours
    assert make_plan("cifar100", "triplet", "cpu").classifier is None
    assert make_plan("cifar100", "triplet", "method").stem == "cifar100-triplet-method"
    assert make_plan("cifar100", "npairs", "cpu").stem == "cifar100-npairs-refined-classifier"
    assert make_plan("imagenet32", "npairs", "paper").stem == "imagenet32-npairs"
