"""Buckets fitted to items without labels: nearest centres, the same from items and from a table."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.learn import adapt_encoder, adaptation
from flowhash.learn.adaptation import BucketCentres, fit_centres
from flowhash.networks import BaseEmbeddings, BucketOrder, EmbeddingNetwork, PlainVectors
from tests.encoder.encoders import KINDS, Own, items_of, make

BUCKETS, DIM = 7, 4


def squares(rows: NDArray[Any], points: NDArray[Any]) -> NDArray[np.float64]:
    """The formula, written out in float64 [n, d]."""
    wide = rows.astype(np.float64)[:, None, :] - points.astype(np.float64)[None, :, :]
    found: NDArray[np.float64] = np.square(wide).sum(axis=2)
    return found


def clear(far: NDArray[np.float64], active: int, size: float) -> NDArray[np.bool_]:
    """The rows whose k nearest are nearer than the next by more than float32 confuses."""
    ordered = np.sort(far, axis=1)
    found: NDArray[np.bool_] = ordered[:, active] - ordered[:, active - 1] > 1e-5 * size
    return found


@pytest.mark.parametrize("offset", [0.0, 1_000.0])
@pytest.mark.parametrize("active", [1, 3])
def test_outputs_are_largest_for_the_nearest_centres(offset: float, active: int) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(BUCKETS, DIM)) + offset
    rows = (rng.normal(size=(500, DIM)) + offset).astype(np.float32)
    weights, biases = BucketCentres(points, np.zeros(BUCKETS, np.bool_)).layer()
    assert weights.dtype == biases.dtype == np.float32
    far = squares(rows, points)
    sure = clear(far, active, 1 + offset)
    assert sure.sum() > 300
    made = np.argsort(-(rows @ weights.T + biases), axis=1)[:, :active]
    wanted = np.argsort(far, axis=1)[:, :active]
    np.testing.assert_array_equal(np.sort(made)[sure], np.sort(wanted)[sure])


def test_directions_do_not_depend_on_lengths() -> None:
    rng = np.random.default_rng(2)
    points = rng.normal(size=(BUCKETS, DIM)) * rng.uniform(0.1, 9, (BUCKETS, 1))
    rows = rng.normal(size=(300, DIM)).astype(np.float32)
    weights, biases = BucketCentres(points, np.zeros(BUCKETS, np.bool_)).layer(directions=True)
    units = points / np.linalg.norm(points, axis=1, keepdims=True)
    cosines = rows.astype(np.float64) @ units.T
    sure = clear(-cosines, 1, 1.0)
    for length in (1e-3, 1.0, 1e3):
        made = (np.float32(length) * rows @ weights.T + biases).argmax(axis=1)
        np.testing.assert_array_equal(made[sure], cosines.argmax(axis=1)[sure])


def test_all_buckets_get_work() -> None:
    """From a start that puts all items into one bucket, as a network does that knows none."""
    rng = np.random.default_rng(3)
    middles = 20 * rng.normal(size=(BUCKETS, DIM))
    labels = np.repeat(np.arange(BUCKETS), 40)
    rows = (middles[labels] + rng.normal(size=(len(labels), DIM))).astype(np.float32)
    found = fit_centres(rows, np.zeros((len(rows), 1), np.int32), BUCKETS, seed=1)
    assert not found.idle.any()
    far = squares(rows, found.points)
    loads = np.bincount(far.argmin(axis=1), minlength=BUCKETS)
    assert loads.min() > 0
    assert loads.max() <= 3 * len(rows) / BUCKETS
    assert far.min(axis=1).sum() < 0.2 * squares(rows, rows.mean(axis=0)[None]).sum()


def test_it_starts_at_the_trained_buckets() -> None:
    """What is good already keeps its numbers."""
    rng = np.random.default_rng(4)
    middles = 20 * rng.normal(size=(BUCKETS, DIM))
    labels = rng.permutation(np.repeat(np.arange(BUCKETS), 30))
    rows = (middles[labels] + rng.normal(size=(len(labels), DIM))).astype(np.float32)
    found = fit_centres(rows, labels[:, None].astype(np.int32), BUCKETS)
    np.testing.assert_array_equal(squares(rows, found.points).argmin(axis=1), labels)


def test_few_items_leave_buckets_empty() -> None:
    """Four items a bucket on average; the fullest buckets are those that stay."""
    rng = np.random.default_rng(7)
    labels = rng.permutation(np.repeat(np.arange(BUCKETS), [9, 1, 8, 1, 7, 1, 1]))
    rows = (20 * rng.normal(size=(BUCKETS, DIM)))[labels] + rng.normal(size=(28, DIM))
    rows = rows.astype(np.float32)
    few = fit_centres(rows[:15], labels[:15, None].astype(np.int32), BUCKETS)
    assert np.count_nonzero(~few.idle) == 3
    fullest = np.argsort(-np.bincount(labels[:15], minlength=BUCKETS), kind="stable")[:3]
    assert set(np.flatnonzero(~few.idle)) == set(fullest)
    assert not fit_centres(rows, labels[:, None].astype(np.int32), BUCKETS).idle.any()


def classified(rows: NDArray[np.float32], codes: NDArray[np.int64], shares: Any) -> Encoder:
    """An encoder of vectors that rank as they are, which knows whose its buckets are."""
    encoder = make("linear")
    hashing = EmbeddingNetwork(PlainVectors(rows.shape[1]), shares.shape[1])
    hashing.order = BucketOrder(torch.from_numpy(shares.astype(np.float32)), 0.0)
    base = EmbeddingNetwork(PlainVectors(rows.shape[1]), None)
    return Encoder(base, hashing, replace(encoder.preprocessing, mean=np.zeros((), np.float32)), 1)


def two_classes(seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64], Any]:
    """Two long clouds side by side, a class each, which has two of four buckets."""
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, 1], 100)
    cloud = np.tile(rng.normal(size=(100, 3)), (2, 1)) * [8, 0.1, 0.1]
    rows = cloud + np.outer(labels, [0, 1, 0])
    codes = 2 * labels  # the other two begin at items of these
    shares = np.array([[1, 1, 0, 0], [0, 0, 1, 1]])
    return rows.astype(np.float32), codes, shares


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_trained_classes_count_in_the_distance(metric: str, tmp_path: Path) -> None:
    """Along the clouds items are far from each other, across hardly; buckets keep to a class."""
    rows, codes, shares = two_classes(0)
    labels = codes // 2
    if metric == "cosine":  # the clouds as directions, of any length
        ways = rows / [2, 1, 1] * 0.1 + [0, 0, 1]
        rows = (ways * np.random.default_rng(1).uniform(0.5, 9, (200, 1))).astype(np.float32)
    encoder = classified(rows, codes, shares)
    pure = {}
    for weight in (0.0, 3.0):
        adapted = adapt_encoder(encoder, rows, codes[:, None], metric=metric, class_weight=weight)
        found = adapted.encode_stored(rows).codes[:, 0]
        counts = np.stack([np.bincount(found[labels == each], minlength=4) for each in (0, 1)])
        pure[weight] = counts.max(axis=0).sum() / len(rows)
    assert pure[3.0] > 0.97 > pure[0.0]
    # What is behind the embeddings, written out.
    backbone = adapted.hash.backbone
    assert isinstance(backbone, BaseEmbeddings)
    wide = rows.astype(np.float64)
    if metric == "cosine":
        wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    means = np.stack([wide[labels == each].mean(axis=0) for each in (0, 1)])
    behind = backbone(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(behind[:, :3], wide, atol=1e-5)
    factor = 3 * np.sqrt(np.square(wide - wide.mean(axis=0)).sum(axis=1).mean())
    np.testing.assert_allclose(np.square(behind[:, 3:]).sum(axis=1), factor**2, rtol=1e-4)
    odds = 2 * np.log(behind[:, 3] / behind[:, 4])
    far = squares(wide, means)
    sharp = (odds @ (far[:, 1] - far[:, 0])) / np.square(far[:, 1] - far[:, 0]).sum()
    assert sharp > 0
    clear_odds = np.abs(odds) < 20  # the others are rounded to nothing
    np.testing.assert_allclose(
        odds[clear_odds], sharp * (far[:, 1] - far[:, 0])[clear_odds], rtol=0.01, atol=0.01
    )
    adapted.save(tmp_path)
    assert '"format": 4' in (tmp_path / "encoder.json").read_text()
    again = Encoder.load(tmp_path)
    assert again.fingerprint == adapted.fingerprint
    np.testing.assert_array_equal(again.encode_stored(rows).codes[:, 0], found)
    # Fitted once more, to other items, it knows the same classes.
    twice = adapt_encoder(again, rows[:150], metric=metric)
    assert isinstance(twice.hash.backbone, BaseEmbeddings)
    assert torch.equal(twice.hash.backbone.class_weights, backbone.class_weights)


def test_without_what_tells_classes_apart_there_are_none() -> None:
    rows, codes, shares = two_classes(2)
    encoder = classified(rows, codes, shares)

    def classes(rows: Any, codes: Any, **options: Any) -> int:
        made = adapt_encoder(encoder, rows, codes[:, None], **options).hash.backbone
        return made.classes if isinstance(made, BaseEmbeddings) else 0

    assert classes(rows, codes) == 2
    assert classes(rows, codes, class_weight=0.0) == 0
    assert classes(rows[:100], codes[:100]) == 0  # items of one class
    assert classes(np.ones_like(rows), codes) == 0
    with mock.patch.object(adaptation, "MOST_CLASSES", 1):
        assert classes(rows, codes) == 0
    with pytest.raises(InputError, match="class_weight is -1"):
        adapt_encoder(encoder, rows, codes[:, None], class_weight=-1)


def test_classes_that_share_a_bucket_part_where_another_has_two() -> None:
    """Where k-means alone stays: two far classes around one centre, two centres in one class."""
    rng = np.random.default_rng(5)
    middles = 20 * rng.normal(size=(BUCKETS, DIM))
    labels = rng.permutation(np.repeat(np.arange(BUCKETS), 30))
    rows = (middles[labels] + rng.normal(size=(len(labels), DIM))).astype(np.float32)
    codes = np.where(labels == 1, 0, labels)
    codes[np.flatnonzero(labels == 2)[::2]] = 1
    found = fit_centres(rows, codes[:, None].astype(np.int32), BUCKETS)
    nearest = squares(rows, found.points).argmin(axis=1)
    owners = [set(nearest[labels == label].tolist()) for label in range(BUCKETS)]
    assert all(len(each) == 1 for each in owners)
    assert len(set().union(*owners)) == BUCKETS
    kept = labels > 2  # whose buckets nothing was wrong with
    np.testing.assert_array_equal(nearest[kept], labels[kept])


def encoder_for(vectors: int, active: int) -> Encoder:
    return make("linear", base=False, active=active) if vectors else make("mlp", active=active)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 3),
    st.sampled_from(["euclidean", "cosine", "inner"]),
    st.sampled_from(["plain", "equal", "few", "zero", "large", "far"]), st.booleans(),
)  # fmt: skip
def test_any_items_give_buckets_that_can_be_used(
    seed: int, count: int, active: int, metric: str, kind: str, vectors: bool
) -> None:
    rng = np.random.default_rng(seed)
    encoder = encoder_for(vectors, active)
    rows = rng.normal(size=(count, encoder.dim)).astype(np.float32)
    if kind == "equal":
        rows[:] = rows[0]
    elif kind == "few":
        rows = rows[rng.integers(0, min(3, count), count)]
    elif kind == "zero":
        rows[:: int(rng.integers(1, 3))] = 0
    elif kind == "large":
        rows *= np.float32(1e15)
    elif kind == "far":
        rows += 1e3
    codes = np.stack([rng.permutation(encoder.buckets)[:active] for _ in range(count)])
    centres: list[BucketCentres] = []

    def watched(*given: Any) -> BucketCentres:
        centres.append(fit_centres(*given))
        return centres[-1]

    with mock.patch.object(adaptation, "fit_centres", watched):
        adapted = adapt_encoder(encoder, rows, codes, metric=metric, seed=seed)
    assert (adapted.buckets, adapted.active, adapted.dim) == (11, active, encoder.dim)
    made = adapted.encode_stored(rows)
    assert np.isfinite(made.activations).all()
    different, places = np.unique(rows, axis=0, return_inverse=True)
    for place in range(places.max() + 1):  # equal items share their first bucket
        firsts = made.activations[places.ravel() == place].argmax(axis=1)
        assert len(set(firsts.tolist())) == 1
    # A bucket that no item is nearest to is opened behind all that have items, whatever is asked.
    idle = centres[0].idle
    assert idle.sum() >= adapted.buckets - len(different)
    for length in (-1.0, 1e-3, 1.0, 1e3):
        order = adapted.encode_stored(np.float32(length) * rows).ordered_buckets()
        assert not idle[order[:, : np.count_nonzero(~idle)]].any()
    again = adapt_encoder(encoder, rows, codes, metric=metric, seed=seed)
    assert again.fingerprint == adapted.fingerprint


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "inner"])
@pytest.mark.parametrize("length", [1e-3, 1.0, 1e3, 1e15])
def test_buckets_without_items_come_last(metric: str, length: float) -> None:
    encoder = make("mlp", active=5)  # more than there are items
    rows = np.repeat(np.eye(4, dtype=np.float32)[:3], 4, axis=0)
    adapted = adapt_encoder(encoder, rows, [[0, 1]] * 12, metric=metric)
    made = adapted.encode_stored(rows)
    used = set(made.activations.argmax(axis=1).tolist())
    assert len(used) == 3  # one for each of the three, of eleven
    asked = adapted.encode_stored(np.concatenate((rows, -rows)) * np.float32(length))
    assert np.isfinite(asked.activations).all()
    for order, code in zip(asked.ordered_buckets(), asked.codes, strict=True):
        assert set(order[:3].tolist()) == used
        assert set(code.tolist()) == set(order[:5].tolist()) > used


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", [True, False])
def test_it_ranks_as_before_and_codes_come_from_embeddings(
    kind: str, base: bool, tmp_path: Path
) -> None:
    encoder, items = make(kind, base=base), items_of(kind, 60)
    before = encoder.encode(items)
    adapted = adapt_encoder(encoder, before.embeddings, before.codes, seed=3)
    assert adapted.fingerprint != encoder.fingerprint
    assert adapted.class_names == encoder.class_names
    assert adapted.input_dim == encoder.input_dim
    after = adapted.encode(items)
    np.testing.assert_array_equal(after.embeddings, before.embeddings)
    np.testing.assert_array_equal(adapted.encode_stored(before.embeddings).codes, after.codes)
    adapted.save(tmp_path)
    again = Encoder.load(tmp_path, Own() if kind == "custom" else None)
    assert again.fingerprint == adapted.fingerprint
    np.testing.assert_array_equal(again.encode(items).activations, after.activations)
    # Once more, on top: the base stays the same one, and is not stacked.
    twice = adapt_encoder(again, before.embeddings)
    assert twice.base is not None
    assert adapted.base is not None
    assert twice.base.spec["backbone"]["name"] == adapted.base.spec["backbone"]["name"]
    np.testing.assert_array_equal(twice.encode(items).embeddings, before.embeddings)


def test_the_base_network_runs_once() -> None:
    encoder, items = make("custom"), items_of("custom", 5)
    before = encoder.encode(items)
    adapted = adapt_encoder(encoder, before.embeddings, before.codes)
    runs: list[int] = []
    assert adapted.base is not None
    adapted.base.backbone.register_forward_hook(lambda *_: runs.append(1))
    adapted.encode(items)
    assert runs == [1]
    assert not any(name.startswith("hash.backbone") for name in adapted.networks.state_dict())


def test_vectors_that_rank_as_they_are_need_no_new_format(tmp_path: Path) -> None:
    plain = EmbeddingNetwork(make("linear").hash.backbone, None)
    hashing = make("mlp").hash
    encoder = Encoder(plain, hashing, make("mlp").preprocessing, 1)
    items = items_of("mlp", 50)
    before = encoder.encode(items)
    adapted = adapt_encoder(encoder, before.embeddings)  # whose codes it can make
    adapted.save(tmp_path)
    assert '"format": 1' in (tmp_path / "encoder.json").read_text()
    made = adapted.encode(items)
    np.testing.assert_array_equal(adapted.encode_stored(before.embeddings).codes, made.codes)
    start = fit_centres(before.embeddings, before.codes, 11, 0)
    wanted = squares(before.embeddings, start.points)[:, ~start.idle]
    sure = clear(wanted, 1, 1.0)
    numbers = np.flatnonzero(~start.idle)
    np.testing.assert_array_equal(made.codes[sure, 0], numbers[wanted.argmin(axis=1)][sure])


def test_of_many_items_a_sample_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def watched(rows: NDArray[np.float32], *given: Any) -> BucketCentres:
        seen.append(len(rows))
        return fit_centres(rows, *given)

    monkeypatch.setattr(adaptation, "fit_centres", watched)
    monkeypatch.setattr(adaptation, "PER_BUCKET", 3)
    encoder, rows = make("mlp"), np.random.default_rng(0).normal(size=(200, 4))
    codes = np.zeros((200, 2), np.int32)
    adapt_encoder(encoder, rows, codes)
    assert adaptation.sample_size(11, 4) == seen[0] == 33
    monkeypatch.setattr(adaptation, "SAMPLE_BYTES", 1)
    monkeypatch.setattr(adaptation, "LEAST_PER_BUCKET", 2)
    assert adaptation.sample_size(11, 4) == 22


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(100, DIM)).astype(np.float32)
    codes = rng.integers(0, BUCKETS, (100, 2)).astype(np.int32)
    whole = fit_centres(rows, codes, BUCKETS)
    for name, size in (("BLOCK", 7), ("NEAREST_BYTES", 4 * BUCKETS * 3), ("NEAREST_BYTES", 1)):
        with monkeypatch.context() as smaller:
            smaller.setattr(adaptation, name, size)
            found = fit_centres(rows, codes, BUCKETS)
        np.testing.assert_allclose(found.points, whole.points, atol=1e-5)


def test_distances_to_many_centres_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    rows, points = (rng.normal(size=(n, DIM)).astype(np.float32) for n in (1_000, 2_000))
    monkeypatch.setattr(adaptation, "NEAREST_BYTES", 1 << 18)
    tracemalloc.start()
    found = adaptation.nearest_points(rows, points)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 3 << 18  # all at once are 8 MB
    np.testing.assert_array_equal(found[:, 0], squares(rows, points).argmin(axis=1))


def test_the_callers_seeds_are_left_alone() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    encoder = make("mlp")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    adapt_encoder(encoder, rows, [[0, 1]] * 20)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (np.zeros((3, 5)), {}, r"embeddings have shape \(3, 5\); expected one row or more of 4"),
        (np.zeros((0, 4)), {}, r"embeddings have shape \(0, 4\)"),
        (np.full((3, 4), np.nan), {}, r"embeddings\[0, 0\] is nan"),
        (np.zeros((3, 4)), {"codes": [[0]]}, r"codes have shape \(1, 1\)"),
        (np.zeros((3, 4)), {"codes": [[0.5]] * 3}, "dtype float64; expected whole numbers"),
        (np.zeros((3, 4)), {"codes": [[11]] * 3}, "expected buckets of this encoder, 0 to 10"),
        (np.zeros((3, 4)), {"metric": "hamming"}, "metric is 'hamming'; expected"),
        (np.zeros((3, 4)), {"seed": -1}, "seed is -1"),
        (np.zeros((3, 4)), {}, "takes vectors, not embeddings, .* encode the items, or adapt"),
    ],
)
def test_mistakes_say_what_to_do(rows: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        adapt_encoder(make("mlp"), rows, **options)


@pytest.mark.parametrize("base", [True, False])
def test_stored_embeddings_may_be_of_any_kind_of_numbers(base: bool) -> None:
    encoder = make("mlp", base=base)
    rows = np.random.default_rng(0).normal(size=(20, encoder.dim)).astype(np.float32)
    adapted = adapt_encoder(encoder, rows, [[0, 1]] * 20) if base else encoder
    expected = adapted.encode_stored(rows)
    still = rows.copy()
    still.setflags(write=False)
    for same in (rows.astype(np.float64), rows.tolist(), np.asfortranarray(rows), still):
        made = adapted.encode_stored(same)
        assert made.embeddings.dtype == made.activations.dtype == np.float32
        np.testing.assert_array_equal(made.activations, expected.activations)
    assert len(adapted.encode_stored(rows[:0]).codes) == 0
    rows[3, 1] = np.nan
    with pytest.raises(InputError, match=r"embeddings\[3, 1\] is nan; every value must be finite"):
        adapted.encode_stored(rows)
    for wrong in (rows[0], rows[:, :3], rows[:, :, None]):
        with pytest.raises(InputError, match=r"embeddings ha(s|ve) shape"):
            adapted.encode_stored(wrong)
    with pytest.raises(InputError, match="expected an array of real numbers"):
        adapted.encode_stored([["a"] * encoder.dim])


def test_networks_that_take_what_nobody_makes_are_refused() -> None:
    network, other = EmbeddingNetwork(BaseEmbeddings(3), 11), make("mlp")
    with pytest.raises(InputError, match=r"embeddings of 3 numbers, but the base makes 4"):
        Encoder(other.base, network, other.preprocessing, 1)
    with pytest.raises(InputError, match="but there is no base network"):
        Encoder(None, network, other.preprocessing, 1)
    with pytest.raises(InputError, match="the base network takes embeddings"):
        Encoder(EmbeddingNetwork(BaseEmbeddings(3), 4), other.hash, other.preprocessing, 1)
