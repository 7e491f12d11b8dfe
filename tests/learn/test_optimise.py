"""Adam and SGD of a stage beside the same written out: who decays, and who learns how fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flowhash.learn import CrossEntropyLoss, Schedule, Stage
from flowhash.learn.training.training_loop import make_optimiser, set_rate
from flowhash.networks import EmbeddingNetwork, build_backbone

STEPS = 4
NORMALISATION = ("layers.1.", "_norm.", "shortcut.1.")
Numbers = NDArray[np.float64]


def stage(**changes: Any) -> Stage:
    options: dict[str, Any] = {
        "rate": 0.01, "backbone_rate": 0.1, "decay": 0.3, "head_decay": 0.7,
        "schedule": Schedule(at=(2,), factor=0.5),
    }  # fmt: skip
    return Stage("cross-entropy", 5, 2, 2, STEPS, **{**options, **changes})


def parts() -> tuple[EmbeddingNetwork, CrossEntropyLoss]:
    """Convolutions and normalisation, a head with a bias, and weights that belong to the loss."""
    torch.manual_seed(0)
    backbone = build_backbone({"name": "residual", "width": 4, "blocks": [1, 1]})
    return EmbeddingNetwork(backbone, 5), CrossEntropyLoss(3, 5)


def named(network: EmbeddingNetwork, loss: CrossEntropyLoss) -> dict[str, torch.nn.Parameter]:
    own = {f"loss.{name}": value for name, value in loss.named_parameters()}
    return dict(network.named_parameters()) | own


def adam(value: Numbers, gradients: list[Numbers], rates: list[float], decay: float) -> Numbers:
    """Adam with L2 in the gradient, as the authors' code had it: not decoupled."""
    first, second = np.zeros_like(value), np.zeros_like(value)
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        whole = gradient + decay * value
        first, second = 0.9 * first + 0.1 * whole, 0.999 * second + 0.001 * whole**2
        mean, square = first / (1 - 0.9**step), second / (1 - 0.999**step)
        value = value - rate * mean / (np.sqrt(square) + 1e-8)
    return value


def sgd(value: Numbers, gradients: list[Numbers], rates: list[float], decay: float) -> Numbers:
    """Nesterov's momentum of 0.9."""
    speed = np.zeros_like(value)
    for gradient, rate in zip(gradients, rates, strict=True):
        whole = gradient + decay * value
        speed = 0.9 * speed + whole
        value = value - rate * (whole + 0.9 * speed)
    return value


@pytest.mark.parametrize(("name", "written_out"), [("adam", adam), ("sgd", sgd)])
def test_steps_are_those_written_out(name: str, written_out: Callable[..., Numbers]) -> None:
    """Weights of convolutions and of the last layer decay, each at its own; nothing else does."""
    settings = stage(optimiser=name)
    network, loss = parts()
    values = named(network, loss)
    rng = np.random.default_rng(0)
    before = {key: value.detach().numpy().astype(np.float64) for key, value in values.items()}
    # Small beside what decays, so that either mistake moves a weight elsewhere.
    pushes = {key: 0.1 * rng.normal(size=(STEPS, *value.shape)) for key, value in before.items()}
    optimiser = make_optimiser(network, loss, settings)
    for step in range(STEPS):
        set_rate(optimiser, settings, step)
        for key, value in values.items():
            value.grad = torch.from_numpy(pushes[key][step]).float()
        optimiser.step()
    for key, value in values.items():
        backbone = key.startswith("backbone.")
        rate = 0.001 if backbone else 0.01
        decay = 0.3 if backbone else 0.7
        if key.endswith("bias") or any(part in key for part in NORMALISATION):
            decay = 0.0
        rates = [rate, rate, rate / 2, rate / 2]
        expected = written_out(before[key], list(pushes[key]), rates, decay)
        found = value.detach().numpy()
        moved = np.abs(expected - before[key]).max()
        np.testing.assert_allclose(found, expected, atol=1e-3 * moved, rtol=1e-6, err_msg=key)
    assert {"head.weight", "head.bias", "loss.weight", "backbone.layers.0.weight"} <= set(values)


def test_a_rate_of_zero_freezes_the_backbone() -> None:
    network, loss = parts()
    optimiser = make_optimiser(network, loss, stage(backbone_rate=0.0))
    assert not any(value.requires_grad for value in network.backbone.parameters())
    held = {id(value) for group in optimiser.param_groups for value in group["params"]}
    assert held == {id(value) for value in (*network.head.parameters(), *loss.parameters())}
