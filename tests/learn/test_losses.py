"""The paper's losses against their equations in plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from flowhash.errors import InputError
from flowhash.learn import LOSSES, CrossEntropyLoss, NPairsLoss, TripletLoss, make_loss
from flowhash.learn.losses import SoftmaxLoss, semi_hard
from tests.learn import oracles


@st.composite
def batches(draw: Any) -> tuple[Any, Any, Any]:
    """Embeddings, labels of classes of different sizes (at least one pair), and codes."""
    classes = draw(st.integers(2, 4))
    sizes = [draw(st.integers(1, 3)) for _ in range(classes - 1)] + [2]
    size = draw(st.integers(2, 5))
    active = draw(st.integers(1, size))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = rng.permutation(np.repeat(rng.permutation(20)[:classes], sizes))
    embeddings = rng.normal(size=(len(labels), size))
    if draw(st.booleans()):  # few different values: ties and equal items
        embeddings = np.sign(embeddings)
    return embeddings, labels, oracles.distinct_codes(rng, len(labels), size, active)


@settings(max_examples=100)
@given(batch=batches(), margin=st.sampled_from([0.0, 0.3, 1.0]))
def test_triplet_equals_the_semi_hard_rule_written_out(
    batch: tuple[Any, Any, Any], margin: float
) -> None:
    embeddings, labels, codes = batch
    embeddings = without_ties(embeddings)
    rows = oracles.unit(embeddings)
    given_rows = torch.from_numpy(embeddings), torch.from_numpy(labels)
    gated = TripletLoss(margin)(*given_rows, torch.from_numpy(codes))
    distances = oracles.gated_distances(rows, codes)
    assert float(gated) == pytest.approx(oracles.triplet(distances, labels, margin), abs=1e-9)


@settings(max_examples=100)
@given(batch=batches(), margin=st.sampled_from([0.0, 0.3, 1.0]))
def test_triplet_without_codes_is_squared_euclidean_on_unit_vectors(
    batch: tuple[Any, Any, Any], margin: float
) -> None:
    embeddings, labels, _ = batch
    embeddings = without_ties(embeddings)
    plain = TripletLoss(margin)(torch.from_numpy(embeddings), torch.from_numpy(labels))
    distances = oracles.squared_distances(oracles.unit(embeddings))
    assert float(plain) == pytest.approx(oracles.triplet(distances, labels, margin), abs=1e-9)


def without_ties(embeddings: Any) -> Any:
    """Which of two equal distances is larger would be a matter of rounding: there are none."""
    return embeddings + np.random.default_rng(0).normal(size=embeddings.shape) / 8


def test_triplet_picks_these_negatives() -> None:
    rows = torch.tensor([[0.0, 2.0, 1.0, 3.0, 5.0], [0.0, 9.0, 1.0, 3.0, 5.0]])
    negatives = torch.tensor([[False, False, True, True, True]]).expand(2, -1)
    # 3 is the nearest beyond 2; nothing is beyond 9, so the farthest, 5.
    assert semi_hard(rows, torch.tensor([2.0, 9.0]), negatives).tolist() == [3, 4]
    # A negative as far as the positive is not farther.
    assert semi_hard(rows[:1], torch.tensor([3.0]), negatives[:1]).tolist() == [4]


def test_triplet_by_hand() -> None:
    # Unit vectors at 0°, 60° (class 0) and 90° (class 1): squared distances 1, 2 and 2 - √3.
    angles = torch.tensor([0.0, 60.0, 90.0]).double().deg2rad()
    rows = torch.stack([angles.cos(), angles.sin()], 1) * torch.tensor([[3.0], [0.5], [7.0]])
    labels = torch.tensor([0, 0, 1])
    # Anchor 0: negative at 2 is beyond 1. Anchor 60°: none beyond 1, the farthest is at 2 - √3.
    expected = (max(0.0, 1 + 0.3 - 2) + (1 + 0.3 - (2 - math.sqrt(3)))) / 2
    assert float(TripletLoss(0.3)(rows, labels)) == pytest.approx(expected)


def test_triplet_gradient_goes_to_all_three() -> None:
    torch.manual_seed(0)
    rows = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    labels, codes = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([[0], [0], [1], [1], [2], [2]])
    for options in [(), (codes,)]:
        assert torch.autograd.gradcheck(
            lambda given, options=options: TripletLoss(1.0)(given, labels, *options), rows
        )


@settings(max_examples=100)
@given(batch=batches(), regulariser=st.sampled_from([0.0, 0.003, 0.5]), product=st.booleans())
def test_npairs_equals_eq_8(batch: tuple[Any, Any, Any], regulariser: float, product: bool) -> None:
    embeddings, labels, codes = batch
    loss = NPairsLoss(regulariser, product)
    given_rows = torch.from_numpy(embeddings), torch.from_numpy(labels)
    similarities = (
        oracles.gated_products(embeddings, codes)
        if product
        else -oracles.gated_distances(embeddings, codes)
    )
    gated = float(loss(*given_rows, torch.from_numpy(codes)))
    assert gated == pytest.approx(oracles.npairs(similarities, embeddings, labels, regulariser))
    inner = np.array([[float(a @ b) for b in embeddings] for a in embeddings])
    plain = float(loss(*given_rows))
    assert plain == pytest.approx(oracles.npairs(inner, embeddings, labels, regulariser))


def test_npairs_does_not_overflow() -> None:
    rows = torch.tensor([[60.0, 0.0], [60.0, 0.0], [0.0, 60.0], [0.0, 60.0]], requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1])
    for sign in (1, -1):  # pairs that agree, and pairs that could not be worse
        value = NPairsLoss(0.0)(rows * torch.tensor([[1.0], [sign], [1.0], [sign]]), labels)
        value.backward()
        assert math.isfinite(float(value.detach()))
        assert rows.grad is not None
        assert bool(rows.grad.isfinite().all())


@settings(max_examples=60)
@given(
    batch=batches(),
    scale=st.sampled_from([1.0, 16.0]),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_cross_entropy_equals_its_formula(
    batch: tuple[Any, Any, Any], scale: float, smoothing: float
) -> None:
    embeddings, labels, _ = batch
    loss = CrossEntropyLoss(20, embeddings.shape[1], scale, smoothing).double()
    found = float(loss(torch.from_numpy(embeddings), torch.from_numpy(labels)).detach())
    rows = oracles.unit(embeddings)
    weights = oracles.unit(loss.weight.detach().numpy())
    total = 0.0
    for row, label in zip(rows, labels, strict=True):
        powers = [math.exp(scale * float(row @ weight)) for weight in weights]
        for number, power in enumerate(powers):
            target = smoothing / 20 + (1 - smoothing) * (number == label)
            total -= target * math.log(power / sum(powers))
    assert found == pytest.approx(total / len(labels))


def test_cross_entropy_has_no_gate() -> None:
    loss = CrossEntropyLoss(2, 3)
    rows, labels = torch.ones(2, 3), torch.tensor([0, 1])
    with pytest.raises(InputError, match="stage 1"):
        loss(rows, labels, torch.zeros(2, 1).long())


@pytest.mark.parametrize("loss", [TripletLoss(), NPairsLoss()])
@pytest.mark.parametrize(
    "labels", [[0, 1, 2, 3], [5, 5, 5, 5]], ids=["no positive pair", "one class"]
)
@pytest.mark.parametrize("gated", [False, True])
def test_batches_without_pairs_or_negatives_are_refused(
    loss: Any, labels: list[int], gated: bool
) -> None:
    codes = [torch.zeros(4, 1).long()] if gated else []
    with pytest.raises(InputError, match="at least two classes and two items of one of them"):
        loss(torch.ones(4, 3), torch.tensor(labels), *codes)


def test_names_and_options() -> None:
    assert set(LOSSES) >= {
        "triplet", "npairs", "contrastive", "lifted", "multi-similarity", "circle",
    }  # fmt: skip
    triplet, npairs = make_loss("triplet", margin=0.7), make_loss("npairs", product=True)
    assert isinstance(triplet, TripletLoss)
    assert triplet.margin == 0.7
    assert isinstance(npairs, NPairsLoss)
    assert npairs.product
    # Triplet losses work on unit vectors, npairs on raw ones.
    assert (triplet.unit, npairs.unit) == (True, False)
    with pytest.raises(InputError, match="loss is 'tripplet'; choose one of 'triplet', 'npairs'"):
        make_loss("tripplet")
    with pytest.raises(InputError, match=r"'triplet' cannot take .*'margn'"):
        make_loss("triplet", margn=0.3)


@given(batch=batches(), smoothing=st.sampled_from([0.0, 0.1]))
def test_softmax_is_the_cross_entropy_of_the_outputs(
    batch: tuple[Any, Any, Any], smoothing: float
) -> None:
    outputs, labels, _ = batch
    labels = labels % outputs.shape[1]
    found = SoftmaxLoss(smoothing)(torch.from_numpy(outputs), torch.from_numpy(labels))
    shares = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    own = -np.log(shares[np.arange(len(labels)), labels])
    expected = (1 - smoothing) * own - smoothing * np.log(shares).mean(axis=1)
    assert float(found) == pytest.approx(float(expected.mean()), abs=1e-9)
