"""Stage 1 alone, and a hash stage that starts at the classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import kstest, truncnorm

from flowhash.codes import item_objective
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.learn import Schedule, Settings, Stage, train, train_base
from flowhash.learn.class_groups import split_classes
from flowhash.learn.stages import class_directions, hash_start, start_at_classes, start_small
from flowhash.learn.training.checkpoints import Checkpoints
from flowhash.networks import EmbeddingNetwork, build_backbone
from tests.learn.test_train import precision_at_one
from tests.learn.trainer import clouds, lines, vector_settings


def network(inputs: int, outputs: int) -> EmbeddingNetwork:
    return EmbeddingNetwork(build_backbone({"name": "linear", "inputs": inputs}), outputs, True)


@pytest.mark.parametrize(("active", "copies"), [(1, 1), (2, 2), (4, 2)])
def test_each_class_begins_with_outputs_of_its_own(active: int, copies: int) -> None:
    torch.manual_seed(0)
    base, hashing = network(6, 4), network(6, 7)
    directions = torch.randn(3, 4)
    vectors = torch.randn(20, 6)
    start_at_classes(hashing, base, directions, active)
    with torch.no_grad():
        wanted = base.head(vectors) @ directions.T
        made = hashing.head(vectors)
    for copy in range(copies):
        part = made[:, 3 * copy : 3 * copy + 3]
        # Up to the little that is random, it is the classifier's score.
        assert torch.corrcoef(torch.stack([part.flatten(), wanted.flatten()]))[0, 1] > 0.95
    assert made[:, 3 * copies :].abs().mean() < wanted.abs().mean() / 2


@pytest.mark.parametrize("added", [0, 1])
def test_near_classes_begin_together_where_there_are_more_than_buckets(added: int) -> None:
    """Twelve classes around four corners, in another order: each corner has a bucket."""
    rng = np.random.default_rng(0)
    corners = rng.permutation(np.repeat(np.arange(4), 3))
    directions = np.eye(4, 4 + added)[corners] + 0.05 * rng.normal(size=(12, 4 + added))
    base = EmbeddingNetwork(build_backbone({"name": "linear", "inputs": 4}), None)
    hashing = network(4, 4)
    start_at_classes(hashing, base, torch.from_numpy(directions.astype(np.float32)), 2)
    with torch.no_grad():
        buckets = hashing.head(torch.from_numpy(directions[:, :4].astype(np.float32))).argmax(1)
    assert len(set(zip(corners.tolist(), buckets.tolist(), strict=True))) == 4
    assert sorted(np.bincount(buckets.numpy())) == [3, 3, 3, 3]


def test_many_classes_use_all_buckets_evenly_from_the_first_step(tmp_path: Path) -> None:
    """Sixty classes in sixteen buckets, one tiny step each; at random many would be empty."""
    splits = clouds(classes=60, items=8, noise=0.2)
    found = {}
    for start in ("random", "classes"):
        stage = Stage("codes", 16, 60, 4, 1, rate=1e-6, start=start)
        linear = {"name": "linear"}
        told = replace(vector_settings(base=None), backbone=linear, hash=stage, penalty=5.0)
        train(splits, told, tmp_path / start, quiet=True)
        found[start] = [line for line in lines(tmp_path / start) if line.get("validation")][-1]
    assert found["classes"]["empty_buckets"] == 0
    assert found["classes"]["load_variation"] < 0.8 * found["random"]["load_variation"]
    assert found["classes"]["suf"] > found["random"]["suf"]


def test_refuses_directions_of_other_lengths() -> None:
    base = network(6, 4)
    with pytest.raises(InputError, match="have 6 numbers; expected 4"):
        start_at_classes(network(6, 8), base, torch.zeros(3, 6), 1)
    plain = EmbeddingNetwork(build_backbone({"name": "linear", "inputs": 6}), None)
    deep = EmbeddingNetwork(build_backbone({"name": "mlp", "inputs": 6, "hidden": [5]}), 8)
    with pytest.raises(InputError, match="layers before its last one"):
        start_at_classes(deep, plain, torch.zeros(3, 6), 1)
    with pytest.raises(InputError, match='expected "random", "small" or "classes"'):
        Stage("triplet", 8, 2, 2, 1, start="zero")


@settings(max_examples=30, deadline=None)
@given(inputs=st.integers(1, 40), outputs=st.integers(1, 40), seed=st.integers(0, 99))
def test_a_small_start_is_a_truncated_normal(inputs: int, outputs: int, seed: int) -> None:
    """Of σ = 0.01, cut at two of them: never beyond, whatever the layer's shape."""
    hashing = network(inputs, outputs)
    torch.nn.init.ones_(hashing.head.bias)
    torch.manual_seed(seed)
    start_small(hashing)
    weights = hashing.head.weight.detach().numpy().ravel()
    assert weights.shape == (inputs * outputs,)
    assert np.abs(weights).max() <= 0.02
    assert not hashing.head.bias.any()
    assert kstest(weights, truncnorm(-2, 2, scale=0.01).cdf).pvalue > 1e-6


def test_a_hash_stage_starts_small_where_it_is_told_so() -> None:
    splits = clouds()
    length = splits.train.take(np.zeros(1, np.int64)).shape[1]
    options = vector_settings()
    law = truncnorm(-2, 2, scale=0.01).cdf
    found = {}
    for start in ("random", "small"):
        stage = replace(options.hash, start=start, outputs=400)
        begun = hash_start(splits, replace(options, hash=stage), network(length, 4), device="cpu")
        found[start] = kstest(begun.head.weight.detach().numpy().ravel(), law).pvalue
    assert found["random"] < 1e-9
    assert found["small"] > 1e-3


def test_directions_are_the_class_means() -> None:
    splits = clouds()
    base = network(splits.train.take(np.zeros(1, np.int64)).shape[1], 4)
    found = class_directions(base, splits.train, splits.preprocessing).numpy()
    with torch.no_grad():
        every = base(torch.from_numpy(splits.preprocessing(
            splits.train.take(np.arange(len(splits.train)))))).numpy()  # fmt: skip
    for label in np.unique(splits.train.labels):
        mean = every[splits.train.labels == label][:64].mean(axis=0)
        mean /= np.linalg.norm(mean)
        assert float(mean @ found[label]) > 0.99
        assert np.linalg.norm(found[label]) == pytest.approx(1, abs=1e-5)


def test_starting_at_the_classes_is_good_from_the_first_step(tmp_path: Path) -> None:
    """One tiny step each: at random nearly nothing is learned, at the classes it is there."""
    splits, settings = clouds(), vector_settings()
    base = train_base(splits, settings, tmp_path / "base", quiet=True)
    found = {}
    for start in ("random", "classes"):
        stage = replace(settings.hash, steps=1, rate=1e-6, start=start, outputs=32)
        run = tmp_path / start
        train(splits, replace(settings, hash=stage), run, base=base, quiet=True)
        found[start] = [line for line in lines(run) if line.get("validation")][-1]["nmi"]
    assert found["classes"] > 0.9
    assert found["random"] < found["classes"]


def test_algorithm_1_improves_on_its_start_at_two_active_buckets(tmp_path: Path) -> None:
    """Items that were not trained on: g is lower, buckets hold less, answers are no worse."""
    splits, penalty = clouds(classes=10, items=40, noise=0.6), 0.5
    assert splits.test is not None
    base = Stage("cross-entropy", 8, 10, 4, 60, rate=5e-3, schedule=Schedule("cycle"))
    steps = Stage(
        "triplet", 24, 10, 4, 100, {"margin": 1.0}, rate=5e-3, schedule=Schedule("cycle"),
        start="classes",
    )  # fmt: skip
    settings = Settings(
        {"name": "mlp", "hidden": [32]}, base, steps, active=2, penalty=penalty, augment=None,
        validate_every=50,
    )  # fmt: skip
    ranking = train_base(splits, settings, tmp_path, quiet=True)
    found = []
    for stage in (replace(steps, steps=1, rate=1e-9), steps):
        encoder = train(splits, replace(settings, hash=stage), None, base=ranking, quiet=True)
        encoded = encoder.encode(splits.test)
        value = item_objective(encoded.codes, encoded.activations, splits.test.labels, penalty / 10)
        found.append((value, *precision_at_one(encoder, splits.test)))
    (before, precision, share), (after, better, less) = found
    assert after < before - 10  # -36 and -65 here
    assert better >= precision
    assert less < share


def test_the_flow_keeps_classes_apart_from_a_random_start(tmp_path: Path) -> None:
    """The same training with λ = 0 leaves classes in shared buckets: more is scanned."""
    splits = clouds(classes=20, items=20, noise=0.6)
    assert splits.test is not None
    base = Stage("cross-entropy", 8, 20, 4, 60, rate=5e-3, schedule=Schedule("cycle"))
    steps = Stage(
        "triplet", 24, 20, 4, 100, {"margin": 1.0}, rate=5e-3, schedule=Schedule("cycle")
    )  # fmt: skip
    settings = Settings(
        {"name": "mlp", "hidden": [32]}, base, steps, active=1, augment=None, validate_every=50
    )
    ranking = train_base(splits, settings, tmp_path, quiet=True)
    share = {}
    for penalty in (0.0, 0.5):
        told = replace(settings, penalty=penalty)
        encoder = train(splits, told, None, base=ranking, quiet=True)
        _, share[penalty] = precision_at_one(encoder, splits.test)
    assert share[0.5] < 0.8 * share[0.0]  # 0.045 and 0.111 here


def test_one_base_serves_several_and_the_folder_goes_on(tmp_path: Path) -> None:
    splits, settings = clouds(), vector_settings()
    alone = train_base(splits, settings, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "encoder").exists()
    assert not alone.training
    again = train_base(splits, settings, tmp_path / "run", quiet=True)  # read, not trained again
    whole = train(splits, settings, tmp_path / "run", quiet=True)
    assert whole.base is not None
    for one, other, third in zip(
        alone.state_dict().values(), again.state_dict().values(),
        whole.base.state_dict().values(), strict=True,
    ):  # fmt: skip
        assert torch.equal(one, other)
        assert torch.equal(one, third)
    last = Checkpoints(tmp_path / "run" / "base").load("last")
    assert last is not None
    assert settings.base is not None
    assert last.record["step"] == settings.base.steps
    second = train(splits, replace(settings, active=2), tmp_path / "second", base=alone, quiet=True)
    assert isinstance(second, Encoder)
    with pytest.raises(InputError, match="no base stage"):
        train_base(splits, replace(settings, base=None), tmp_path / "none", quiet=True)


def test_directions_given_are_used(tmp_path: Path) -> None:
    splits, settings = clouds(), vector_settings()
    base = train_base(splits, settings, tmp_path / "base", quiet=True)
    stage = replace(settings.hash, steps=1, rate=1e-9, start="classes", outputs=32)
    classes = splits.train.classes
    # All classes in one direction: items cannot be told apart by them.
    same = np.ones((classes, base.outputs), np.float32)
    run = tmp_path / "same"
    train(splits, replace(settings, hash=stage), run, base=base, directions=same, quiet=True)
    worse = [line for line in lines(run) if line.get("validation")][-1]["nmi"]
    run = tmp_path / "means"
    train(splits, replace(settings, hash=stage), run, base=base, quiet=True)
    better = [line for line in lines(run) if line.get("validation")][-1]["nmi"]
    assert better > worse


@pytest.mark.parametrize("added", [False, True])
def test_vectors_as_they_are_may_start_at_a_classifier(added: bool) -> None:
    torch.manual_seed(0)
    plain = EmbeddingNetwork(build_backbone({"name": "linear", "inputs": 6}), None)
    hashing = network(6, 7)
    directions = torch.randn(3, 7 if added else 6)
    vectors = torch.randn(20, 6)
    start_at_classes(hashing, plain, directions, 2)
    wanted = vectors @ directions[:, :6].T + directions[:, 6:].sum(1)
    with torch.no_grad():
        made = hashing.head(vectors)[:, :6].reshape(20, 2, 3)
    for copy in range(2):
        pair = torch.stack([made[:, copy].flatten(), wanted.flatten()])
        assert torch.corrcoef(pair)[0, 1] > 0.97
        assert (made[:, copy] - wanted).abs().max() < 1


def test_training_in_memory_starts_at_the_classifier_of_stage_1() -> None:
    splits, settings = clouds(), vector_settings()
    assert settings.base is not None
    settings = replace(
        settings,
        base=replace(settings.base, loss="cross-entropy", loss_options={}, steps=60, rate=0.1),
        hash=replace(settings.hash, steps=1, rate=1e-6, start="classes", outputs=32),
    )
    encoder = train(splits, settings, None, quiet=True)
    codes = encoder.encode(splits.train).codes[:, 0]
    assert np.bincount(codes, minlength=32)[:6].sum() > 0.9 * len(codes)


def test_softmax_as_stage_2_is_a_classifier_whose_classes_are_the_buckets(tmp_path: Path) -> None:
    splits, settings = clouds(), vector_settings()
    classes = splits.train.classes
    stage = replace(
        settings.hash, loss="softmax", loss_options={}, outputs=classes, steps=150, rate=0.05
    )
    rival = replace(settings, hash=stage, active=1)
    encoder = train(splits, rival, tmp_path / "run", device="cpu", quiet=True)
    made = encoder.encode(splits.validation).activations
    assert made.shape[1] == classes
    assert (made.argmax(axis=1) == splits.validation.labels).mean() > 0.8
    hashed = [line for line in lines(tmp_path / "run") if line["stage"] == "hash"]
    assert hashed
    assert not any("class_objective" in line for line in hashed)  # no codes were solved
    wide = replace(rival, hash=replace(stage, outputs=classes + 1))
    with pytest.raises(InputError, match=f"with {classes + 1} outputs, but there are {classes}"):
        train(splits, wide, tmp_path / "other", device="cpu", quiet=True)
    with pytest.raises(InputError, match="softmax, which tells classes apart, but the data are p"):
        train(splits, rival, tmp_path / "other", pairs=np.arange(60).reshape(-1, 2), quiet=True)


def test_groups_start_at_their_class_and_inside_it_at_their_own_mean(tmp_path: Path) -> None:
    """Given one direction a class: the classifier decides the class, the nearest mean the group."""
    splits = clouds(classes=4, items=60, noise=0.5)
    stage = Stage("codes", 12, 12, 4, 1, start="classes")
    settings = Settings({"name": "linear"}, None, stage, groups="auto", augment=None)
    torch.manual_seed(0)
    base = network(8, 6)
    inputs = torch.from_numpy(splits.preprocessing(splits.train.take(np.arange(len(splits.train)))))
    with torch.no_grad():
        raw = base.head(inputs).numpy()
        unit = base(inputs).numpy()
    classes = np.stack([unit[splits.train.labels == name].mean(axis=0) for name in range(4)])
    classes /= np.linalg.norm(classes, axis=1, keepdims=True)
    groups = split_classes(unit, splits.train.labels, 12, settings.seed)
    means = np.stack([unit[groups.labels == group].mean(axis=0) for group in range(12)])
    whole = np.stack([unit[splits.train.labels == name].mean(axis=0) for name in range(4)])
    wanted = raw @ (classes[groups.owners] + means - whole[groups.owners]).T
    made = hash_start(splits, settings, base, classes)
    with torch.no_grad():
        found = made(inputs).numpy()
    # Up to the little that is random, and as long as 16 cosines.
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.98
    longest = np.abs(found).max() / (16 * np.abs(wanted).max() / np.linalg.norm(raw, axis=1).mean())
    assert 0.8 < longest < 1.25
    with pytest.raises(InputError, match=r"directions have shape \(3, 6\); expected \[12, m\]"):
        hash_start(splits, settings, base, classes[:3])
