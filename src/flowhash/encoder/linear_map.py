"""``LinearMap``: what an encoder of plain vectors and linear layers makes of a few, without torch.

Calling torch takes longer than a product of one vector with the weights of some thousand buckets,
and longer than the search that follows. Batches are torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from flowhash.compile import filter_kernel, kernel
from flowhash.data import Preprocessing
from flowhash.networks import BaseEmbeddings, EmbeddingNetwork, PlainVectors

MOST_ROWS = 64
MOST_PRODUCTS = 1 << 21  # of all rows and weights; beyond, torch is as quick
LONGEST_SQUARE = np.float32(1e29)  # of a vector: longer ones are looked at the usual way
INPUTS_TOGETHER = 4  # inputs whose weights are added to all outputs in one pass


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear layer.

    Attributes:
        weights: [inputs, outputs], so that a pass over them is one over memory.
        biases: [outputs].
    """

    weights: NDArray[np.float32]
    biases: NDArray[np.float32]

    @classmethod
    def of(cls, head: nn.Module) -> Layer:
        """Of a ``nn.Linear``; copies."""
        weights = head.get_parameter("weight").detach().cpu().numpy()
        biases = head.get_parameter("bias").detach().cpu().numpy()
        return cls(np.ascontiguousarray(weights.T), biases.copy())

    def __call__(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """The outputs [n, outputs] for rows [n, inputs]."""
        made = np.empty((len(rows), len(self.biases)), np.float32)
        add_products(rows, self.weights, self.biases, made)
        return made


@dataclass(frozen=True, eq=False)
class LinearMap:
    """Embeddings and activations of a few vectors, as the networks make them.

    Embeddings that are the vectors themselves are the same to the last bit. Products are sums in
    another order than torch's, whose own order depends on how many rows there are.

    Attributes:
        scale: of the preprocessing.
        mean: of the preprocessing [dim].
        inverse: one over its spread [dim].
        base: makes embeddings of vectors; None where they are the vectors, or the activations.
        hash: makes activations.
        chained: whether ``hash`` takes embeddings, not vectors.
        alone: whether activations are the embeddings.
    """

    scale: np.float32
    mean: NDArray[np.float32]
    inverse: NDArray[np.float32]
    base: Layer | None
    hash: Layer
    chained: bool
    alone: bool

    @classmethod
    def of(
        cls,
        base: EmbeddingNetwork | None,
        hash: EmbeddingNetwork,
        preprocessing: Preprocessing,
    ) -> LinearMap | None:
        """What the networks do, where it is no more than that, and not too much for one row."""
        if preprocessing.kind != "vectors" or not all(map(_is_linear, filter(None, (base, hash)))):
            return None
        heads = [network.head for network in (base, hash) if network and _has_layer(network)]
        sizes = [head.get_parameter("weight").numel() for head in heads]
        if not _has_layer(hash) or sum(sizes) > MOST_PRODUCTS:
            return None
        layers = [Layer.of(head) for head in heads]
        first = layers[0] if len(layers) > 1 else None
        chained = isinstance(hash.backbone, BaseEmbeddings)
        dim = len(layers[0].weights)
        shapes = {part.shape for part in (preprocessing.mean, preprocessing.std)}
        if not shapes <= {(), (dim,)}:
            return None
        return cls(
            np.float32(preprocessing.scale),
            np.array(np.broadcast_to(preprocessing.mean, dim)),
            np.array(np.broadcast_to(1 / preprocessing.std, dim)),
            first,
            layers[-1],
            chained,
            base is None,
        )

    def encode(self, items: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """Embeddings [n, dim] and activations [n, d].

        None where they are not few rows of float32, or have something that is to be refused: the
        usual way says what.
        """
        if not (
            type(items) is np.ndarray
            and items.dtype == np.float32
            and items.ndim == 2
            and items.shape[1] == len(self.mean)
            and self._are_few(items)
        ):
            return None
        vectors = np.empty(items.shape, np.float32)
        layer = self.base or self.hash
        made = np.empty((len(items), len(layer.biases)), np.float32)
        if not prepare_and_multiply(
            items, self.scale, self.mean, self.inverse, layer.weights, layer.biases, vectors, made
        ):
            return None
        if self.alone:
            return made, made
        if self.base is None:
            return vectors, made
        return made, self.hash(made if self.chained else vectors)

    def activations_of(self, embeddings: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """Those of stored items [n, d], by their embeddings [n, dim]; None where they are many."""
        if not self._are_few(embeddings) or embeddings.dtype != np.float32:
            return None
        return self.hash(embeddings)

    def _are_few(self, rows: NDArray[np.float32]) -> bool:
        """Whether they are quicker so than by torch; kernels take arrays that may be written to."""
        size = self.hash.weights.size + (0 if self.base is None else self.base.weights.size)
        return 0 < len(rows) <= min(MOST_ROWS, MOST_PRODUCTS // size) and rows.flags.carray


def _is_linear(network: EmbeddingNetwork) -> bool:
    """Whether it gives vectors as they are, or a linear layer of them."""
    backbone, order = network.backbone, network.order
    plain = type(backbone) is PlainVectors or (
        type(backbone) is BaseEmbeddings and not backbone.classes
    )
    known = isinstance(network.head, nn.Identity) or _has_layer(network)
    return plain and known and not network.unit and (order is None or not order.weight)


def _has_layer(network: EmbeddingNetwork) -> bool:
    head = network.head
    return type(head) is nn.Linear and head.bias is not None and head.weight.dtype == torch.float32


@kernel
def prepare_and_multiply(
    items: NDArray[np.float32],
    scale: np.float32,
    mean: NDArray[np.float32],
    inverse: NDArray[np.float32],
    weights: NDArray[np.float32],
    biases: NDArray[np.float32],
    vectors: NDArray[np.float32],
    made: NDArray[np.float32],
) -> bool:
    """Write vectors as networks take them [n, dim], and a layer's outputs for them [n, outputs].

    Returns:
        Whether they can be used: not if one is very long, or holds NaN or infinity.
    """
    for row in range(items.shape[0]):
        square = np.float32(0.0)
        for column in range(items.shape[1]):
            value = (items[row, column] * scale - mean[column]) * inverse[column]
            vectors[row, column] = value
            square += value * value
        if not square <= LONGEST_SQUARE:
            return False
    add_products(vectors, weights, biases, made)
    return True


@filter_kernel
def add_products(
    rows: NDArray[np.float32],
    weights: NDArray[np.float32],
    biases: NDArray[np.float32],
    made: NDArray[np.float32],
) -> None:
    """Write the outputs of a linear layer [n, outputs] for rows [n, inputs]."""
    inputs, outputs = weights.shape
    whole = inputs - inputs % INPUTS_TOGETHER
    for row in range(rows.shape[0]):
        for place in range(outputs):
            made[row, place] = biases[place]
        for first in range(0, whole, INPUTS_TOGETHER):
            one, two = rows[row, first], rows[row, first + 1]
            three, four = rows[row, first + 2], rows[row, first + 3]
            for place in range(outputs):
                made[row, place] += (
                    one * weights[first, place]
                    + two * weights[first + 1, place]
                    + three * weights[first + 2, place]
                    + four * weights[first + 3, place]
                )
        for last in range(whole, inputs):
            value = rows[row, last]
            for place in range(outputs):
                made[row, place] += value * weights[last, place]
