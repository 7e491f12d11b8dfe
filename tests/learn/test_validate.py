"""Validation searches the validation split by the network's own outputs; which one is the best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowhash.learn.training.validation import BATCH, Best, embed, validate
from flowhash.networks import EmbeddingNetwork, build_backbone
from tests.learn import trainer
from tests.quality.test_itself import brute_force

CPU = torch.device("cpu")


def network(outputs: int = 5, dropout: float = 0.5) -> EmbeddingNetwork:
    torch.manual_seed(0)
    spec = {"name": "mlp", "inputs": 8, "hidden": [16], "dropout": dropout}
    return EmbeddingNetwork(build_backbone(spec), outputs)


def outputs_of(made: EmbeddingNetwork, splits: Any) -> Any:
    items = splits.preprocessing(splits.validation.take(np.arange(len(splits.validation))))
    with torch.no_grad():
        return made.eval()(torch.from_numpy(items)).numpy()


def test_embeds_in_evaluation_and_goes_on_training(monkeypatch: Any) -> None:
    splits, made = trainer.clouds(), network().train()
    monkeypatch.setattr("flowhash.learn.training.validation.BATCH", 7)
    found = embed(made, splits.validation, splits.preprocessing, CPU)
    assert made.training
    np.testing.assert_allclose(found, outputs_of(made, splits), atol=1e-6)
    assert BATCH > 7


@pytest.mark.parametrize("active", [1, 2])
@pytest.mark.parametrize("ranked", [False, True], ids=["by itself", "by the base"])
def test_hash_validation_equals_brute_force(active: int, ranked: bool) -> None:
    splits, made = trainer.clouds(), network()
    data = splits.validation
    rows = outputs_of(made, splits)
    ranking = np.random.default_rng(0).normal(size=(len(data), 3)).astype(np.float32)
    given = ranking if ranked else None
    found = validate(made, data, splits.preprocessing, CPU, active, given)
    precision, suf, loads = brute_force(rows, ranking if ranked else rows, data.labels, active, 1)
    assert found["pr1"] == pytest.approx(precision)
    assert found["suf"] == pytest.approx(suf)
    assert found["largest_bucket"] == pytest.approx(max(loads) / len(data))
    assert found["empty_buckets"] == pytest.approx(loads.count(0) / len(loads))
    assert found["load_variation"] == pytest.approx(np.std(loads) / np.mean(loads))
    assert ("nmi" in found) == (active == 1)


def test_base_validation_is_exhaustive() -> None:
    splits, made = trainer.clouds(), network()
    data, rows = splits.validation, outputs_of(made, splits)
    found = validate(made, data, splits.preprocessing, CPU)
    hits = 0
    for query in range(len(data)):
        gaps = ((rows - rows[query]) ** 2).sum(1)
        gaps[query] = np.inf
        hits += data.labels[int(gaps.argmin())] == data.labels[query]
    assert found == {"pr1": pytest.approx(hits / len(data)), "suf": 1.0}


def chosen(validations: list[tuple[float, float]]) -> int:
    """Which of them, (Pr@1, SUF), is the last that was the best so far."""
    best, place = Best(), -1
    for number, (precision, suf) in enumerate(validations):
        if best.improves({"pr1": precision, "suf": suf}):
            place = number
            assert (best.pr1, best.suf) == (precision, suf)
    return place


@pytest.mark.parametrize(
    ("validations", "place"),
    [
        ([(0.0, 1.0)], 0),  # the first one, whatever it is
        ([(0.5, 10.0), (0.6, 10.0), (0.55, 10.0)], 1),
        ([(0.5, 10.0), (0.5, 10.0)], 0),  # as good is not better
        ([(0.5, 10.0), (0.6, 9.1)], 1),  # nine tenths of the SUF are enough
        ([(0.5, 10.0), (0.6, 8.9)], 0),  # less is not
        ([(0.6, 5.0), (0.5, 10.0)], 1),  # what was precise but slow is overtaken
        ([(0.6, 5.0), (0.5, 10.0), (0.7, 5.0)], 1),
        ([(0.6, 9.5), (0.5, 10.0)], 0),  # fast enough beside the fastest
        ([(0.3, 1.0), (0.2, 1.0), (0.4, 1.0)], 2),  # stage 1: all of one SUF
    ],
)
def test_the_best(validations: list[tuple[float, float]], place: int) -> None:
    assert chosen(validations) == place


def test_the_best_goes_on_from_a_checkpoint() -> None:
    first = Best()
    first.improves({"pr1": 0.5, "suf": 10.0})
    first.improves({"pr1": 0.1, "suf": 11.0})
    again = Best(**{name: getattr(first, name) for name in ("pr1", "suf", "largest_suf")})
    assert again == first
    assert not again.improves({"pr1": 0.6, "suf": 9.8})
    assert again.improves({"pr1": 0.6, "suf": 9.9})
