"""Oracles for the learning room: the paper's formulas in loops, or directly with [B, B, d]."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


def gated_distances(embeddings: Array, codes: NDArray[np.int64]) -> Array:
    """Eq. 6, pair by pair and bucket by bucket."""
    count, size = embeddings.shape
    result = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            for bucket in range(size):
                if bucket in codes[i] or bucket in codes[j]:
                    result[i, j] += abs(embeddings[i, bucket] - embeddings[j, bucket])
    return result


def gated_products(embeddings: Array, codes: NDArray[np.int64]) -> Array:
    """The masked inner product, pair by pair and bucket by bucket."""
    count, size = embeddings.shape
    result = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            for bucket in range(size):
                if bucket in codes[i] or bucket in codes[j]:
                    result[i, j] += embeddings[i, bucket] * embeddings[j, bucket]
    return result


def mask(embeddings: Tensor, codes: Tensor) -> Tensor:
    """h_i ∨ h_j as a tensor of zeros and ones [B, B, d]."""
    binary = torch.zeros_like(embeddings).scatter(1, codes, 1.0)
    return torch.maximum(binary[:, None], binary[None])


def direct_distance(embeddings: Tensor, codes: Tensor) -> Tensor:
    """Eq. 6 as it stands, with its [B, B, d] tensor, for autograd to go through."""
    differences = (embeddings[:, None] - embeddings[None]).abs()
    return (mask(embeddings, codes) * differences).sum(2)


def direct_product(embeddings: Tensor, codes: Tensor) -> Tensor:
    """The masked inner product with its [B, B, d] tensor."""
    return (mask(embeddings, codes) * embeddings[:, None] * embeddings[None]).sum(2)


def triplet(distances: Array, labels: NDArray[np.int64], margin: float) -> float:
    """Eq. 7 over all anchors and positives, the semi-hard rule written out."""
    terms = []
    count = len(labels)
    for anchor in range(count):
        negatives = [k for k in range(count) if labels[k] != labels[anchor]]
        for positive in range(count):
            if positive == anchor or labels[positive] != labels[anchor]:
                continue
            reach = distances[anchor, positive]
            farther = [distances[anchor, k] for k in negatives if distances[anchor, k] > reach]
            chosen = min(farther) if farther else max(distances[anchor, k] for k in negatives)
            terms.append(max(0.0, reach + margin - chosen))
    return sum(terms) / len(terms)


def npairs(
    similarities: Array, embeddings: Array, labels: NDArray[np.int64], regulariser: float
) -> float:
    """Eq. 8 with its exponentials and sums, and its regulariser."""
    terms = []
    count = len(labels)
    for i in range(count):
        for j in range(count):
            if i == j or labels[i] != labels[j]:
                continue
            own = math.exp(similarities[i, j])
            others = sum(
                math.exp(similarities[i, k]) for k in range(count) if labels[k] != labels[i]
            )
            terms.append(-math.log(own / (own + others)))
    norms = sum(float(value) ** 2 for row in embeddings for value in row)
    return sum(terms) / len(terms) + regulariser / count * norms


def unit(embeddings: Array) -> Array:
    """Each row divided by its length."""
    return np.array([row / math.sqrt(sum(value**2 for value in row)) for row in embeddings])


def squared_distances(embeddings: Array) -> Array:
    """‖f_i - f_j‖², pair by pair."""
    count = len(embeddings)
    result = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            result[i, j] = sum((embeddings[i] - embeddings[j]) ** 2)
    return result


def distinct_codes(rng: Any, count: int, size: int, active: int) -> NDArray[np.int64]:
    """A random code for each of ``count`` items, in any order within a row."""
    return np.array([rng.choice(size, active, replace=False) for _ in range(count)], np.int64)
