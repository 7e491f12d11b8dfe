"""The gated distance and product against their formulas in plain loops, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flowhash.errors import InputError
from flowhash.learn import gated_distance, gated_product
from tests.learn import oracles

Gated = Callable[[Tensor, Tensor], Tensor]
BOTH: list[Any] = [
    pytest.param(gated_distance, oracles.gated_distances, oracles.direct_distance, id="distance"),
    pytest.param(gated_product, oracles.gated_products, oracles.direct_product, id="product"),
]


@st.composite
def batches(draw: Any) -> tuple[Any, Any]:
    """Embeddings [B, d] and codes [B, k]: random, all equal, all apart where they can be."""
    count, size = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    active = draw(st.integers(1, size))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    embeddings = rng.normal(size=(count, size))
    if draw(st.booleans()):  # whole numbers: items that agree in some places
        embeddings = np.round(embeddings)
    if draw(st.booleans()) and count > 1:  # one item twice
        embeddings[-1] = embeddings[0]
    kind = draw(st.sampled_from(["random", "shared", "disjoint"]))
    codes = oracles.distinct_codes(rng, count, size, active)
    if kind == "shared":
        codes[:] = codes[0]
    if kind == "disjoint" and size >= count * active:
        codes = rng.permutation(size)[: count * active].reshape(count, active)
    return embeddings, codes


@pytest.mark.parametrize(("function", "loop", "direct"), BOTH)
@settings(max_examples=80)
@given(batch=batches())
def test_equals_a_loop_over_pairs_and_buckets(
    function: Gated, loop: Any, direct: Gated, batch: tuple[Any, Any]
) -> None:
    embeddings, codes = batch
    found = function(torch.from_numpy(embeddings), torch.from_numpy(codes)).numpy()
    np.testing.assert_allclose(found, loop(embeddings, codes), atol=1e-12)
    assert (found == found.T).all()
    if function is gated_distance:
        assert (np.diagonal(found) == 0).all()
        assert (found >= 0).all()


@pytest.mark.parametrize(("function", "loop", "direct"), BOTH)
@settings(max_examples=60)
@given(batch=batches(), seed=st.integers(0, 2**32 - 1))
def test_gradients_equal_those_of_the_direct_formula(
    function: Gated, loop: Any, direct: Gated, batch: tuple[Any, Any], seed: int
) -> None:
    embeddings, codes = map(torch.from_numpy, batch)
    # A weight for each pair that is not symmetric: a loss may look at one half of the matrix.
    weights = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(codes),) * 2))
    gradients = []
    for way in (function, direct):
        leaf = embeddings.clone().requires_grad_()
        (way(leaf, codes) * weights).sum().backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad.numpy())
    np.testing.assert_allclose(*gradients, atol=1e-12)


@pytest.mark.parametrize(("function", "loop", "direct"), BOTH)
@pytest.mark.parametrize("active", [1, 2, 5])
def test_gradients_equal_differences(
    function: Gated, loop: Any, direct: Gated, active: int
) -> None:
    rng = np.random.default_rng(active)
    # Values of a column at least 0.5 apart: no step of gradcheck crosses a kink.
    columns = [rng.permutation(4) + rng.uniform(0, 0.5) for _ in range(5)]
    embeddings = torch.tensor(np.stack(columns, 1), dtype=torch.float64, requires_grad=True)
    codes = torch.from_numpy(oracles.distinct_codes(rng, 4, 5, active))
    assert torch.autograd.gradcheck(lambda rows: function(rows, codes), embeddings)


@pytest.mark.parametrize(("function", "loop", "direct"), BOTH)
def test_inputs_may_lie_in_memory_as_they_like(function: Gated, loop: Any, direct: Gated) -> None:
    rng = np.random.default_rng(0)
    embeddings = torch.from_numpy(rng.normal(size=(9, 12))).t()[::2]
    codes = torch.from_numpy(oracles.distinct_codes(rng, 6, 9, 3))[:, ::2]
    assert not embeddings.is_contiguous()
    assert not codes.is_contiguous()
    leaf = embeddings.clone(memory_format=torch.preserve_format).requires_grad_()
    found = function(leaf, codes)
    np.testing.assert_allclose(
        found.detach().numpy(), loop(embeddings.numpy(), codes.numpy()), atol=1e-12
    )
    # The gradient comes in as a transposed view, too.
    weights = torch.from_numpy(rng.normal(size=(6, 6)))
    found.t().mul(weights).sum().backward()
    other = embeddings.clone().requires_grad_()
    direct(other, codes).t().mul(weights).sum().backward()
    assert leaf.grad is not None
    assert other.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), other.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("number", [torch.int32, torch.int16, torch.uint8])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_types_of_numbers(number: torch.dtype, precision: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    embeddings = torch.from_numpy(rng.normal(size=(5, 4))).to(precision)
    codes = torch.from_numpy(oracles.distinct_codes(rng, 5, 4, 2))
    found = gated_distance(embeddings, codes.to(number))
    assert found.dtype == precision
    expected = oracles.gated_distances(embeddings.double().numpy(), codes.numpy())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_without_gradients_nothing_is_kept() -> None:
    embeddings = torch.ones(3, 4)
    assert not gated_distance(embeddings, torch.zeros(3, 1, dtype=torch.int64)).requires_grad


class Largest(TorchDispatchMode):
    """Records the most elements that any tensor made within it has."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        made = function(*arguments, **(options or {}))
        for value in made if isinstance(made, tuple | list) else [made]:
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return made


@pytest.mark.parametrize(("function", "loop", "direct"), BOTH)
def test_never_makes_a_tensor_of_all_pairs_and_buckets(
    function: Gated, loop: Any, direct: Gated
) -> None:
    count, size, active = 64, 256, 2
    rng = np.random.default_rng(0)
    embeddings = torch.from_numpy(rng.normal(size=(count, size))).float().requires_grad_()
    codes = torch.from_numpy(oracles.distinct_codes(rng, count, size, active))

    def largest(way: Gated) -> int:
        with Largest() as seen:
            way(embeddings, codes).square().sum().backward()
        return seen.elements

    assert largest(direct) >= count * count * size  # the recorder sees what is there to be seen
    assert largest(function) < count * count * size / 4
    assert largest(function) <= 2 * max(count * count * active, count * size)


@pytest.mark.parametrize("function", [gated_distance, gated_product])
@pytest.mark.parametrize(
    ("embeddings", "codes", "message"),
    [
        (torch.zeros(3), torch.zeros(3, 1).long(), r"embeddings has shape \(3,\) .* \[batch, d\]"),
        (torch.zeros(3, 4).long(), torch.zeros(3, 1).long(), "torch.int64; expected floats"),
        (torch.zeros(3, 4), torch.zeros(3).long(), r"codes has shape \(3,\); expected \[3, k\]"),
        (torch.zeros(3, 4), torch.zeros(2, 1).long(), r"by codes\[labels\]"),
        (torch.zeros(3, 4), torch.zeros(3, 0).long(), r"codes has shape \(3, 0\)"),
        (torch.zeros(3, 4), torch.zeros(3, 4), r"torch.float32; .*not a 0/1 mask"),
        (torch.zeros(3, 4), torch.zeros(3, 4).bool(), r"torch.bool; .*not a 0/1 mask"),
        (torch.zeros(3, 4), torch.tensor([[0], [4], [1]]), "bucket 0 to 4; expected 0 to 3"),
        (torch.zeros(3, 4), torch.tensor([[0], [-1], [1]]), "bucket -1 to 1; expected 0 to 3"),
    ],
)
def test_refuses(function: Gated, embeddings: Tensor, codes: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        function(embeddings, codes)
