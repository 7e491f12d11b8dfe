"""Who learns how fast: groups of parameters, and the rate at each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flowhash.learn.settings import Stage
from flowhash.networks import EmbeddingNetwork


def make_optimiser(
    network: EmbeddingNetwork, loss: nn.Module, stage: Stage
) -> torch.optim.Optimizer:
    """Adam or SGD over the head at the full rate, the backbone at its share of it.

    Weight decay touches weights only: no bias, no normalisation. It is L2 in the gradient, as the
    authors' code had it, not decoupled.
    """
    groups: list[dict[str, Any]] = []
    backbone = stage.rate * stage.backbone_rate
    if backbone > 0:
        groups += _groups(network.backbone, backbone, stage.decay)
    else:
        network.backbone.requires_grad_(False)
    groups += _groups(network.head, stage.rate, stage.head_decay)
    groups += _groups(loss, stage.rate, stage.head_decay)
    for group in groups:
        group["full_rate"] = group["lr"]
    if stage.optimiser == "adam":
        return torch.optim.Adam(groups)
    return torch.optim.SGD(groups, lr=stage.rate, momentum=0.9, nesterov=True)


def _groups(module: nn.Module, rate: float, decay: float) -> list[dict[str, Any]]:
    weights = [value for value in module.parameters() if value.ndim > 1]
    others = [value for value in module.parameters() if value.ndim <= 1]
    made = [
        {"params": weights, "lr": rate, "weight_decay": decay},
        {"params": others, "lr": rate, "weight_decay": 0.0},
    ]
    return [group for group in made if group["params"]]


def set_rate(optimiser: torch.optim.Optimizer, stage: Stage, step: int) -> float:
    """Give each group its rate at ``step``; returns the head's."""
    scale = stage.schedule.scale(step, stage.steps)
    for group in optimiser.param_groups:
        group["lr"] = group["full_rate"] * scale
    return stage.rate * scale
