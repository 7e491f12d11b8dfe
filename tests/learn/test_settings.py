"""Settings to JSON and back, schedules by hand, and each preset against the paper's table."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest

from flowhash.errors import InputError
from flowhash.learn import PRESETS, Schedule, Settings, Stage, preset


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_json_round_trip(name: str) -> None:
    settings = preset(name)
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings
    changed = preset(name, active=3, seed=7, rank="hash", augment=None, penalty=0.25)
    again = Settings.from_json(json.loads(json.dumps(changed.to_json())))
    assert again == changed
    assert (again.active, again.seed, again.rank, again.augment) == (3, 7, "hash", None)


def test_json_without_a_stage_1() -> None:
    settings = Settings({"name": "linear"}, None, Stage("npairs", 8, 4, 2, 10))
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_steps_of_a_schedule() -> None:
    schedule = Schedule(at=(10, 20), factor=0.3)
    scales = [schedule.scale(step, 30) for step in (0, 9, 10, 19, 20, 29)]
    assert scales == pytest.approx([1, 1, 0.3, 0.3, 0.09, 0.09])
    assert Schedule().scale(12345, 10) == 1
    assert Schedule(at=(5,)).scale(5, 10) == pytest.approx(0.1)


def test_cycle_of_a_schedule() -> None:
    schedule = Schedule("cycle", warm=0.2)
    # Of 100 steps 20 rise from a tenth, by 0.9 / 20 each, and 80 fall by 1 / 80 each.
    by_hand = {0: 0.1, 1: 0.145, 10: 0.55, 19: 0.955, 20: 1.0, 60: 0.5, 99: 0.0125, 100: 0.0}
    for step, scale in by_hand.items():
        assert schedule.scale(step, 100) == pytest.approx(scale), step
    assert [schedule.scale(step, 1) for step in (0, 1)] == pytest.approx([0.1, 0.0])
    assert all(0 <= schedule.scale(step, 7) <= 1 for step in range(9))


def cells(stage: Stage) -> dict[str, Any]:
    """What the paper's table says of a stage."""
    return {
        "batch": stage.batch,
        "classes": stage.classes,
        "outputs": stage.outputs,
        "optimiser": stage.optimiser,
        "rate": stage.rate,
        "backbone": stage.rate * stage.backbone_rate,
        "steps": stage.steps,
        "decays": (stage.schedule.kind, stage.schedule.at, stage.schedule.factor),
        "loss": (stage.loss, stage.loss_options),
        "weight decay": (stage.decay, stage.head_decay),
    }


# Every cell of details.md's table of hyper-parameters, by hand.
CIFAR_BASE = {
    "batch": 128, "optimiser": "adam", "rate": 1e-3, "backbone": 1e-3, "steps": 175_000,
    "decays": ("step", (100_000,), 0.1), "weight decay": (4e-5, 5e-4),
}  # fmt: skip
CIFAR_HASH = {
    "batch": 128, "optimiser": "adam", "rate": 1e-3, "backbone": 1e-4, "steps": 70_000,
    "decays": ("step", (40_000,), 0.1), "weight decay": (0.0, 0.0),
}  # fmt: skip
IMAGENET_BASE = {
    "batch": 512, "optimiser": "adam", "rate": 1e-3, "backbone": 1e-3, "steps": 450_000,
    "decays": ("step", (200_000, 400_000), 0.3), "weight decay": (4e-5, 5e-4),
}  # fmt: skip
IMAGENET_HASH = {
    "optimiser": "adam", "rate": 3e-4, "backbone": 3e-5, "weight decay": (0.0, 0.0),
}  # fmt: skip
TABLE: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "paper-cifar100-npairs": (
        {**CIFAR_BASE, "classes": 64, "outputs": 64, "loss": ("npairs", {"regulariser": 0.003})},
        {**CIFAR_HASH, "classes": 64, "outputs": 64, "loss": ("npairs", {"regulariser": 0.003})},
        0.3,
    ),
    "paper-cifar100-triplet": (
        {**CIFAR_BASE, "classes": 16, "outputs": 256, "loss": ("triplet", {"margin": 0.3})},
        {**CIFAR_HASH, "classes": 64, "outputs": 256, "loss": ("triplet", {"margin": 1.0})},
        1.0,
    ),
    "paper-imagenet32-npairs": (
        {
            **IMAGENET_BASE, "classes": 256, "outputs": 512,
            "loss": ("npairs", {"regulariser": 0.002}),
        },
        {
            **IMAGENET_HASH, "batch": 1024, "classes": 512, "outputs": 512, "steps": 35_000,
            "decays": ("step", (15_000, 30_000), 0.3), "loss": ("npairs", {"regulariser": 0.003}),
        },
        10.0,
    ),
    "paper-imagenet32-triplet": (
        {**IMAGENET_BASE, "classes": 256, "outputs": 256, "loss": ("triplet", {"margin": 1.0})},
        {
            **IMAGENET_HASH, "batch": 512, "classes": 256, "outputs": 256, "steps": 70_000,
            "decays": ("step", (30_000, 60_000), 0.3), "loss": ("triplet", {"margin": 1.0}),
        },
        1.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TABLE))
def test_presets_are_the_papers(name: str) -> None:
    settings, (base, hashed, step) = preset(name), copy.deepcopy(TABLE[name])
    assert settings.base is not None
    for stage, expected in ((settings.base, base), (settings.hash, hashed)):
        found = cells(stage)
        assert found.pop("backbone") == pytest.approx(expected.pop("backbone"))
        assert found == expected
    assert 2 * settings.penalty == pytest.approx(step)  # the cost step is 2λ
    assert settings.backbone == {"name": "nin"}
    assert (settings.rank, settings.augment, settings.active) == (
        "base",
        {"pad": 4, "flip": True},
        1,
    )
    # Only ImageNet's hash layer starts otherwise in the released code.
    assert settings.hash.start == ("small" if "imagenet32" in name else "random")


def test_every_column_has_a_preset() -> None:
    assert {name for name in PRESETS if name.startswith("paper-")} == set(TABLE)
    for name in ("cpu-cifar100-npairs", "cpu-cifar100-triplet"):
        small, paper = preset(name), preset(name.replace("cpu", "paper"))
        # What is compared with the paper's: buckets, loss and λ are the paper's, or its code's.
        assert small.hash.outputs == paper.hash.outputs
        assert small.hash.loss == paper.hash.loss
        options = dict(small.hash.loss_options)
        assert options.pop("product", True)
        assert options == paper.hash.loss_options
        assert small.penalty == paper.penalty


def test_presets_with_changes() -> None:
    assert preset("paper-cifar100-npairs", active=4).active == 4
    with pytest.raises(InputError, match="the preset is 'cifar'; choose one of paper-cifar100"):
        preset("cifar")
    with pytest.raises(InputError, match=r"cannot take .*'activ'"):
        preset("cpu-digits", activ=2)
    with pytest.raises(InputError, match="active is 65; expected 1 to 64"):
        preset("paper-cifar100-npairs", active=65)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": 0}, "outputs is 0; expected a whole number"),
        ({"classes": 2.0}, "classes is 2.0; expected a whole number"),
        ({"items": -1}, "items is -1"),
        ({"steps": 0}, "steps is 0"),
        ({"optimiser": "adamw"}, 'optimiser is .adamw.; expected "adam" or "sgd"'),
        ({"start": "zero"}, 'start is .zero.; expected "random", "small" or "classes"'),
        ({"rate": 0.0}, "rate is 0.0 .*positive rate"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"backbone_rate": -0.1}, "backbone_rate -0.1"),
    ],
)
def test_stages_refuse(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(Stage("npairs", 8, 4, 2, 10), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": "both"}, 'rank is .both.; expected "base", "whitened" or "hash"'),
        ({"active": 0}, "active is 0; expected 1 to 8"),
        ({"active": 9}, "active is 9; expected 1 to 8"),
        ({"penalty": -1.0}, "penalty is -1.0"),
        ({"validate_every": 0}, "validate_every is 0"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"log_every": 0}, "log_every is 0"),
    ],
)
def test_settings_refuse(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(
            Settings({"name": "nin"}, None, Stage("npairs", 8, 4, 2, 10)), **changes
        )


def test_schedules_refuse() -> None:
    with pytest.raises(InputError, match="the schedule is 'cosine'"):
        Schedule("cosine")
