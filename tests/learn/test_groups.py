"""Groups: parts of classes with codes of their own, and the loss and the order that use them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.special import log_softmax, softmax

from flowhash.codes import assign_codes
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.learn import Coder, Settings, Stage, best_validation, make_loss, train
from flowhash.learn.class_groups import (
    even_halves,
    even_means,
    given_groups,
    shared_out,
    split_classes,
)
from flowhash.learn.losses import CodeLoss
from flowhash.learn.stages import ORDER_WEIGHTS
from flowhash.networks import BucketOrder
from flowhash.quality import search_quality
from tests.learn.trainer import STEPS, clouds, group_settings, vector_settings, watched


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 40), st.integers(1, 4))
def test_every_class_gets_its_share_of_the_groups(sizes: list[int], count: int, least: int) -> None:
    parts = shared_out(np.array(sizes), count, least)
    room = [max(1, size // least) for size in sizes]
    assert parts.sum() == max(len(sizes), min(count, sum(room)))
    assert all(1 <= part <= most for part, most in zip(parts, room, strict=True))
    for one, (size, part) in enumerate(zip(sizes, parts, strict=True)):
        for other in range(len(sizes)):  # nobody with room has larger groups than another's last
            if one != other and part > 1 and parts[other] < room[other]:
                assert sizes[other] / parts[other] <= size / (part - 1) + 1e-12


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(2, 25))
def test_groups_lie_inside_classes_and_are_even(seed: int, classes: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(classes), rng.integers(4, 30, classes)))
    vectors = rng.normal(size=(len(labels), 3)).astype(np.float32)
    found = split_classes(vectors, labels, count, seed)
    assert sorted(set(found.labels.tolist())) == list(range(len(found)))
    np.testing.assert_array_equal(found.owners[found.labels], labels)
    for name in range(classes):
        loads = np.bincount(found.labels[labels == name])
        loads = loads[loads > 0]
        assert loads.max() - loads.min() <= 1
    again = split_classes(vectors, labels, count, seed)
    np.testing.assert_array_equal(again.labels, found.labels)


def test_groups_are_the_clouds_of_a_class() -> None:
    """Four clouds of one size, and a sample of a class that is larger than what is looked at."""
    rng = np.random.default_rng(0)
    for each in (20, 2_000):
        truth = rng.permutation(np.repeat(np.arange(4), each))
        vectors = 10 * np.eye(4, 6)[truth] + rng.normal(size=(len(truth), 6))
        found = even_means(vectors.astype(np.float32), 4, rng)
        table = np.zeros((4, 4), int)
        np.add.at(table, (truth, found), 1)
        assert table.max(axis=1).sum() >= 0.98 * len(truth)  # blocks are even by force
    same = even_means(np.ones((30, 2), np.float32), 3, rng)  # nothing to tell them apart by
    assert np.bincount(same).tolist() == [10, 10, 10]


@pytest.mark.parametrize(("items", "count"), [(300, 40), (2_500, 200), (2_120, 1_060)])
def test_sizes_differ_by_one_item_at_most(items: int, count: int) -> None:
    """Also where some lie far away, and where there are more than are looked at at once."""
    rng = np.random.default_rng(1)
    vectors = np.exp(2 * rng.normal(size=(items, 3))).astype(np.float32)
    loads = np.bincount(even_means(vectors, count, rng), minlength=count)
    assert (loads.min(), loads.max()) == (items // count, -(-items // count))


@given(st.integers(0, 10**6), st.integers(1, 90), st.integers(1, 40))
def test_halves_of_halves_are_even(seed: int, items: int, count: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(items, 3))
    loads = np.bincount(even_halves(vectors, count), minlength=count)
    assert len(loads) == count
    assert (loads.min(), loads.max()) == (items // count, -(-items // count))


def test_halves_of_halves_are_clusters() -> None:
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(np.arange(16), 5))
    middles = 10 * rng.normal(size=(16, 12))
    found = even_halves(middles[truth] + 0.1 * rng.normal(size=(80, 12)), 16)
    assert len(set(zip(truth.tolist(), found.tolist(), strict=True))) == 16
    same = even_halves(np.ones((30, 2)), 3)  # nothing to tell them apart by
    assert np.bincount(same).tolist() == [10, 10, 10]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([0, 1], "for each of the 4 items"),
        ([0.0, 0.5, 1.0, 1.0], "dtype float64"),
        ([0, 0, 2, 2], "expected all numbers from 0 on"),
        ([0, 1, 1, 1], "group 1 has items of the classes 0 and 1"),
    ],
)
def test_groups_that_cannot_be(groups: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        given_groups(groups, np.array([0, 0, 1, 1]))
    found = given_groups([2, 0, 1, 1], np.array([5, 5, 7, 7]))
    assert found.owners.tolist() == [5, 7, 5]
    assert found.split


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([0.0, 1.0, 2.5]))
def test_the_loss_is_cross_entropy_of_codes_and_of_classes(
    seed: int, active: int, weight: float
) -> None:
    rng = np.random.default_rng(seed)
    batch, buckets = 6, 5
    outputs = rng.normal(size=(batch, buckets))
    codes = np.stack([rng.permutation(buckets)[:active] for _ in range(batch)])
    shares = rng.uniform(0.1, 1, size=(batch, buckets)) * (rng.random((batch, buckets)) < 0.6)
    shares[np.arange(batch), codes[:, 0]] = 0.5  # its own bucket is its class's too
    expected = 0.0
    for row in range(batch):
        likely = log_softmax(outputs[row])
        expected -= sum(likely[bucket] for bucket in codes[row]) / active / batch
        inside = sum(softmax(outputs[row])[q] * shares[row, q] for q in range(buckets))
        expected -= weight * np.log(inside) / batch
    given_outputs = torch.tensor(outputs, requires_grad=True)
    loss = make_loss("codes", class_weight=weight)
    labels = torch.arange(batch)
    value = loss(given_outputs, labels, torch.from_numpy(codes), torch.from_numpy(shares))
    assert float(value.detach()) == pytest.approx(expected)
    value.backward()
    assert bool(torch.isfinite(given_outputs.grad).all())
    with pytest.raises(InputError, match="stage 1 has no codes"):
        loss(given_outputs, labels)


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from([0.3, 2.0]))
def test_the_term_of_neighbours_is_that_of_naive_loops(
    seed: int, nearest: int, weight: float
) -> None:
    """Minus the logarithm of how likely an item meets its nearest ones of the class, of all."""
    rng = np.random.default_rng(seed)
    batch, buckets = 7, 5
    outputs, ranking = rng.normal(size=(batch, buckets)), rng.normal(size=(batch, 3))
    classes, codes = rng.integers(0, 3, batch), rng.integers(0, buckets, (batch, 1))
    terms = []
    for row in range(batch):
        others = [other for other in range(batch) if other != row]
        others = [other for other in others if classes[other] == classes[row]]
        others.sort(key=lambda other: float(((ranking[row] - ranking[other]) ** 2).sum()))
        meet = np.zeros(batch)
        for other in range(batch):
            pairs = zip(softmax(outputs[row]), softmax(outputs[other]), strict=True)
            meet[other] = sum(one * two for one, two in pairs) * (other != row)
        terms += [-np.log(meet[other] / meet.sum()) for other in others[:nearest]]
    given_outputs = torch.tensor(outputs, requires_grad=True)
    labels, chosen = torch.arange(batch), torch.from_numpy(codes)
    near = {"ranking": torch.from_numpy(ranking), "classes": torch.from_numpy(classes)}
    plain = make_loss("codes")(given_outputs, labels, chosen, **near)
    loss = make_loss("codes", neighbours=weight, nearest=nearest)
    value = loss(given_outputs, labels, chosen, **near)
    expected = weight * np.mean(terms) if terms else 0.0
    assert float((value - plain).detach()) == pytest.approx(expected)
    value.backward()
    assert bool(torch.isfinite(given_outputs.grad).all())
    alone = loss(given_outputs, labels, chosen, ranking=near["ranking"])  # each its own class
    assert float((alone - plain).detach()) == 0


def test_neighbours_that_can_never_meet_leave_the_loss_finite() -> None:
    outputs = torch.tensor([[200.0, 0.0], [0.0, 200.0], [200.0, 0.0]], requires_grad=True)
    codes, classes = torch.tensor([[0], [1], [0]]), torch.tensor([0, 0, 1])
    loss = make_loss("codes", neighbours=1.0)
    value = loss(outputs, torch.arange(3), codes, ranking=torch.eye(3), classes=classes)
    value.backward()
    assert bool(torch.isfinite(value.detach()))
    assert bool(torch.isfinite(outputs.grad).all())
    for options, words in (
        ({"neighbours": -1.0}, "neighbours is -1.0; expected a number"),
        ({"nearest": 0}, "nearest is 0; expected a whole number"),
    ):
        with pytest.raises(InputError, match=words):
            make_loss("codes", **options)


@pytest.mark.parametrize("rank", ["base", "whitened", "hash"])
def test_the_term_of_neighbours_gets_what_ranks_and_the_classes(
    rank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, forward = [], CodeLoss.forward

    def watched_loss(self: Any, embeddings: Any, labels: Any, codes: Any, **more: Any) -> Any:
        seen.append((embeddings.detach(), labels, more))
        return forward(self, embeddings, labels, codes, **more)

    monkeypatch.setattr(CodeLoss, "forward", watched_loss)
    splits, told = clouds(), replace(group_settings(active=1), rank=rank)
    told = replace(told, hash=replace(told.hash, loss_options={"neighbours": 0.5}))
    encoder = train(splits, told, None, quiet=True)
    made = encoder.encode(splits.train).embeddings
    owners = torch.from_numpy(split_owners(splits, told))
    for outputs, labels, more in seen:
        assert bool((more["classes"] == owners[labels]).all())
        if rank == "hash":
            assert bool((more["ranking"] == outputs).all())
        else:  # each row is that of some item, as it will be ranked
            apart = torch.cdist(more["ranking"], torch.from_numpy(made)).min(1).values
            assert float(apart.max()) < 1e-2
    assert len(seen) == STEPS


def test_shares_are_counted_over_all_groups() -> None:
    owners = np.array([0, 0, 1, 2])
    coder = Coder(2, 0.5, owners)
    coder.chosen = np.array([[0, 1], [1, 2], [2, 3], [-1, -1]], np.int32)  # the last not seen yet
    every = coder.shares(np.arange(3), 5)
    np.testing.assert_allclose(every, [[1, 1, 0.5, 0, 0], [0, 0, 0.5, 1, 0], [0, 0, 0, 0, 0]])
    np.testing.assert_allclose(coder.shares(np.array([1]), 5), every[1:2])


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_buckets_of_classes_are_the_shares_without_their_zeros(seed: int, active: int) -> None:
    """Written into a matrix they are the same, and so is the loss."""
    rng = np.random.default_rng(seed)
    groups, buckets, batch = 9, 5, 7
    coder = Coder(active, 0.5, np.sort(rng.integers(0, 4, groups)))
    coder.chosen = np.stack([rng.permutation(buckets)[:active] for _ in range(groups)])
    coder.chosen = coder.chosen.astype(np.int32)
    coder.chosen[rng.random(groups) < 0.2] = -1  # not seen yet
    here = np.unique(coder.owners)[:: rng.integers(1, 3)]
    places, parts = coder.class_buckets(here)
    dense = np.zeros((len(here), buckets), np.float32)
    np.add.at(dense, (np.arange(len(here))[:, None], places), parts)
    np.testing.assert_allclose(dense, coder.shares(here, buckets), rtol=1e-6)
    rows = rng.choice(np.flatnonzero(dense.sum(axis=1) > 0), batch) if dense.any() else []
    if not len(rows):
        return
    outputs = torch.from_numpy(rng.normal(size=(batch, buckets)).astype(np.float32))
    codes = torch.from_numpy(rng.integers(0, buckets, (batch, 1)))
    given_shares = (torch.from_numpy(each[rows]) for each in (parts, places))
    loss = make_loss("codes")
    few = loss(outputs, torch.arange(batch), codes, *given_shares)
    every = loss(outputs, torch.arange(batch), codes, torch.from_numpy(dense[rows]))
    assert float(few) == pytest.approx(float(every), rel=1e-5)


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 1.0, 4.0]))
def test_the_order_is_by_class_and_then_by_bucket(seed: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    outputs = 3 * rng.normal(size=(4, 6)).astype(np.float32)
    shares = rng.random((3, 6)).astype(np.float32)
    shares /= shares.sum(axis=0)
    shares[:, 5] = 0  # a bucket that nobody has
    found = BucketOrder(torch.from_numpy(shares), weight)(torch.from_numpy(outputs)).numpy()
    if weight == 0:  # whose classes are known, and do not count
        np.testing.assert_array_equal(found, outputs)
        return
    for row in range(4):
        p = softmax(outputs[row].astype(np.float64))
        classes = [sum(p[q] * shares[c, q] for q in range(6)) for c in range(3)]
        for q in range(5):
            inside = sum(shares[c, q] * classes[c] for c in range(3))
            expected = np.log(p[q]) + weight * np.log(inside)
            assert found[row, q] == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert np.isfinite(found).all()
    assert (found.argmin(axis=1) == 5).all()


def test_training_with_groups_uses_every_bucket_and_is_kept(tmp_path: Path) -> None:
    """Four classes in twenty buckets: by classes most stay empty, by groups none does."""
    splits = clouds(classes=4, items=120, noise=0.6)
    stage = Stage("codes", 20, 10, 4, 150, rate=5e-3, start="classes")
    told = Settings(
        {"name": "linear"}, None, stage, augment=None, groups="auto", penalty=0.5, validate_every=75
    )
    encoder = train(splits, told, tmp_path / "run", quiet=True)
    assert encoder.hash.order is not None
    said = best_validation(tmp_path / "run" / "hash")  # of what the encoder does, order included
    assert said is not None
    made = encoder.encode(splits.validation)
    found = search_quality(made.activations, made.embeddings, splits.validation.labels, 1)
    assert (said["pr1"], said["suf"]) == pytest.approx((found.precision[1], found.speed_up))
    assert said["weight"] == encoder.hash.order.weight
    used = set(encoder.encode(splits.train).codes.ravel().tolist())
    assert len(used) == 20
    loaded = Encoder.load(tmp_path / "run" / "encoder")
    assert loaded.fingerprint == encoder.fingerprint
    assert splits.test is not None
    np.testing.assert_array_equal(
        loaded.encode(splits.test).activations, encoder.encode(splits.test).activations
    )
    classes = splits.train.labels
    by_class = train(
        splits, replace(told, groups="classes", hash=replace(stage, classes=4)), None, quiet=True
    )
    assert by_class.hash.order is None
    assert len(set(by_class.encode(splits.train).codes.ravel().tolist())) <= 6
    own = classes * 2 + np.arange(len(classes)) % 2
    halves = train(
        splits, replace(told, hash=replace(stage, classes=8)), None, groups=own, quiet=True
    )
    assert halves.hash.order is not None
    assert halves.hash.order.shares.sum() == pytest.approx(8)


def test_pairs_have_no_groups() -> None:
    splits = clouds()
    with pytest.raises(InputError, match="the data are pairs"):
        train(splits, group_settings(base=None), None, pairs=[[0, 1], [2, 3], [4, 5]], quiet=True)


def test_what_does_not_go_with_groups_is_refused_before_stage_1(tmp_path: Path) -> None:
    splits, told = clouds(), group_settings()
    for changes, words in (
        ({"hash": Stage("softmax", 6, 5, 2, 3)}, "whose outputs are the classes"),
        ({"base": replace(told.base or told.hash, loss="codes")}, "only stage 2 solves for"),
        (
            {"hash": replace(told.hash, loss="triplet", items=30)},
            "class 0 is a class with 12 items",
        ),
    ):
        with pytest.raises(InputError, match=words):
            train(splits, replace(told, **changes), tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_has_no_more_groups_than_there_are() -> None:
    """How many there are depends on the buckets, which a user may change alone."""
    told = group_settings(base=None)
    for buckets in (4, 8):  # fewer than the six classes, and more
        hashed = replace(told.hash, classes=32, outputs=buckets, steps=2)
        assert train(clouds(), replace(told, hash=hashed), None, quiet=True).buckets == buckets


def test_an_unfinished_run_keeps_its_groups(tmp_path: Path) -> None:
    splits, told = clouds(), group_settings()

    def stopped() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(watched(splits, told, STEPS + 9, stopped), told, tmp_path, quiet=True)
    with pytest.raises(InputError, match=r"other settings \(hash\.items\)"):
        train(splits, replace(told, hash=replace(told.hash, items=3)), tmp_path, quiet=True)
    with pytest.raises(InputError, match=r"other data \(groups\)"):
        train(splits, told, tmp_path, groups=splits.train.labels, quiet=True)
    coder = Coder(1, 0.5, np.arange(3))
    with pytest.raises(InputError, match="codes of 2 groups, but there are 3"):
        coder.restore({"chosen": [[0], [1]]})


def test_the_class_term_sees_the_shares_of_the_best_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is given shares; the order is made of the codes that the best checkpoint has."""
    seen, forward = [], CodeLoss.forward

    def watched_loss(self: Any, embeddings: Any, labels: Any, codes: Any, **more: Any) -> Any:
        seen.append(more["shares"])
        return forward(self, embeddings, labels, codes, **more)

    monkeypatch.setattr(CodeLoss, "forward", watched_loss)
    splits, told = clouds(), group_settings(active=1)
    encoder = train(splits, told, tmp_path, quiet=True)
    assert len(seen) == STEPS
    assert all(float(each.sum()) > 0 for each in seen)
    record = json.loads((tmp_path / "hash" / "best.json").read_text())
    coder = Coder(1, 0.5, split_owners(splits, told))
    coder.restore(record)
    assert encoder.hash.order is not None
    expected = coder.shares(np.arange(6), 12)
    np.testing.assert_array_equal(encoder.hash.order.shares.numpy(), expected)


def split_owners(splits: Any, told: Settings) -> Any:
    sizes = np.bincount(splits.train.labels)
    return np.repeat(np.arange(6), shared_out(sizes, told.hash.outputs, told.hash.items))


def test_the_weight_of_the_order_is_the_most_precise(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Found:
        speed_up = 1.0

        def __init__(self, value: float) -> None:
            self.precision = {1: value, 16: 0.0}

    def quality(scores: Any, *_: Any) -> Found:
        asked.append(scores)
        return Found([0.3, 0.4, 0.9, 0.5][len(asked) - 1])

    monkeypatch.setattr("flowhash.learn.stages.search_quality", quality)
    encoder = train(clouds(), group_settings(base=None), None, quiet=True)
    assert encoder.hash.order is not None
    assert len(asked) == len(ORDER_WEIGHTS)
    assert encoder.hash.order.weight == ORDER_WEIGHTS[2]


def test_loads_of_other_batches_count_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_loads = []

    def solve(*arguments: Any, **others: Any) -> Any:
        given_loads.append(others["outside"])
        return assign_codes(*arguments, **others)

    monkeypatch.setattr("flowhash.learn.training.training_loop.assign_codes", solve)
    for outside in (False, True):
        given_loads.clear()
        train(clouds(), vector_settings(base=None, outside=outside), None, quiet=True)
        assert len(given_loads) == STEPS
        assert all(loads is None for loads in given_loads) != outside
        if outside:  # six classes, five in a batch: one is outside, once all were seen
            assert given_loads[-1].sum() == 1
