"""Gated distances inside pytorch-metric-learning: its losses and miners work with codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flowhash.codes import assign_codes, class_means
from flowhash.errors import InputError
from flowhash.learn import LOSSES, GatedDistance, GatedSimilarity, make_loss
from tests.learn import oracles

pml_losses: Any = pytest.importorskip("pytorch_metric_learning.losses")
pml_miners: Any = pytest.importorskip("pytorch_metric_learning.miners")
DISTANCES: list[Any] = [
    pytest.param(GatedDistance, oracles.direct_distance, id="distance"),
    pytest.param(GatedSimilarity, oracles.direct_product, id="similarity"),
]


def batch(classes: int = 4, items: int = 3, size: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(0)
    labels = torch.arange(classes).repeat_interleave(items)
    codes = torch.from_numpy(oracles.distinct_codes(rng, classes, size, 2))[labels]
    return torch.from_numpy(rng.normal(size=(len(labels), size))).float(), labels, codes


@pytest.mark.parametrize(("kind", "direct"), DISTANCES)
def test_matrix_equals_the_direct_formula(kind: Any, direct: Any) -> None:
    embeddings, _, codes = batch()
    distance = kind()
    expected = direct(embeddings / embeddings.norm(dim=1, keepdim=True), codes)
    with distance.gate(codes):
        torch.testing.assert_close(distance(embeddings), expected)
        # Losses of the library name the batch twice.
        torch.testing.assert_close(distance(embeddings, embeddings), expected)
    assert kind().is_inverted == (kind is GatedSimilarity)


def test_raw_embeddings_and_power() -> None:
    embeddings, _, codes = batch()
    distance = GatedDistance(normalize_embeddings=False, power=2)
    with distance.gate(codes):
        expected = oracles.direct_distance(embeddings, codes) ** 2
        torch.testing.assert_close(distance(embeddings), expected)


@pytest.mark.parametrize(("kind", "direct"), DISTANCES)
def test_gradients_equal_those_of_the_direct_formula(kind: Any, direct: Any) -> None:
    embeddings, labels, codes = batch()
    weights = torch.from_numpy(np.random.default_rng(1).normal(size=(len(labels),) * 2)).float()
    one, other = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
    distance = kind()
    with distance.gate(codes):
        (distance(one, one) * weights).sum().backward()
    (direct(functional.normalize(other), codes) * weights).sum().backward()
    torch.testing.assert_close(one.grad, other.grad)


def test_contrastive_loss_equals_its_formula() -> None:
    embeddings, labels, codes = batch()
    distance = GatedDistance()
    loss = pml_losses.ContrastiveLoss(pos_margin=0.1, neg_margin=1.0, distance=distance)
    with distance.gate(codes):
        found = loss(embeddings, labels)
    rows = oracles.gated_distances(oracles.unit(embeddings.double().numpy()), codes.numpy())
    pulls, pushes = [], []
    for i in range(len(rows)):
        for j in range(len(rows)):
            if i != j and labels[i] == labels[j]:
                pulls.append(max(0.0, rows[i, j] - 0.1))
            elif i != j:
                pushes.append(max(0.0, 1.0 - rows[i, j]))
    # The library's reducer: the mean over pairs that are not yet satisfied.
    kept = [[value for value in part if value > 0] for part in (pulls, pushes)]
    expected = sum(sum(part) / max(1, len(part)) for part in kept)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_triplet_miner_finds_the_triplets_that_a_loop_finds() -> None:
    embeddings, labels, codes = batch()
    distance = GatedDistance()
    miner = pml_miners.TripletMarginMiner(0.2, type_of_triplets="hard", distance=distance)
    with distance.gate(codes):
        found = set(zip(*(part.tolist() for part in miner(embeddings, labels)), strict=True))
    rows = oracles.gated_distances(oracles.unit(embeddings.double().numpy()), codes.numpy())
    count = range(len(rows))
    expected = {
        (a, p, n)
        for a in count
        for p in count
        for n in count
        if a != p and labels[a] == labels[p] != labels[n] and rows[a, n] - rows[a, p] <= 0
    }
    assert found == expected
    assert found


@pytest.mark.parametrize("name", ["MultiSimilarityMiner", "BatchHardMiner", "BatchEasyHardMiner"])
@pytest.mark.parametrize("kind", [GatedDistance, GatedSimilarity])
def test_miners_and_losses_share_a_gated_distance(name: str, kind: Any) -> None:
    embeddings, labels, codes = batch()
    distance = kind()
    miner = getattr(pml_miners, name)(distance=distance)
    loss = pml_losses.TripletMarginLoss(distance=distance)
    leaf = embeddings.clone().requires_grad_()
    with distance.gate(codes):
        value = loss(leaf, labels, miner(leaf, labels))
    value.backward()
    assert leaf.grad is not None
    assert float(leaf.grad.abs().sum()) > 0


@pytest.mark.parametrize("kind", [GatedDistance, GatedSimilarity])
def test_refuses_what_has_no_codes(kind: Any) -> None:
    embeddings, labels, codes = batch()
    distance = kind()
    with pytest.raises(InputError, match=f"{kind.__name__} has no codes .* distance.gate"):
        distance(embeddings)
    with distance.gate(codes[:-1]), pytest.raises(InputError, match="a batch of 11 against itself"):
        distance(embeddings)
    with distance.gate(codes):
        with pytest.raises(InputError, match="centroids, proxies, a memory"):
            distance(embeddings, torch.ones(5, 8))  # proxies
        with pytest.raises(InputError, match="centroids, proxies, a memory"):
            distance(embeddings, torch.ones_like(embeddings))  # another batch of the same size
        with pytest.raises(InputError, match="not of rows picked from them"):
            distance.pairwise_distance(embeddings[:2], embeddings[2:4])
        proxies = pml_losses.ProxyAnchorLoss(4, 8, distance=kind())
        with pytest.raises(InputError):
            proxies(embeddings, labels)


@pytest.mark.parametrize("kind", [GatedDistance, GatedSimilarity])
def test_the_gate_closes_whatever_happens(kind: Any) -> None:
    embeddings, _, codes = batch()
    distance = kind()
    with pytest.raises(KeyError), distance.gate(codes):
        raise KeyError
    with pytest.raises(InputError, match="no codes"):
        distance(embeddings)
    other = codes.flip(0)
    with distance.gate(codes):
        before = distance(embeddings)
        with distance.gate(other):
            assert not torch.equal(distance(embeddings), before)
        assert torch.equal(distance(embeddings), before)


class Trained:
    """A small network on clouds of points, one cloud a class."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        rng = np.random.default_rng(0)
        self.labels = torch.arange(6).repeat_interleave(3)
        middles = rng.normal(size=(6, 10))
        points = middles[self.labels] + rng.normal(size=(18, 10)) / 2
        self.points = torch.from_numpy(points).float()
        self.network = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 12))

    def codes(self, embeddings: Tensor) -> Tensor:
        rows = functional.normalize(embeddings.detach()).numpy()
        means, _ = class_means(rows, self.labels.numpy())
        found = assign_codes(means, 2, 0.3).codes.astype(np.int64)
        return torch.from_numpy(found)[self.labels]

    def losses(self, loss: Any, gated: bool, steps: int = 40) -> list[float]:
        optimiser = torch.optim.Adam(self.network.parameters(), 3e-3)
        values = []
        for _ in range(steps):
            embeddings = self.network(self.points)
            codes = [self.codes(embeddings)] if gated else []
            value = loss(embeddings, self.labels, *codes)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            values.append(float(value.detach()))
        return values


@pytest.mark.parametrize(
    ("name", "gated"),
    # Cross-entropy towards codes is nothing without them.
    [
        (name, gated)
        for name in sorted(LOSSES)
        for gated in (True, False)
        if gated or name != "codes"
    ],
)
def test_every_loss_falls(name: str, gated: bool) -> None:
    options: dict[str, Any] = {}
    if name == "library":
        options = {"name": "TripletMarginLoss", "miner": "TripletMarginMiner"}
        options["miner_options"] = {"type_of_triplets": "all"}
    values = Trained().losses(make_loss(name, **options), gated)
    assert np.isfinite(values).all()
    assert np.mean(values[-5:]) < 0.9 * np.mean(values[:5])


@pytest.mark.parametrize("name", ["TripletMarginLoss", "MarginLoss", "SupConLoss", "NCALoss"])
def test_other_losses_of_the_library_fall(name: str) -> None:
    distance = GatedSimilarity() if name == "SupConLoss" else GatedDistance()
    library = getattr(pml_losses, name)(distance=distance)

    def loss(embeddings: Tensor, labels: Tensor, codes: Tensor) -> Any:
        with distance.gate(codes):
            return library(embeddings, labels)

    values = Trained().losses(loss, True)
    assert np.mean(values[-5:]) < 0.95 * np.mean(values[:5])
