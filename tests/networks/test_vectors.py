"""Backbones for vectors against matrix products in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from flowhash.errors import InputError
from flowhash.networks import build_backbone
from flowhash.networks.backbones import Dense, PlainVectors


def test_plain_leaves_vectors_as_they_are() -> None:
    vectors = torch.rand(3, 5)
    network = PlainVectors(5)
    assert network(vectors) is vectors
    assert network.features == 5
    assert not list(network.parameters())
    assert build_backbone(network.spec).features == 5


@settings(max_examples=30)
@given(st.integers(1, 6), st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 99))
def test_dense_layers_are_matrix_products(inputs: int, hidden: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    network = Dense(inputs, tuple(hidden), dropout=0.5).eval()
    vectors = torch.randn(4, inputs)
    made: Any = vectors.numpy().astype(np.float64)
    values = [value.detach().numpy().astype(np.float64) for value in network.parameters()]
    for weight, bias in zip(values[::2], values[1::2], strict=True):
        made = np.maximum(made @ weight.T + bias, 0)
    np.testing.assert_allclose(network(vectors).detach().numpy(), made, atol=1e-5)
    assert network.features == hidden[-1]
    again = build_backbone(network.spec)
    again.load_state_dict(network.state_dict())
    assert torch.equal(again.eval()(vectors), network(vectors))


def test_dropout_is_in_training_only() -> None:
    network, vectors = Dense(4, (64,), 0.5), torch.ones(1, 4)
    assert int((network.train()(vectors) == 0).sum()) > int((network.eval()(vectors) == 0).sum())


@pytest.mark.parametrize("hidden", [(), (3, 0)])
def test_refuses(hidden: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="sizes of one or more layers"):
        Dense(4, hidden)
