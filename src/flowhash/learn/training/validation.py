"""Validation: how good a network is on its split, and which of a stage's states is the best one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flowhash.data import LabelledItems, Preprocessing
from flowhash.networks import EmbeddingNetwork, run_networks
from flowhash.quality import search_quality

BATCH = 500
# Of two states with nearly the same SUF the more precise one is better; one that opens many more
# items is precise because it searches nearly everything, and is not.
SPEED_UP_KEPT = 0.9


def embed(
    network: EmbeddingNetwork,
    data: LabelledItems,
    preprocessing: Preprocessing,
    device: torch.device,
    batch: int = BATCH,
) -> NDArray[np.float32]:
    """The network's outputs for all items of a split [n, outputs]."""
    positions = np.arange(len(data))
    size = min(batch, BATCH)  # where a training batch has room, this one has
    batches = (
        preprocessing(data.take(positions[start : start + size]))
        for start in range(0, len(data), size)
    )
    return np.concatenate([made for [made] in run_networks([network], batches, device)])


def validate(
    network: EmbeddingNetwork,
    data: LabelledItems,
    preprocessing: Preprocessing,
    device: torch.device,
    active: int | None = None,
    ranking: NDArray[np.float32] | None = None,
    batch: int = BATCH,
) -> dict[str, Any]:
    """Pr@1, SUF, NMI and bucket loads: every item is searched among the others, through the table.

    Args:
        network: as it is.
        data: the validation split.
        preprocessing: what the network takes.
        device: where the network is.
        active: k, or None in stage 1, where all items are searched.
        ranking: embeddings to rank by [n, dim]; None for the network's own outputs.
        batch: items that go through the network at once, at most.
    """
    made = embed(network, data, preprocessing, device, batch)
    if active is None:
        # One bucket that holds everything: the table's exact search, exhaustive.
        found = search_quality(np.zeros((len(made), 1), np.float32), made, data.labels, 1)
        return {"pr1": found.precision[1], "suf": 1.0}
    found = search_quality(made, made if ranking is None else ranking, data.labels, active)
    values: dict[str, Any] = {
        "pr1": found.precision[1],
        "suf": found.speed_up,
        "largest_bucket": float(found.loads.max() / len(made)),
        "empty_buckets": float((found.loads == 0).mean()),
        "load_variation": float(found.loads.std() / found.loads.mean()),
    }
    if found.nmi is not None:
        values["nmi"] = found.nmi
    return values


def in_words(values: dict[str, Any]) -> str:
    """A validation as a person reads it."""
    words = [f"validation Pr@1 {100 * values['pr1']:.2f} %"]
    if "empty_buckets" in values:
        words.append(f"SUF {values['suf']:.1f}")
        if "nmi" in values:
            words.append(f"NMI {100 * values['nmi']:.1f} %")
        words.append(f"largest bucket {100 * values['largest_bucket']:.1f} % of the items")
        words.append(f"{100 * values['empty_buckets']:.0f} % of the buckets empty")
    return ", ".join(words)


@dataclass
class Best:
    """The best validation so far."""

    pr1: float | None = None
    suf: float = 0.0
    largest_suf: float = 0.0

    def improves(self, values: dict[str, Any]) -> bool:
        """Take note of a validation; True where it takes the place of the best so far.

        It does if it has at least nine tenths of the largest SUF so far, and a higher Pr@1 than the
        best, or the best itself has no longer that much SUF. Only one state is kept, so one that
        was passed over does not come back.
        """
        self.largest_suf = max(self.largest_suf, values["suf"])
        enough = SPEED_UP_KEPT * self.largest_suf
        better = self.pr1 is None or self.suf < enough or values["pr1"] > self.pr1
        if values["suf"] < enough or not better:
            return False
        self.pr1, self.suf = values["pr1"], values["suf"]
        return True
