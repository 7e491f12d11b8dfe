"""Samplers: what they promise about every batch, epoch and run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from flowhash.errors import InputError
from flowhash.learn.samplers import ClassBalancedSampler, PairSampler, share

EPOCHS = 4


@st.composite
def balanced(draw: Any) -> tuple[np.ndarray, int, int, int, int | None]:
    per_class = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(per_class, 12), min_size=1, max_size=9))
    classes = draw(st.integers(1, len(sizes)))
    seed = draw(st.integers(0, 1000))
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 2, sizes))
    # Enough for every class to come up, so that an epoch is what counts are even over.
    fewest = -(-len(sizes) // classes)
    steps = draw(st.one_of(st.none(), st.integers(fewest, fewest + 9)))
    return labels, classes, per_class, seed, steps


def spread(counts: np.ndarray) -> int:
    return int(counts.max() - counts.min())


@given(balanced())
def test_batches_are_balanced_and_counts_even(case: Any) -> None:
    labels, classes, per_class, seed, steps = case
    sampler = ClassBalancedSampler(labels, classes, per_class, seed, steps)
    batch = classes * per_class
    assert sampler.steps_per_epoch == (steps or -(-labels.size // batch))
    names = np.unique(labels)
    total = np.zeros(labels.size, int)
    for epoch in range(EPOCHS):
        counts = np.zeros(labels.size, int)
        for step in range(sampler.steps_per_epoch):
            positions = sampler.batch(epoch * sampler.steps_per_epoch + step)
            assert positions.shape == (batch,)
            assert np.unique(positions).size == batch
            groups = labels[positions].reshape(classes, per_class)
            assert (groups == groups[:, :1]).all()  # a class side by side
            assert np.unique(groups[:, 0]).size == classes
            counts[positions] += 1
        total += counts
        for seen in (counts, total):  # over this epoch, and over all until now
            assert spread(np.array([seen[labels == name].sum() for name in names])) <= per_class
            assert max(spread(seen[labels == name]) for name in names) <= 1


@given(balanced(), st.integers(0, 10**6))
def test_a_batch_depends_on_seed_and_step_only(case: Any, step: int) -> None:
    labels, classes, per_class, seed, steps = case
    fresh = ClassBalancedSampler(labels, classes, per_class, seed, steps)
    used = ClassBalancedSampler(labels, classes, per_class, seed, steps)
    for other in (0, step + 1, max(0, step - 1), 3):
        used.batch(other)
    np.testing.assert_array_equal(fresh.batch(step), used.batch(step))


def test_equal_classes_whose_size_fits_show_every_item_once_an_epoch() -> None:
    labels = np.repeat(np.arange(8), 12)
    sampler = ClassBalancedSampler(labels, 4, 3, seed=5)
    for epoch in range(3):
        seen = [sampler.batch(epoch * 8 + step) for step in range(8)]
        assert np.sort(np.concatenate(seen)).tolist() == list(range(96))


def test_the_papers_batches_over_many_epochs() -> None:
    labels = np.repeat(np.arange(100), 45)
    sampler = ClassBalancedSampler(labels, 64, 2, seed=0)
    counts = np.zeros(labels.size, int)
    for step in range(20 * sampler.steps_per_epoch):
        counts[sampler.batch(step)] += 1
    assert spread(counts) <= 2


def test_seeds_and_epochs_differ_and_pairs_of_classes_mix() -> None:
    labels = np.repeat(np.arange(10), 6)
    first, second = (ClassBalancedSampler(labels, 3, 2, seed) for seed in (0, 1))
    assert not np.array_equal(first.batch(0), second.batch(0))
    assert not np.array_equal(first.batch(0), first.batch(first.steps_per_epoch))
    met = np.zeros((10, 10), int)
    together = np.zeros((60, 60), int)
    for step in range(600):
        positions = first.batch(step)
        classes = labels[positions][::2]
        met[np.ix_(classes, classes)] += 1
        together[np.ix_(positions, positions)] += 1
    away = met[~np.eye(10, dtype=bool)]  # 600 · 3 · 2 / 90 = 40 expected
    assert away.min() > 15
    assert away.max() < 80
    assert (together[:6, :6] > 0).all()


def test_short_epochs_even_out_over_as_many_as_it_takes() -> None:
    labels = np.repeat(np.arange(10), 4)
    sampler = ClassBalancedSampler(labels, 2, 2, seed=0, steps_per_epoch=2)  # 4 of 10 classes
    met = np.zeros((10, 10), int)
    for start in range(0, 600, 6):  # three epochs, 12 classes
        batches = [sampler.batch(start + step) for step in range(6)]
        counts = np.bincount(labels[np.concatenate(batches)], minlength=10) // 2
        assert counts.sum() == 12
        assert spread(counts) <= 1
        for batch in batches:
            met[np.ix_(labels[batch], labels[batch])] += 1
    assert met.min() > 0  # every class meets every other


def test_a_returned_batch_can_be_changed() -> None:
    sampler = ClassBalancedSampler([0, 0, 1, 1], 2, 2, 0)
    first = sampler.batch(0)
    kept = first.copy()
    first[:] = -1
    np.testing.assert_array_equal(sampler.batch(0), kept)


@given(balanced(), st.integers(1, 6))
def test_ranks_share_the_global_batch(case: Any, world: int) -> None:
    labels, classes, per_class, seed, steps = case
    assume(classes * per_class % world == 0)
    sampler = ClassBalancedSampler(labels, classes, per_class, seed, steps)
    whole = sampler.batch(7)
    parts = [sampler.share(whole, rank, world) for rank in range(world)]
    assert len({part.size for part in parts}) == 1
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    if classes % world == 0:  # no class is split
        found = [set(labels[part]) for part in parts]
        assert sum(len(some) for some in found) == classes


def test_sharing_must_be_even() -> None:
    with pytest.raises(InputError, match="a batch of 6 cannot be shared by 4"):
        share(np.arange(6), 0, 4)
    with pytest.raises(InputError, match="rank is 2 of 2"):
        share(np.arange(6), 2, 2)


def test_what_cannot_be_sampled_is_told() -> None:
    labels = [0, 0, 7, 1, 1]
    with pytest.raises(InputError, match="class 7 is a class with a single item"):
        ClassBalancedSampler(labels, 2, 2, 0)
    with pytest.raises(InputError, match=r"class 0 is a class with 2 items.*items_per_class is 3"):
        ClassBalancedSampler([0, 0, 1, 1, 1], 2, 3, 0)
    with pytest.raises(InputError, match="classes_per_batch is 4, but there are 3 classes"):
        ClassBalancedSampler(labels, 4, 1, 0)
    for arguments in ([], 1, 1, 0), ([0.5], 1, 1, 0), ([0], 0, 1, 0), ([0], 1, 1, -1):
        with pytest.raises(InputError):
            ClassBalancedSampler(*arguments)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="step is -1"):
        ClassBalancedSampler([0, 0], 1, 2, 0).batch(-1)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 100))
def test_disjoint_pairs_come_up_once_an_epoch(count: int, size: int, seed: int) -> None:
    assume(size <= count)
    items = np.random.default_rng(seed).permutation(3 * count)[: 2 * count]
    pairs = items.reshape(count, 2)
    known = {tuple(pair) for pair in pairs}
    sampler = PairSampler(pairs, size, seed)
    for epoch in range(3):
        seen: dict[Any, int] = dict.fromkeys(known, 0)
        for step in range(sampler.steps_per_epoch):
            positions, labels = sampler.batch(epoch * sampler.steps_per_epoch + step)
            assert labels.tolist() == [place // 2 for place in range(2 * size)]
            for pair in positions.reshape(-1, 2):
                seen[tuple(pair)] += 1
        assert min(seen.values()) == 1
        assert max(seen.values()) <= 2
        assert sum(seen.values()) == sampler.steps_per_epoch * size


@given(st.data(), st.integers(0, 100))
def test_no_item_is_in_two_pairs_of_a_batch(data: st.DataObject, seed: int) -> None:
    items = st.integers(0, 9)
    drawn = data.draw(st.lists(st.tuples(items, items), min_size=1, max_size=30))
    pairs = [pair for pair in drawn if pair[0] != pair[1]]
    assume(pairs)
    size = data.draw(st.integers(1, 5))
    try:
        sampler = PairSampler(np.array(pairs), size, seed)
    except InputError:
        return  # too few that share no item
    for step in range(3 * sampler.steps_per_epoch):
        positions, _ = sampler.batch(step)
        assert np.unique(positions).size == 2 * size
        assert all(tuple(pair) in pairs for pair in positions.reshape(-1, 2).tolist())
        again = PairSampler(np.array(pairs), size, seed).batch(step)[0]
        np.testing.assert_array_equal(positions, again)


def test_a_clashing_pair_waits_for_a_later_batch() -> None:
    # A path: each pair shares an item with the next, yet all come up in an epoch or soon after.
    pairs = np.stack([np.arange(40), np.arange(40) + 1], axis=1)
    sampler = PairSampler(pairs, 4, seed=3)
    seen = np.zeros(40, int)
    for step in range(5 * sampler.steps_per_epoch):
        positions, _ = sampler.batch(step)
        assert np.unique(positions).size == 8
        seen[positions[::2]] += 1
    assert seen.min() >= 4
    assert seen.max() <= 6


def test_where_chance_fails_a_known_choice_steps_in() -> None:
    # Two pairs fit only as (0, 1) with (2, 3): greedy choices of others leave no partner.
    pairs = np.array([[0, 1], [2, 3], *([[0, 2]] * 20)])
    sampler = PairSampler(pairs, 2, seed=0)
    for step in range(50):
        assert set(sampler.batch(step)[0]) == {0, 1, 2, 3}


def test_pairs_that_cannot_be_sampled() -> None:
    star = np.array([[0, item] for item in range(1, 9)])
    with pytest.raises(InputError, match="of the 8 pairs only 1 were found that share no item"):
        PairSampler(star, 2, 0)
    with pytest.raises(InputError, match="pair 1 is item 4 with itself"):
        PairSampler([[0, 1], [4, 4]], 1, 0)
    for pairs in ([], [[0, 1, 2]], [[0.5, 1]], [[-1, 1]]):
        with pytest.raises(InputError, match="pairs have"):
            PairSampler(pairs, 1, 0)  # type: ignore[arg-type]
