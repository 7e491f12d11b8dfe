"""Whole trainings: what they learn, what they leave behind, and how they stop."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flowhash.encoder import Encoder
from flowhash.errors import InputError, TrainingError
from flowhash.learn import Schedule, Settings, Stage, adapt_encoder, train
from flowhash.learn.batches import THREAD
from flowhash.learn.training.training_journal import Progress
from flowhash.model_files import read_json, read_tensors
from flowhash.networks import EmbeddingNetwork, build_backbone, custom_backbone
from tests.learn import trainer
from tests.learn.trainer import clouds, lines, picture_settings, pictures, vector_settings


def precision_at_one(encoder: Encoder, data: Any) -> tuple[float, float]:
    """Pr@1 through the buckets by brute force, and the share of items that is looked at."""
    encoded = encoder.encode(data, device="cpu")
    codes, found, seen = encoded.codes, 0, 0
    for query in range(len(data)):
        mates = [
            item
            for item in range(len(data))
            if item != query and set(codes[item]) & set(codes[query])
        ]
        seen += len(mates)
        if mates:
            gaps = [
                float(((encoded.embeddings[item] - encoded.embeddings[query]) ** 2).sum())
                for item in mates
            ]
            found += data.labels[mates[int(np.argmin(gaps))]] == data.labels[query]
    return found / len(data), seen / len(data) / (len(data) - 1)


def learning(**changes: Any) -> Settings:
    """Long enough to learn the clouds."""
    base = Stage("triplet", 8, 6, 4, 60, {"margin": 0.3}, rate=5e-3, schedule=Schedule("cycle"))
    hashed = replace(base, outputs=12, loss_options={"margin": 1.0})
    settings = Settings(
        {"name": "mlp", "hidden": [32]}, base, hashed, penalty=0.5,
        log_every=10, validate_every=20, checkpoint_every=20,
    )  # fmt: skip
    return replace(settings, **changes)


def test_vectors_are_learned(tmp_path: Path) -> None:
    splits = clouds()
    assert splits.test is not None
    encoder = train(splits, learning(), tmp_path, quiet=True)
    precision, share = precision_at_one(encoder, splits.test)
    assert precision > 0.8  # chance is 1/6
    assert share < 0.4  # of all items; the classes are a sixth each
    assert (encoder.dim, encoder.buckets, encoder.active) == (8, 12, 1)
    assert encoder.class_names == tuple("012345")
    stored = Encoder.load(tmp_path / "encoder")
    assert stored.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(
        stored.encode(splits.test).activations, encoder.encode(splits.test).activations
    )


def test_images_are_learned(tmp_path: Path) -> None:
    splits = pictures()
    assert splits.test is not None
    settings = picture_settings(backbone={"name": "nin", "width": 1 / 16, "dropout": 0.1}, active=1)
    assert settings.base is not None
    settings = replace(
        settings,
        base=replace(settings.base, steps=60, rate=5e-3),
        hash=replace(settings.hash, steps=40, rate=5e-3),
        validate_every=20,
    )
    encoder = train(splits, settings, tmp_path, quiet=True)
    precision, share = precision_at_one(encoder, splits.test)
    assert precision > 0.75  # chance is 1/4
    assert share < 0.6


def test_the_encoder_has_the_weights_of_the_best_validation(tmp_path: Path) -> None:
    splits = clouds()
    encoder = train(splits, learning(), tmp_path, quiet=True)
    assert encoder.base is not None
    for stage, network in (("base", encoder.base), ("hash", encoder.hash)):
        record = read_json(tmp_path / stage / "best.json")
        tensors = read_tensors(tmp_path / stage / record["tensors"])
        for name, value in network.state_dict().items():
            assert torch.equal(value, tensors[f"network.{name}"]), name
        shown = [line for line in lines(tmp_path) if line["stage"] == stage and "pr1" in line]
        chosen = next(line for line in shown if line["step"] == record["step"])
        assert chosen["pr1"] == record["best"]["pr1"]
        fast = [line for line in shown if line["suf"] >= chosen["suf"]]
        assert chosen["pr1"] == max(line["pr1"] for line in fast)


def test_the_base_network_is_a_snapshot_of_stage_1(tmp_path: Path) -> None:
    """The hash stage trains a copy: the ranking embedding stays what stage 1 made."""
    encoder = train(clouds(), learning(), tmp_path, quiet=True)
    assert encoder.base is not None
    pairs = list(
        zip(encoder.base.backbone.parameters(), encoder.hash.backbone.parameters(), strict=True)
    )
    assert pairs
    for one, other in pairs:
        assert not torch.equal(one, other)
        # At a rate a tenth … or full, it started from there: it is much nearer than a new one.
        assert float((one - other).norm()) < float(one.norm())


def test_vectors_may_rank_as_they_are(tmp_path: Path) -> None:
    splits = clouds()
    assert splits.test is not None
    encoder = train(splits, learning(base=None), tmp_path, quiet=True)
    items = splits.test.take(np.arange(len(splits.test)))
    # Without a stage 1 the embedding is the preprocessed vector.
    np.testing.assert_array_equal(
        encoder.encode(splits.test).embeddings, splits.preprocessing(items)
    )
    assert precision_at_one(encoder, splits.test)[0] > 0.8
    assert not (tmp_path / "base").exists()
    assert {line["stage"] for line in lines(tmp_path)} == {"hash"}


def test_without_a_folder_it_learns_the_same_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    splits = clouds()
    passing = train(splits, vector_settings(), None, quiet=True)
    assert list(tmp_path.iterdir()) == []
    kept = train(splits, vector_settings(), tmp_path / "run", quiet=True)
    assert passing.fingerprint == kept.fingerprint


def test_trouble_in_memory_names_no_checkpoint() -> None:
    settings = vector_settings()
    assert settings.base is not None
    wild = replace(settings, base=replace(settings.base, rate=1e30), checkpoint_every=1)
    with pytest.raises(TrainingError, match="there is no checkpoint yet"):
        train(clouds(), wild, None, quiet=True)


def test_images_do_not_rank_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no base stage"):
        train(pictures(), picture_settings(base=None), tmp_path, quiet=True)


def test_a_backbone_of_vectors_refuses_images(tmp_path: Path) -> None:
    settings = picture_settings(backbone={"name": "mlp", "hidden": [8]})
    with pytest.raises(InputError, match="'mlp' takes vectors, but the data set holds images"):
        train(pictures(), settings, tmp_path, quiet=True)


def test_the_hash_network_may_rank(tmp_path: Path) -> None:
    splits = clouds()
    assert splits.test is not None
    encoder = train(splits, learning(rank="hash"), tmp_path, quiet=True)
    assert encoder.base is None
    encoded = encoder.encode(splits.test)
    np.testing.assert_array_equal(encoded.embeddings, encoded.activations)
    assert precision_at_one(encoder, splits.test)[0] > 0.8


def test_another_encoder_may_be_the_base(tmp_path: Path) -> None:
    splits = clouds()
    assert splits.test is not None
    first = train(splits, learning(), tmp_path / "first", quiet=True)
    second = train(splits, learning(active=2), tmp_path / "second", base=first, quiet=True)
    np.testing.assert_array_equal(
        first.encode(splits.test).embeddings, second.encode(splits.test).embeddings
    )
    assert not (tmp_path / "second" / "base").exists()
    ranked = train(splits, learning(rank="hash"), tmp_path / "ranked", quiet=True)
    with pytest.raises(InputError, match="ranks with its hash network"):
        train(splits, learning(), tmp_path / "third", base=ranked, quiet=True)


@pytest.mark.parametrize("own", [True, False])
def test_an_adapted_encoder_may_be_the_base(own: bool, tmp_path: Path) -> None:
    splits = clouds()
    assert splits.test is not None
    backbone = custom_backbone(Own(), 16) if own else None
    first = train(splits, learning(), None, backbone=backbone, quiet=True)
    made = first.encode(splits.test)
    adapted = adapt_encoder(first, made.embeddings, made.codes)
    second = train(splits, learning(), tmp_path, base=adapted, quiet=True)
    np.testing.assert_array_equal(second.encode(splits.test).embeddings, made.embeddings)
    finished = train(splits, learning(), tmp_path, base=adapted, quiet=True)
    assert finished.fingerprint == second.fingerprint


@pytest.mark.parametrize("stage", [True, False], ids=["with a stage 1", "without a stage 1"])
def test_the_hash_network_starts_from_the_base_that_is_given(stage: bool, tmp_path: Path) -> None:
    splits = clouds()
    base = EmbeddingNetwork(build_backbone({"name": "mlp", "inputs": 8, "hidden": [32]}), 8)
    settings = learning() if stage else learning(base=None)
    # A rate of nothing: what comes out is what went in.
    settings = replace(settings, hash=replace(settings.hash, steps=2, backbone_rate=0.0))
    encoder = train(splits, settings, tmp_path, base=base, quiet=True)
    for name, value in base.backbone.state_dict().items():
        assert torch.equal(value, encoder.hash.backbone.state_dict()[name])


def test_a_frozen_backbone_of_stage_1_learns_in_stage_2(tmp_path: Path) -> None:
    settings = learning()
    assert settings.base is not None
    settings = replace(settings, base=replace(settings.base, backbone_rate=0.0))
    encoder = train(clouds(), settings, tmp_path, quiet=True)
    assert encoder.base is not None
    one = encoder.base.backbone.state_dict()
    for name, value in encoder.hash.backbone.state_dict().items():
        assert not torch.equal(value, one[name])


class Own(nn.Module):
    """A network of a user's own; it can be told to do something at one of its forward passes."""

    def __init__(self, at: int = -1, action: Any = None) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)
        self.at, self.action = at, action

    def forward(self, vectors: Tensor) -> Tensor:
        if self.training:
            self.at -= 1
            if self.at == 0:
                self.action()
        return torch.tanh(self.layer(vectors))


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    splits = clouds()
    assert splits.test is not None
    torch.manual_seed(0)  # its weights are the caller's, whatever ran before
    own = custom_backbone(Own(), 16)
    before = own.layer.weight.detach().clone()
    encoder = train(splits, learning(), tmp_path, backbone=own, quiet=True)
    assert precision_at_one(encoder, splits.test)[0] > 0.6  # chance is 1/6
    assert torch.equal(own.layer.weight, before)  # a copy was trained
    again = train(splits, learning(), tmp_path, backbone=own, quiet=True)
    assert again.fingerprint == encoder.fingerprint
    with pytest.raises(InputError, match="custom_backbone"):
        train(splits, learning(), tmp_path / "unmarked", backbone=Own(), quiet=True)


def positive_pairs(labels: Any) -> Any:
    """Neighbours of one class, none of them twice."""
    places = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return np.concatenate([place[: len(place) // 2 * 2].reshape(-1, 2) for place in places])


def test_training_from_pairs(tmp_path: Path) -> None:
    splits = clouds(classes=20, items=12, noise=0.4)
    assert splits.test is not None
    pairs = positive_pairs(splits.train.labels)
    # Labels are there for the validation only: those of the training split are of no use.
    train_split = replace(splits.train, labels=np.zeros(len(splits.train), np.int64))
    stage = Stage("npairs", 16, 8, 2, 80, rate=5e-3, schedule=Schedule("cycle"))
    settings = learning(base=stage, hash=replace(stage, outputs=24))
    encoder = train(replace(splits, train=train_split), settings, tmp_path, pairs=pairs, quiet=True)
    precision, share = precision_at_one(encoder, splits.test)
    assert precision > 0.5  # chance is 1/20
    assert share < 0.3


def test_pairs_and_a_classifier_do_not_fit(tmp_path: Path) -> None:
    splits = clouds()
    settings = learning(base=Stage("cross-entropy", 8, 6, 4, 5))
    with pytest.raises(InputError, match="pairs"):
        train(splits, settings, tmp_path, pairs=positive_pairs(splits.train.labels), quiet=True)


def test_metrics(tmp_path: Path) -> None:
    settings = vector_settings(active=2, log_every=2, validate_every=4)
    train(clouds(), settings, tmp_path, quiet=True)
    written = lines(tmp_path)
    for text in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    logged = [line for line in written if "loss" in line]
    assert [(line["stage"], line["step"]) for line in logged] == [
        (stage, step) for stage in ("base", "hash") for step in range(2, 13, 2)
    ]
    for line in logged:
        assert {"loss", "rate", "items_per_second", "seconds"} <= line.keys()
        assert line["items_per_second"] > 0
    for line in (line for line in logged if line["stage"] == "hash"):
        assert 0 < line["solver_share"] < 1
        # g of two items a class is at most 2 ĝ + M; codes of classes have g = 2 ĝ.
        assert line["item_objective"] == pytest.approx(2 * line["class_objective"], abs=1e-4)
        assert line["bound_gap"] >= 0
        assert 0 < line["buckets_used"] <= 1
        assert 1 <= line["buckets_effective"] <= 12 + 1e-9
        assert 1 / 12 - 1e-9 <= line["largest_load"] <= 1
    seconds = [line["seconds"] for line in logged if line["stage"] == "hash"]
    assert seconds == sorted(seconds)
    checked = [line for line in written if line.get("validation")]
    assert [(line["stage"], line["step"]) for line in checked] == [
        (stage, step) for stage in ("base", "hash") for step in (4, 8, 12)
    ]
    for line in checked:
        assert 0 <= line["pr1"] <= 1
        assert line["suf"] >= 1
    assert all("nmi" not in line for line in checked)  # it is defined for k = 1
    assert all(line["suf"] == 1 for line in checked if line["stage"] == "base")


def test_nmi_at_one_active_bucket(tmp_path: Path) -> None:
    train(clouds(), vector_settings(active=1), tmp_path, quiet=True)
    checked = [line for line in lines(tmp_path) if "pr1" in line and line["stage"] == "hash"]
    assert checked
    assert all(0 <= line["nmi"] <= 1 for line in checked)


def test_rates_follow_the_schedule(tmp_path: Path) -> None:
    train(clouds(), vector_settings(), tmp_path, quiet=True)
    rates = [line["rate"] for line in lines(tmp_path) if "loss" in line and line["stage"] == "hash"]
    assert rates == pytest.approx([1e-3] * 8 + [1e-4] * 4)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(clouds(), vector_settings(), tmp_path, quiet=True)
    tags: set[str] = set()
    for file in (tmp_path / "tensorboard").rglob("events.*"):
        events = EventAccumulator(str(file))
        events.Reload()
        tags |= set(events.Tags()["scalars"])
    assert {"base/loss", "base/pr1", "hash/loss", "hash/class_objective", "hash/nmi"} <= tags


def test_without_validation_items_the_last_state_counts(tmp_path: Path) -> None:
    splits = clouds()
    empty = replace(splits, validation=splits.validation.subset(np.zeros(0, np.int64)))
    encoder = train(empty, vector_settings(), tmp_path, quiet=True)
    record = read_json(tmp_path / "hash" / "last.json")
    tensors = read_tensors(tmp_path / "hash" / record["tensors"])
    assert record["step"] == trainer.STEPS
    for name, value in encoder.hash.state_dict().items():
        assert torch.equal(value, tensors[f"network.{name}"])


@pytest.mark.parametrize("stage", ["base", "hash"])
def test_a_loss_that_is_not_finite(stage: str, tmp_path: Path) -> None:
    settings = vector_settings(checkpoint_every=1)
    made = getattr(settings, stage)
    # The first step works; its rate makes the second one's numbers overflow.
    settings = replace(
        settings, **{stage: replace(made, rate=1e30, optimiser="adam", schedule=Schedule())}
    )
    path = tmp_path / stage / "last.json"
    with pytest.raises(TrainingError, match=r"(is|not finite).*last good checkpoint is") as caught:
        train(clouds(), settings, tmp_path, quiet=True)
    assert str(path) in str(caught.value)
    tensors = read_tensors(path.parent / read_json(path)["tensors"])
    assert all(bool(value.isfinite().all()) for value in tensors.values())
    assert all(np.isfinite(line["loss"]) for line in lines(tmp_path) if "loss" in line)


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    """The loss is looked at before the step; the step itself may be what breaks."""
    settings, broken = vector_settings(checkpoint_every=1), custom_backbone(Steep(), 8)
    with pytest.raises(TrainingError, match=r"weight is not finite.*there is no checkpoint yet"):
        train(clouds(), settings, tmp_path, backbone=broken, quiet=True)
    assert not list((tmp_path / "base").glob("*.json"))


def test_an_interrupt_in_the_last_step_of_a_stage_counts(tmp_path: Path) -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    own = custom_backbone(Own(trainer.STEPS, interrupt), 16)
    with pytest.raises(KeyboardInterrupt):
        train(clouds(), vector_settings(), tmp_path, backbone=own, quiet=True)
    assert read_json(tmp_path / "base" / "last.json")["step"] == trainer.STEPS
    assert not (tmp_path / "hash").exists()


def test_signals_are_the_callers_again_afterwards(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train(clouds(), vector_settings(), tmp_path, quiet=True)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


class Steep(nn.Module):
    """Its outputs are finite, its gradient is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, vectors: Tensor) -> Tensor:
        made = self.layer(vectors)
        return made + (0 * made).sqrt()  # type: ignore[no-any-return]


def out_of_memory() -> None:
    raise torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize(("at", "kept"), [(1, "there is no checkpoint yet"), (8, "base/last.json")])
def test_no_memory(at: int, kept: str, tmp_path: Path) -> None:
    own = custom_backbone(Own(at, out_of_memory), 16)
    with pytest.raises(TrainingError, match=f"no memory for a batch of 12; .*{kept}"):
        train(clouds(), vector_settings(), tmp_path, backbone=own, quiet=True)


def test_other_errors_are_left_as_they_are(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("mat1 and mat2 cannot be multiplied")

    own = custom_backbone(Own(2, fail), 16)
    with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
        train(clouds(), vector_settings(), tmp_path, backbone=own, quiet=True)
    assert not isinstance(caught.value, TrainingError)


def test_an_error_of_the_data_arrives_and_no_thread_is_left(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("picture.png cannot be read")

    before = set(threading.enumerate())
    settings = vector_settings()
    with pytest.raises(OSError, match=r"picture\.png"):
        train(trainer.watched(clouds(), settings, 6, fail), settings, tmp_path, quiet=True)
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith(THREAD)]
    # After that it goes on to its end.
    assert train(clouds(), settings, tmp_path, quiet=True).buckets == 12


def test_settings_may_hold_tuples(tmp_path: Path) -> None:
    """JSON knows lists only; a run with a tuple in its settings goes on all the same."""
    settings = vector_settings(backbone={"name": "mlp", "hidden": (16,)})
    first = train(clouds(), settings, tmp_path, quiet=True)
    assert train(clouds(), settings, tmp_path, quiet=True).fingerprint == first.fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": 9}, "classes_per_batch is 9, but there are 6"),
        ({"items": 50}, "items_per_class is 50"),
        ({"loss": "cross-entropie"}, "choose one of"),
    ],
)
def test_settings_that_do_not_fit_are_said(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    settings = vector_settings()
    settings = replace(settings, hash=replace(settings.hash, **changes))
    with pytest.raises(InputError, match=message):
        train(clouds(), settings, tmp_path, quiet=True)


def test_time_left_is_in_hours(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    seconds = (26 * 60 + 3) * 60 + 4
    clock = iter((0.0, 60.0, 60.0))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    Progress("base", 60 + seconds).step(60, "")
    assert capsys.readouterr().err.endswith("  26:03:04 left\n")


def test_progress_is_said_where_there_is_no_terminal(tmp_path: Path, capsys: Any) -> None:
    train(clouds(), vector_settings(), tmp_path)
    said = capsys.readouterr().err
    for stage, step in itertools.product(("base", "hash"), (5, 10, 12)):
        assert f"{stage} step {step}: validation Pr@1" in said
    train(clouds(), vector_settings(), tmp_path / "quiet", quiet=True)
    assert capsys.readouterr().err == ""
