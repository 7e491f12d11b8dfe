"""A softmax classifier on embeddings: the rival where all classes are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from flowhash.data.files import release_pages

EPOCHS, BATCH, RATE = 20, 512, 0.05
LEAST = 300  # steps; small sets get more epochs until there are as many


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

    Every item is seen equally often: at least 20 times, whatever the size of the training set.

    Args:
        embeddings: of the training set [n, dim], in memory or mapped.
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
    epoch = -(-len(labels) // BATCH)
    epochs = max(EPOCHS, -(-LEAST // epoch))
    for step, chosen in enumerate(_batches(len(labels), epochs, rng)):
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - step / (epoch * epochs))
        rows = torch.from_numpy(np.array(embeddings[chosen], np.float32) * np.float32(scale))
        release_pages(embeddings)  # of a large training set they are mapped
        value = nn.functional.cross_entropy(layer(rows), torch.from_numpy(labels[chosen]))
        optimiser.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    weights = scale * layer.weight.detach().numpy()
    return Linear(np.asarray(weights, np.float32), layer.bias.detach().numpy())


def _batches(count: int, epochs: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Positions of each batch, ascending as a file is read; an epoch has every item once.

    Batches are of one size, but for one item: a last one of a few items would be mostly noise.
    """
    for _ in range(epochs):
        for chosen in np.array_split(rng.permutation(count), -(-count // BATCH)):
            yield np.sort(chosen)
