"""``FlowHasher.adapt``: buckets fitted anew to items, without labels."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from flowhash import FlowHasher
from flowhash.encoder import Encoded
from flowhash.learn import adapt_encoder

QUICK: dict[str, Any] = {"buckets": 12, "hidden": (), "steps": 20, "random_state": 0}


def items(classes: range, each: int = 40, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Clouds whose middles depend on the class only."""
    middles = np.random.default_rng(7).normal(size=(50, 6)) * 6
    labels = np.repeat(np.asarray(classes), each)
    noise = np.random.default_rng(seed).normal(size=(len(labels), 6))
    return middles[labels] + noise, labels


@pytest.mark.parametrize(
    "options",
    [{}, {"metric": "cosine"}, {"metric": "inner"}, {"rank": "codes"}, {"active": 2},
     {"hidden": (8,)}],
)  # fmt: skip
def test_everything_keeps_working(options: dict[str, Any], tmp_path: Path) -> None:
    known, labels = items(range(4))
    hasher = FlowHasher(**{**QUICK, **options}).fit(known, labels)
    new, _ = items(range(10, 30), 10, seed=1)
    hasher.add(new)
    queries = np.concatenate((known[::7], new[::7]))
    every = {"n_neighbors": 5, "probe": hasher.encoder_.buckets}
    before = hasher.search(queries, **every)  # all buckets: what is there, by distance
    fingerprint = hasher.encoder_.fingerprint
    assert hasher.adapt() is hasher
    assert hasher.encoder_.fingerprint != fingerprint
    assert hasher.table_.encoder == hasher.encoder_.fingerprint
    after = hasher.search(queries, **every)
    np.testing.assert_array_equal(after.ids, before.ids)
    np.testing.assert_array_equal(after.distances, before.distances)
    # An item is in the buckets that a query for it opens, and finds itself there.
    codes = hasher.transform(known).indices.reshape(len(known), -1)
    stored = np.array(hasher.table_.codes_of(list(range(len(known)))))
    np.testing.assert_array_equal(codes, stored)
    distances, ids = hasher.kneighbors(queries, 3)
    assert ids.shape == distances.shape == (len(queries), 3)
    assert hasher.kneighbors_graph(n_neighbors=2).shape == (360, 360)
    assert hasher.score(known, labels) > 0.9
    hasher.save(tmp_path / "hasher")
    for again in (FlowHasher.load(tmp_path / "hasher"), pickle.loads(pickle.dumps(hasher))):
        assert again.encoder_.fingerprint == hasher.encoder_.fingerprint
        np.testing.assert_array_equal(again.kneighbors(queries, 3)[1], ids)
        np.testing.assert_array_equal(again.kneighbors(queries, 3)[0], distances)
    hasher.add(new[:5])  # in the new buckets
    hasher.adapt()
    assert hasher.n_samples_fit_ == 365


def test_classes_that_fit_did_not_see_are_scanned_less() -> None:
    known, labels = items(range(4))
    hasher = FlowHasher(**QUICK).fit(known, labels)
    new, _ = items(range(10, 40), 20, seed=1)
    hasher.add(new)
    scanned = hasher.search(new, 1).scanned.mean()
    found = hasher.adapt().search(new, 1)
    assert found.scanned.mean() < 0.7 * scanned
    np.testing.assert_array_equal(found.ids[:, 0], np.arange(len(known), len(known) + len(new)))


def test_it_may_be_fitted_to_other_items() -> None:
    known, labels = items(range(4))
    new, _ = items(range(10, 20), 20, seed=1)
    one = FlowHasher(**QUICK).fit(known, labels)
    own = one.encoder_
    one.adapt(new)
    assert len(np.unique(one.transform(new).indices)) > 5  # of twelve
    other = FlowHasher(**QUICK).fit(known, labels)
    assert other.encoder_.fingerprint == own.fingerprint
    assert other.adapt().encoder_.fingerprint != one.encoder_.fingerprint
    again = FlowHasher(**QUICK).fit(known, labels).adapt(new)
    assert again.encoder_.fingerprint == one.encoder_.fingerprint


@pytest.mark.parametrize("other", [True, False])
@pytest.mark.parametrize("rank", ["input", "whitened", "codes"])
def test_a_sample_is_encoded_and_codes_are_made_in_blocks(
    other: bool, rank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowhash.learn.adaptation.PER_BUCKET", 5)
    known, labels = items(range(4))
    new = items(range(10, 20), 20, seed=1)[0] if other else None
    hasher = FlowHasher(**QUICK, rank=rank).fit(known, labels)
    before = hasher.encoder_
    made = before.encode(known if new is None else new)
    seed = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max))
    expected = adapt_encoder(before, made.embeddings, made.codes, seed=seed)
    sizes: list[int] = []

    def counted(self: Encoded) -> Any:
        sizes.append(len(self.activations))
        return real(self)

    real = vars(Encoded)["codes"].fget
    monkeypatch.setattr(Encoded, "codes", property(counted))
    monkeypatch.setattr("flowhash.estimator.flow_hasher.ROWS", 50)
    hasher.adapt(new)
    assert max(sizes) <= 50
    assert sum(sizes) == len(known) + (0 if new is None else 60)  # five of each bucket
    # In other blocks the last digits of an embedding may be others.
    for name, value in expected.hash.state_dict().items():
        torch.testing.assert_close(hasher.encoder_.hash.state_dict()[name], value)
    stored = np.array(hasher.table_.codes_of(list(range(len(known)))))
    np.testing.assert_array_equal(stored, expected.encode(known).codes)


def test_what_fails_leaves_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFittedError):
        FlowHasher().adapt()
    known, labels = items(range(4))
    hasher = FlowHasher(**QUICK).fit(known, labels)
    before, table = hasher.encoder_, hasher.table_
    with pytest.raises(ValueError, match="features"):
        hasher.adapt(known[:, :3])
    with pytest.raises(ValueError, match="NaN"):
        hasher.adapt(np.full((3, 6), np.nan))

    def broken(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("flowhash.estimator.hasher_files.new_table", broken)
    with pytest.raises(MemoryError):
        hasher.adapt()
    assert hasher.encoder_ is before
    assert hasher.table_ is table
    assert hasher.kneighbors(known[:2])[1].shape == (2, 5)
