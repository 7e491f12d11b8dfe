"""A softmax classifier on embeddings: the rival where all classes are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

ROUNDS, BATCH, RATE = 20, 512, 0.05
LEAST, MOST = 300, 3_000  # steps


@dataclass(frozen=True)
class Linear:
    """Scores of classes from embeddings.

    Attributes:
        weights: [classes, dim].
        bias: [classes].
    """

    weights: NDArray[np.float32]
    bias: NDArray[np.float32]

    def scores(self, embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
        """[n, classes]; the largest is the likeliest class."""
        return np.asarray(embeddings @ self.weights.T + self.bias, np.float32)


def fit_classifier(
    embeddings: NDArray[np.float32], labels: NDArray[np.int64], classes: int, seed: int = 0
) -> Linear:
    """Logistic regression in small batches, so that a large training set fits into memory.

    Args:
        embeddings: of the training set [n, dim].
        labels: [n].
        classes: how many there are.
        seed: of where it starts, and of the batches.
    """
    rng = np.random.default_rng(seed)
    scale = 1 / max(float(np.std(embeddings[: 100 * BATCH])), 1e-12)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = nn.Linear(embeddings.shape[1], classes)
    optimiser = torch.optim.Adam(layer.parameters(), RATE)
    batch = min(BATCH, len(labels))
    steps = min(MOST, max(LEAST, ROUNDS * len(labels) // batch))
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - step / steps)
        chosen = np.sort(rng.choice(len(labels), batch, replace=False))
        rows = torch.from_numpy(np.array(embeddings[chosen], np.float32) * np.float32(scale))
        value = nn.functional.cross_entropy(layer(rows), torch.from_numpy(labels[chosen]))
        optimiser.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    weights = scale * layer.weight.detach().numpy()
    return Linear(np.asarray(weights, np.float32), layer.bias.detach().numpy())
