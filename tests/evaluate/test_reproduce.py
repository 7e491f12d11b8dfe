"""A whole reproduction on small pictures: networks, rows, files; interrupted and gone on with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowhash.data import Augmentation, LabelledItems, Preprocessing, Splits
from flowhash.data.items import ArrayItems
from flowhash.encoder import Encoder
from flowhash.errors import DamagedFileError, InputError
from flowhash.evaluate import METHODS, paper_experiment, read_rows, reproduce
from flowhash.evaluate import heads as heads_room
from flowhash.evaluate import plan as plans
from flowhash.evaluate import trainings as trainings_room
from flowhash.evaluate.encoding import Encodings, passes_of
from flowhash.evaluate.heads import mirrored
from flowhash.evaluate.output import write_reproduction
from flowhash.evaluate.plan import make_plan
from flowhash.evaluate.trainings import Trainings
from flowhash.learn import stages as stages_room
from flowhash.networks import EmbeddingNetwork, build_backbone

CLASSES = 20
ROWS = ("method", "table", "k", "seed", "suf", "pr1", "pr4", "pr16", "nmi", "scanned", "seconds")
ENDS = ("pr1_low", "pr1_high", "pr4_low", "pr4_high", "pr16_low", "pr16_high")


def pictures() -> Splits:
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (CLASSES, 8, 8, 3))

    def some(each: int) -> LabelledItems:
        labels = np.repeat(np.arange(CLASSES), each)
        noise = rng.integers(0, 64, (len(labels), 8, 8, 3))
        images = np.clip(patterns[labels] * 0.75 + noise, 0, 255).astype(np.uint8)
        names = tuple(f"class {number}" for number in range(CLASSES))
        return LabelledItems(ArrayItems(images), labels, names, "pictures")

    train = some(20)
    return Splits(train, some(4), some(6), Preprocessing.fit(train))


@pytest.fixture
def short(monkeypatch: Any) -> None:
    """The cpu preset with a few steps, a small network and two values of k."""
    original = plans.preset

    def small(name: str, **changes: Any) -> Any:
        settings = original(name, **changes)
        return replace(settings, backbone={"name": "residual", "width": 4, "blocks": [1, 1]})

    def experiment(data: str, loss: str) -> Any:
        return replace(paper_experiment(data, loss), active=(1, 2))

    monkeypatch.setattr(plans, "preset", small)
    monkeypatch.setattr(plans, "paper_experiment", experiment)
    for name, value in {
        "TRUNK_STEPS": 30, "UNSEEN_STEPS": 10, "HEAD_STEPS": 20, "HASH_STEPS": 30,
        "HASH_STEPS_RANDOM": 30,
        "COPIES": 1,
    }.items():  # fmt: skip
        monkeypatch.setattr(plans, name, value)
    torch.set_num_threads(1)


def test_from_nothing_to_files(short: None, tmp_path: Path) -> None:
    splits, said = pictures(), []
    outcome = reproduce(
        splits, "cifar100", "npairs", tmp_path / "runs", quiet=True, say=said.append
    )
    names = {(row.table, row.k) for row in outcome.rows}
    assert names == {(table, k) for table in ("train", "test", "unseen") for k in (None, 1, 2)}
    methods = {row.method for row in outcome.rows if row.table == "test"}
    assert methods == set(METHODS) - {"flowhash-own"}  # npairs' outputs have any length
    assert {row.method for row in outcome.rows if row.table == "train"} == methods - {"vq-train"}
    assert any("FlowHash k = 2" in words for words in said)
    assert len(outcome.examples) == 8
    assert set(outcome.curves) == {"stage 1", "k = 1", "k = 2"}
    written = write_reproduction(
        outcome, paper_experiment("cifar100", "npairs"), tmp_path / "results", "flowhash …"
    )
    assert {path.name for path in written} == {
        f"cifar100-npairs{ending}"
        for ending in (".json", ".csv", ".md", ".tex", "-suf.svg", "-suf.png", ".html")
    }
    rows = json.loads((tmp_path / "results" / "cifar100-npairs.json").read_text())
    assert len(rows) == len(outcome.rows)
    assert all(set(ROWS) <= set(row) for row in rows)
    assert all(isinstance(row[end], float) for row in rows for end in ENDS)
    assert read_rows(tmp_path / "results" / "cifar100-npairs.json") == outcome.rows
    page = (tmp_path / "results" / "cifar100-npairs.md").read_text()
    ours = next(row for row in outcome.rows if row.method == "flowhash" and row.table == "test")
    assert f"{ours.pr1:.2f}" in page
    assert "58.19" in page  # the paper's
    assert "## Classes that training had not" in page
    assert page.count("start, zero steps") >= 3 * 2  # every table, every k
    assert page.count("95 % intervals") == 2 * 3  # two kinds, for every searched table


def test_goes_on_and_shares_the_trunk(short: None, tmp_path: Path, monkeypatch: Any) -> None:
    splits = pictures()
    first = reproduce(splits, "cifar100", "triplet", tmp_path, quiet=True, unseen=False)
    trunk = (tmp_path / "seed-0" / "trunk" / "metrics.jsonl").read_bytes()
    hashed = (tmp_path / "seed-0" / "triplet" / "k1" / "metrics.jsonl").read_bytes()
    again = reproduce(splits, "cifar100", "triplet", tmp_path, quiet=True, unseen=False)
    other = reproduce(splits, "cifar100", "npairs", tmp_path, quiet=True, unseen=False)
    assert (tmp_path / "seed-0" / "trunk" / "metrics.jsonl").read_bytes() == trunk
    assert (tmp_path / "seed-0" / "triplet" / "k1" / "metrics.jsonl").read_bytes() == hashed
    quality = [(row.method, row.k, row.suf, row.pr1, row.nmi) for row in first.rows]
    assert quality == [(row.method, row.k, row.suf, row.pr1, row.nmi) for row in again.rows]
    assert {row.method for row in first.rows} >= {"flowhash-own"}
    assert len(other.rows) > 5


def test_several_seeds_are_several_trainings(short: None, tmp_path: Path) -> None:
    outcome = reproduce(
        pictures(), "cifar100", "triplet", tmp_path / "runs", quiet=True, unseen=False, seeds=2
    )
    found = {
        seed: [row.pr1 for row in outcome.rows if row.seed == seed and row.table == "test"]
        for seed in (0, 1)
    }
    assert len(found[0]) == len(found[1]) > 5
    assert found[0] != found[1]
    write_reproduction(
        outcome, paper_experiment("cifar100", "triplet"), tmp_path / "results", "flowhash …"
    )
    page = (tmp_path / "results" / "cifar100-triplet.md").read_text()
    assert "Mean ± sample standard deviation over 2 seeds" in page
    assert f"{np.mean([values[0] for values in found.values()]):.2f} ±" in page


def test_interrupted_it_goes_on_to_the_same_numbers(
    short: None, tmp_path: Path, monkeypatch: Any
) -> None:
    splits = pictures()
    whole = reproduce(splits, "cifar100", "npairs", tmp_path / "whole", quiet=True, unseen=False)
    original, calls = trainings_room.train, []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    place = tmp_path / "parts"
    monkeypatch.setattr(heads_room, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reproduce(splits, "cifar100", "npairs", place, quiet=True, unseen=False)
    monkeypatch.setattr(heads_room, "train", original)
    again = reproduce(splits, "cifar100", "npairs", place, quiet=True, unseen=False)
    for one, other in zip(whole.rows, again.rows, strict=True):
        assert (one.method, one.k, one.suf, one.pr1, one.pr16, one.nmi) == (
            other.method, other.k, other.suf, other.pr1, other.pr16, other.nmi,
        )  # fmt: skip


def test_what_is_kept_is_that_of_the_same_items(tmp_path: Path) -> None:
    splits = pictures()
    network = EmbeddingNetwork(build_backbone({"name": "residual", "width": 4, "blocks": [1]}), 3)
    encodings = Encodings(tmp_path, splits.preprocessing, "cpu", quiet=True)
    assert splits.test is not None
    first = np.array(encodings.outputs(splits.test, "test", network))
    assert (encodings.outputs(splits.test, "test", network) == first).all()
    # The same labels on other images, under the same name.
    images = splits.test.take(np.arange(len(splits.test)))[:, ::-1]
    other = LabelledItems(
        ArrayItems(np.ascontiguousarray(images)), splits.test.labels, splits.test.class_names, "x"
    )
    assert not np.allclose(encodings.outputs(other, "test", network), first)
    plain = encodings.features(splits.test, "test", network, Augmentation(pad=1), (0,))
    wider = encodings.features(splits.test, "test", network, Augmentation(pad=3), (0,))
    assert not np.allclose(plain, wider)
    assert encodings.seconds() > 0
    for path in tmp_path.glob("outputs-*.npy"):
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DamagedFileError, match="delete it"):
        encodings.outputs(splits.test, "test", network)


def test_a_mirrored_network_does_not_tell_left_from_right(tmp_path: Path) -> None:
    network = EmbeddingNetwork(build_backbone({"name": "residual", "width": 4, "blocks": [1]}), 3)
    twice = mirrored(network.eval())
    images = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        expected = network.finish((network.backbone(images) + network.backbone(images.flip(3))) / 2)
        torch.testing.assert_close(twice(images), expected)
        torch.testing.assert_close(twice(images.flip(3)), twice(images))
    again = build_backbone(twice.backbone.spec)  # what an encoder stores
    again.load_state_dict(twice.backbone.state_dict())
    assert passes_of(twice) == 2
    assert passes_of(network) == 1


def test_the_encoder_is_whole(short: None, tmp_path: Path) -> None:
    """What learned from features takes images, in one pass, and gives the same activations."""
    splits = pictures()
    plan = make_plan("cifar100", "triplet", "cpu", 0, CLASSES)
    trainings = Trainings(plan, splits, tmp_path, quiet=True)
    encoder = trainings.encoder(2)
    assert encoder.networks.shared
    assert splits.test is not None
    found = encoder.encode(splits.test)
    kept = trainings.encoded(splits.test, "test", encoder.hash)
    np.testing.assert_allclose(found.activations, kept, atol=1e-5)
    ranked = trainings.encoded(splits.test, "test", trainings.base())
    np.testing.assert_allclose(found.embeddings, ranked, atol=1e-5)
    encoder.save(tmp_path / "encoder")
    again = Encoder.load(tmp_path / "encoder")
    assert again.fingerprint == encoder.fingerprint
    # The classifier is stage 1's: after its few steps it does better than chance, 1 of 20.
    embeddings = trainings.encoded(splits.train, "train", trainings.base())
    scores = trainings.classifier().scores(embeddings)
    assert (scores.argmax(axis=1) == splits.train.labels).mean() > 0.12


def test_the_start_is_what_algorithm_1_begins_with(
    short: None, tmp_path: Path, monkeypatch: Any
) -> None:
    plan = make_plan("cifar100", "triplet", "cpu", 0, CLASSES)
    trainings = Trainings(plan, pictures(), tmp_path / "seed-0", quiet=True)
    trainings.classifier()
    begun: list[Any] = []
    original = stages_room.run

    def watched(job: Any, *arguments: Any) -> Any:
        if job.name == "hash":
            begun.append({name: value.clone() for name, value in job.network.state_dict().items()})
        return original(job, *arguments)

    monkeypatch.setattr(stages_room, "run", watched)
    for k in (1, 2):
        before = set(tmp_path.rglob("*"))
        start = trainings.start(k)
        assert len(begun) == k - 1  # no training ran for it
        assert {path.parent.name for path in set(tmp_path.rglob("*")) - before} <= {"encoded"}
        learned = trainings.encoder(k).hash
        assert start is not None
        for name in ("weight", "bias"):
            torch.testing.assert_close(
                getattr(start.head, name), begun[-1][f"head.{name}"], rtol=0, atol=0
            )
        assert not torch.equal(start.head.weight, learned.head.weight)
    random = Trainings(make_plan("cifar100", "npairs", "cpu"), pictures(), tmp_path, quiet=True)
    assert random.start(1) is None
    # A folder that was trained before this row was there gets it, and trains nothing anew.
    outcome = reproduce(pictures(), "cifar100", "triplet", tmp_path, quiet=True, unseen=False)
    assert len(begun) == 2
    assert {row.k for row in outcome.rows if row.method == "start"} == {1, 2}


def test_a_base_without_classes_gets_a_classifier(tmp_path: Path) -> None:
    plan = make_plan("cifar100", "triplet", "paper", 0)
    stage = replace(plan.hash.hash, steps=2, classes=5, items=2, outputs=8)
    assert plan.hash.base is not None
    base = replace(plan.hash.base, steps=20, classes=10, items=2, outputs=8)
    settings = replace(
        plan.hash, base=base, hash=stage,
        backbone={"name": "residual", "width": 4, "blocks": [1, 1]},
    )  # fmt: skip
    splits = pictures()
    trainings = Trainings(replace(plan, base=settings, hash=settings), splits, tmp_path, quiet=True)
    classifier = trainings.classifier()
    assert classifier.weights.shape == (CLASSES, 8)
    scores = classifier.scores(trainings.encoded(splits.train, "train", trainings.base()))
    assert (scores.argmax(axis=1) == splits.train.labels).mean() > 0.3
    assert trainings.encoder(1).active == 1


def test_refuses_what_is_no_experiment(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no cpu preset for imagenet32"):
        make_plan("imagenet32", "npairs", "cpu")
    with pytest.raises(InputError, match='choose "paper" or "cpu"'):
        make_plan("cifar100", "npairs", "gpu")
    assert make_plan("imagenet32", "npairs", "paper").hash.hash.outputs == 512
    splits = pictures()
    with pytest.raises(InputError, match="seeds is 0"):
        reproduce(splits, "cifar100", "npairs", tmp_path, seeds=0)
    with pytest.raises(InputError, match="no test split"):
        reproduce(replace(splits, test=None), "cifar100", "npairs", tmp_path)
