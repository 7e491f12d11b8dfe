"""Learning: the gated distance, losses, samplers and the two training stages."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowhash.learn.gated_distance import (
        GatedDistance,
        GatedSimilarity,
        gated_distance,
        gated_product,
    )
    from flowhash.learn.losses import LOSSES, CrossEntropyLoss, NPairsLoss, TripletLoss, make_loss
    from flowhash.learn.presets import PRESETS, preset, suggest
    from flowhash.learn.samplers import ClassBalancedSampler, PairSampler
    from flowhash.learn.settings import Schedule, Settings, Stage
    from flowhash.learn.train_encoder import train, train_base

# Where each public name lives; loaded when first used, so that a sampler needs no torch.
# No module is called like one of them: importing it sets its name on the package, and hides them.
_HOMES = {
    "GatedDistance": "distances",
    "GatedSimilarity": "distances",
    "gated_distance": "gated",
    "gated_product": "gated",
    "LOSSES": "losses",
    "CrossEntropyLoss": "losses",
    "NPairsLoss": "losses",
    "TripletLoss": "losses",
    "make_loss": "losses",
    "PRESETS": "presets",
    "preset": "presets",
    "suggest": "presets",
    "ClassBalancedSampler": "sampler",
    "PairSampler": "sampler",
    "Schedule": "settings",
    "Settings": "settings",
    "Stage": "settings",
    "train": "train_encoder",
    "train_base": "train_encoder",
}

__all__ = [
    "LOSSES",
    "PRESETS",
    "ClassBalancedSampler",
    "CrossEntropyLoss",
    "GatedDistance",
    "GatedSimilarity",
    "NPairsLoss",
    "PairSampler",
    "Schedule",
    "Settings",
    "Stage",
    "TripletLoss",
    "gated_distance",
    "gated_product",
    "make_loss",
    "preset",
    "suggest",
    "train",
    "train_base",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use (PEP 562)."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"flowhash.learn.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'flowhash.learn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
