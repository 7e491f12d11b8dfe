"""A metric in which classes are round: by its formula, in trainings, and for classes not seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.linalg import sqrtm

from flowhash import FlowHasher
from flowhash.data import ArrayItems, LabelledItems, Preprocessing, Splits
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.learn import Schedule, Settings, Stage, train, vector_settings
from flowhash.learn.whitening import SHRINKAGE, original_vectors, whitened_base, whitening
from flowhash.networks import EmbeddingNetwork, build_backbone
from tests.learn.trainer import clouds, group_settings


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 5))
def test_it_is_the_root_of_the_inverse_shrunk_covariance(seed: int, dim: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), rng.integers(2, 9, classes))
    vectors = (rng.normal(size=(len(labels), dim)) @ rng.normal(size=(dim, dim))).astype(np.float32)
    spread = np.zeros((dim, dim))
    for row, label in zip(vectors.astype(float), labels, strict=True):
        apart = row - vectors[labels == label].mean(axis=0, dtype=float)
        spread += np.outer(apart, apart) / len(labels)
    even = np.eye(dim) * np.trace(spread) / dim
    wanted = sqrtm(np.linalg.inv((1 - SHRINKAGE) * spread + SHRINKAGE * even))
    matrix, middle = whitening(vectors, labels)
    np.testing.assert_allclose(matrix, wanted, rtol=2e-2, atol=1e-3 * np.abs(wanted).max())
    np.testing.assert_allclose(middle, vectors.mean(axis=0), atol=1e-5)


@pytest.mark.parametrize("outputs", [None, 5])
def test_the_map_is_in_the_last_layer(outputs: int | None) -> None:
    """Of vectors as they are, and of a network: W (x - m) of its raw outputs."""
    torch.manual_seed(0)
    splits, device = clouds(), torch.device("cpu")
    plain = build_backbone({"name": "linear", "inputs": 8})
    base = EmbeddingNetwork(plain, outputs)
    if outputs is not None:
        torch.nn.init.constant_(base.head.get_parameter("bias"), 2.0)  # so that there is a mean
    made = whitened_base(base, splits.train, splits.preprocessing, device)
    inputs = splits.preprocessing(splits.train.take(np.arange(len(splits.train))))
    with torch.no_grad():
        raw = base(torch.from_numpy(inputs)).numpy()
        found = made(torch.from_numpy(inputs)).numpy()
    matrix, middle = whitening(raw, splits.train.labels)
    np.testing.assert_allclose(found, (raw - middle) @ matrix.T, rtol=1e-4, atol=1e-3)
    if outputs is None:
        np.testing.assert_allclose(original_vectors(made, found), inputs, atol=1e-3)


def nuisance(classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes in four directions, and four others in which items of every class differ widely."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), 30)
    rows = np.hstack([
        rng.normal(size=(classes, 4))[labels] + 0.3 * rng.normal(size=(len(labels), 4)),
        3 * rng.normal(size=(len(labels), 4)),
    ])  # fmt: skip
    return rows.astype(np.float32), labels


def right(hasher: FlowHasher, rows: np.ndarray, labels: np.ndarray) -> float:
    """The share of items whose nearest other one, among all, has their class."""
    embeddings = hasher.encoder_.encode(rows).embeddings
    squares = ((embeddings[:, None] - embeddings) ** 2).sum(axis=2)
    np.fill_diagonal(squares, np.inf)
    return float((labels[squares.argmin(axis=1)] == labels).mean())


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_classes_that_come_later_are_told_apart_better(metric: str, tmp_path: Path) -> None:
    rows, labels = nuisance(12, 0)
    others, names = nuisance(8, 1)
    found = {}
    for rank in ("input", "whitened"):
        hasher = FlowHasher(16, steps=100, hidden=(), rank=rank, metric=metric, random_state=0)
        hasher.fit(rows, labels)
        found[rank] = right(hasher, others, names)
    assert found["whitened"] > found["input"] + 0.1  # 0.58 and 0.93 here
    everything = hasher.search(None, 3, probe=16)
    asked = hasher.search(rows, 4, probe=16)  # of which the first is the item itself
    np.testing.assert_array_equal(everything.ids, asked.ids[:, 1:])
    np.testing.assert_allclose(everything.distances, asked.distances[:, 1:], atol=1e-3)
    alone = hasher.search(None, 1, probe=1).scanned + 1  # by the bucket that each item opens
    np.testing.assert_array_equal(alone, hasher.search(rows, 1, probe=1).scanned)
    hasher.adapt(others)  # whose buckets are fitted to what was asked for
    hasher.save(tmp_path / "hasher")
    record = json.loads((tmp_path / "hasher" / "flowhasher.json").read_text())
    assert record["format"] == 3  # which earlier versions refuse: they would take it for vectors
    again = FlowHasher.load(tmp_path / "hasher")
    np.testing.assert_array_equal(again.search(others, 3).ids, hasher.search(others, 3).ids)
    np.testing.assert_array_equal(hasher.adapt().search(None, 3, probe=16).ids, everything.ids)


def test_distances_are_those_of_the_whitened_vectors() -> None:
    rows, labels = nuisance(5, 3)
    hasher = FlowHasher(8, steps=50, hidden=(8,), rank="whitened", random_state=0)
    hasher.fit(rows, labels)
    embeddings = hasher.encoder_.encode(rows[:4]).embeddings.astype(float)
    found = hasher.search(rows[:4], 4, probe=8)
    for query, (ids, distances) in enumerate(zip(found.ids, found.distances, strict=True)):
        stored = hasher.encoder_.encode(rows[ids]).embeddings.astype(float)
        wanted = np.linalg.norm(stored - embeddings[query], axis=1)
        np.testing.assert_allclose(distances, wanted, atol=1e-3)


def test_a_run_ranks_whitened_from_its_folder_too(tmp_path: Path) -> None:
    splits, told = clouds(), replace(group_settings(), rank="whitened")
    made = train(splits, told, tmp_path / "run", quiet=True)
    again = Encoder.load(tmp_path / "run" / "encoder")
    items = splits.validation
    np.testing.assert_array_equal(again.encode(items).embeddings, made.encode(items).embeddings)
    plain = train(splits, replace(told, rank="base"), None, quiet=True).encode(items)
    assert not np.allclose(plain.embeddings, made.encode(items).embeddings, atol=0.1)


def test_an_order_that_is_given_is_not_chosen() -> None:
    """Of 0 there is none: buckets are opened by the outputs themselves."""
    splits, told = clouds(), group_settings()
    for weight in (0.0, 2.5):
        made = train(splits, replace(told, class_order=weight), None, quiet=True)
        assert (0.0 if made.hash.order is None else made.hash.order.weight) == weight
    rows, labels = nuisance(4, 0)
    hasher = FlowHasher(8, steps=20, hidden=(), class_order=1.5, random_state=0).fit(rows, labels)
    assert hasher.encoder_.hash.order is not None
    assert hasher.encoder_.hash.order.weight == 1.5
    with pytest.raises(InputError, match="class_order is -1; expected a number, zero or more"):
        replace(told, class_order=-1)


def test_a_classifier_starts_the_head_alike_however_it_ranks(tmp_path: Path) -> None:
    """Its directions are of the embedding before that is whitened; of groups too."""
    splits = clouds(classes=8, items=40, noise=0.5)
    base = Stage("cross-entropy", 8, 8, 4, 60, rate=5e-3, schedule=Schedule("cycle"))
    for buckets in (8, 16):
        made = []
        for rank in ("base", "whitened"):
            groups = np.repeat(np.arange(16), 1)[splits.train.labels * 2 + np.arange(160) % 2]
            stage = Stage("codes", buckets, 8, 4, 1, rate=1e-9, start="classes")
            told = Settings(
                {"name": "mlp", "hidden": [32]}, base, stage, rank=rank, augment=None,
                class_order=0.0,
            )  # fmt: skip
            folder, given = tmp_path / f"{rank}-{buckets}", groups if buckets == 16 else None
            learned = train(splits, told, folder, groups=given, quiet=True)
            made.append(learned.encode(splits.validation).activations)
        np.testing.assert_allclose(made[0], made[1], rtol=1e-4, atol=1e-3)


def test_spreads_of_any_size() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 10)
    vectors = rng.normal(size=(40, 3)).astype(np.float32)
    wanted = whitening(vectors, labels)[0]
    for size in (1e25, 1e-25):
        found = whitening((vectors * size).astype(np.float32), labels)[0]
        np.testing.assert_allclose(found * size, wanted, rtol=1e-3, atol=1e-4)


def test_refusals() -> None:
    rows = np.zeros((8, 3), np.float32)
    rows[:, 0] = np.repeat([1, 2], 4)
    labels = np.repeat([0, 1], 4)
    data = LabelledItems(ArrayItems(rows), labels, ("a", "b"), "X")
    splits = Splits(data, data.subset(np.zeros(0, np.int64)), None, Preprocessing.fit(data))
    told = replace(vector_settings(labels, 2), rank="whitened")
    with pytest.raises(InputError, match="no class has two different items"):
        train(splits, told, None, quiet=True)
    with pytest.raises(InputError, match="the data are pairs"):
        train(splits, told, None, pairs=[[0, 1], [4, 5]], quiet=True)
    with pytest.raises(InputError, match='expected "base", "whitened" or "hash"'):
        replace(told, rank="white")
    with pytest.raises(InputError, match='leave rank at "input"'):
        FlowHasher(rank="whitened", metric="inner").fit(*nuisance(3, 0))
