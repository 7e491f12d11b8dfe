"""Buckets of vectors without labels, against loops over items, queries and buckets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from flowhash.errors import InputError
from flowhash.learn import fit_vectors, share_items, suit_router
from flowhash.learn.routing import fit_vectors as fit_module
from flowhash.learn.routing.fit_vectors import RECALLS, _Asked, _Lists, _parts, bucket_count
from flowhash.learn.routing.neighbour_graph import NEIGHBOURS, centre_scores, neighbour_graph
from flowhash.learn.routing.neighbour_router import (
    NeighbourRouter,
    bucket_worths,
    router_at_centres,
    train_router,
)
from flowhash.learn.routing.second_buckets import (
    CANDIDATES,
    LEAST_MISSED,
    LEAST_VOTE,
    SOFTNESS,
    opening_rates,
    second_buckets,
    second_of_new,
)


def clouds(count: int, dim: int = 8, middles: int = 12, seed: int = 0) -> NDArray[np.float32]:
    """Overlapping clouds, so that neighbours lie in several buckets."""
    rng = np.random.default_rng(seed)
    chosen = rng.normal(size=(middles, dim))[rng.integers(0, middles, count)]
    return (chosen + 0.6 * rng.normal(size=(count, dim))).astype(np.float32)


def a_router(buckets: int, dim: int, seed: int) -> NeighbourRouter:
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(buckets, dim)).astype(np.float32)
    return NeighbourRouter(weights, rng.normal(size=buckets).astype(np.float32))


@pytest.mark.parametrize("inner", [False, True])
def test_the_graph_of_everything_is_brute_force(inner: bool) -> None:
    rows, centres = clouds(300), clouds(7, seed=1)
    homes = centre_scores(rows, centres).argmax(axis=1).astype(np.int32)
    asked = np.arange(0, 300, 3)
    found = neighbour_graph(rows, homes, centres, rows[asked], asked, inner=inner, everything=True)
    wide = rows.astype(np.float64)
    near = -wide @ wide.T if inner else np.square(wide[:, None] - wide[None]).sum(axis=2)
    np.fill_diagonal(near, np.inf)
    for query, ids in zip(asked, found, strict=True):
        assert set(ids) == set(np.argsort(near[query], kind="stable")[:NEIGHBOURS])


def test_the_graph_of_queries_may_hold_the_item_itself_and_says_where_there_are_too_few() -> None:
    rows = clouds(6)
    homes = np.zeros(6, np.int32)
    found = neighbour_graph(rows, homes, rows[:1], rows, everything=True)
    assert (found[:, 0] == np.arange(6)).all()
    assert (found[:, 6:] == -1).all()
    own = neighbour_graph(rows, homes, rows[:1], rows, np.arange(6), everything=True)
    assert (own[:, 5:] == -1).all()
    assert not (own == np.arange(6)[:, None]).any()


def test_worth_is_probability_over_share() -> None:
    router, rows = a_router(5, 8, 0), clouds(20)
    loads = np.array([3, 0, 7, 1, 9])
    found = bucket_worths(router.activations(rows), loads)
    for query, row in enumerate(rows.astype(np.float64)):
        made = [float(row @ router.weights[b]) + float(router.biases[b]) for b in range(5)]
        total = np.log(sum(np.exp(value) for value in made))
        for bucket, value in enumerate(made):
            expected = value - total - np.log(loads[bucket] / 20) if loads[bucket] else -np.inf
            assert found[query, bucket] == pytest.approx(expected, abs=1e-4)


def likelihood(
    router: NeighbourRouter,
    rows: NDArray[np.float32],
    near: NDArray[np.int32],
    codes: NDArray[np.int32],
) -> float:
    """Mean log-probability that a neighbour is in an opened bucket, by loops."""
    values = []
    for row, items in zip(rows.astype(np.float64), near, strict=True):
        made = router.weights.astype(np.float64) @ row + router.biases
        likely = np.exp(made - made.max())
        likely /= likely.sum()
        values += [np.log(sum(likely[b] for b in codes[i] if b >= 0)) for i in items if i >= 0]
    return float(np.mean(values))


def test_training_makes_the_buckets_of_neighbours_likelier_also_where_items_have_two() -> None:
    rows, centres = clouds(600), clouds(10, seed=1)
    homes = centre_scores(rows, centres).argmax(axis=1).astype(np.int32)
    near = neighbour_graph(rows, homes, centres, rows, np.arange(600), everything=True)
    start = router_at_centres(centres, rows, near, homes)
    codes = np.stack((homes, np.where(np.arange(600) % 3, -1, (homes + 1) % 10)), 1).astype(
        np.int32
    )
    for buckets in (homes[:, None], codes):
        made = train_router(start, rows, near, buckets, steps=150)
        again = train_router(start, rows, near, buckets, steps=150)
        assert likelihood(made, rows, near, buckets) > likelihood(start, rows, near, buckets) + 0.02
        np.testing.assert_array_equal(made.weights, again.weights)


def test_the_start_is_as_sharp_as_makes_neighbours_likeliest() -> None:
    rows, centres = clouds(400), clouds(9, seed=1)
    homes = centre_scores(rows, centres).argmax(axis=1).astype(np.int32)
    near = neighbour_graph(rows, homes, centres, rows, np.arange(400), everything=True)
    start = router_at_centres(centres, rows, near, homes)
    best = likelihood(start, rows, near, homes[:, None])
    for factor in (0.5, 2.0):
        other = NeighbourRouter(factor * start.weights, factor * start.biases)
        assert likelihood(other, rows, near, homes[:, None]) < best


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 15), st.integers(2, 40))
def test_second_buckets_are_the_largest_gains_by_loops(seed: int, buckets: int, items: int) -> None:
    rng = np.random.default_rng(seed)
    rows, router = clouds(items, seed=seed), a_router(buckets, 8, seed)
    homes = rng.integers(0, buckets, items).astype(np.int32)
    near = rng.integers(-1, items, (items, 4)).astype(np.int32)
    threshold = float(rng.normal())
    found = second_buckets(router.activations, rows, near, homes, buckets, threshold)
    loads = np.bincount(homes, minlength=buckets)
    worth = bucket_worths(router.activations(rows), loads).astype(np.float64)
    chance = 1 / (1 + np.exp(-(worth - threshold) / SOFTNESS))
    gains = np.zeros((items, buckets))
    for query in range(items):
        voted = np.argsort(-worth[query], kind="stable")[:CANDIDATES]
        for item in near[query]:
            missed = 1 - chance[query, homes[item]]
            if item < 0 or missed <= LEAST_MISSED:
                continue
            for bucket in voted:
                vote = missed * chance[query, bucket]
                if bucket != homes[item] and vote > LEAST_VOTE:
                    gains[item, bucket] += vote
    gains /= np.sqrt(np.maximum(chance.mean(axis=0), 1e-9))
    assert found.gains == pytest.approx(gains.max(axis=1), rel=1e-3, abs=1e-4)
    for item in range(items):
        if found.buckets[item] < 0:
            assert gains[item].max() == pytest.approx(0, abs=0.05)
        else:
            assert found.buckets[item] != homes[item]
            assert gains[item, found.buckets[item]] == pytest.approx(gains[item].max(), rel=1e-3)
    codes = found.codes(homes, 0.5)
    assert (codes[:, 0] == homes).all()
    assert (codes[:, 1] >= 0).sum() <= items // 2


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9), st.booleans())
def test_what_a_trial_says_is_counted_right(seed: int, buckets: int, twice: bool) -> None:
    rng = np.random.default_rng(seed)
    items, asked = 60, 15
    codes = np.full((items, 2), -1, np.int32)
    codes[:, 0] = rng.integers(0, buckets, items)
    if twice:
        some = rng.random(items) < 0.4
        codes[some, 1] = (codes[some, 0] + rng.integers(1, buckets, some.sum())) % buckets
    near = np.stack([rng.permutation(items)[:5] for _ in range(asked)]).astype(np.int32)
    judge = _Asked(clouds(asked, seed=seed), near, items)
    router = a_router(buckets, 8, seed)
    found = judge.trial("it", router.activations, codes, buckets)
    loads = np.bincount(codes[codes >= 0], minlength=buckets)
    worth = bucket_worths(router.activations(judge.vectors), loads)
    for recall in RECALLS:
        threshold = judge.threshold(worth, codes, recall)
        opened = [set(np.flatnonzero(line >= threshold)) for line in worth]
        hit = [bool(opened[q] & set(codes[i])) for q in range(asked) for i in near[q]]
        assert np.mean(hit) >= recall
        scanned = [sum(bool(each & set(code)) for code in codes) for each in opened]
        assert found.scanned[recall] == pytest.approx(np.mean(scanned) / items)


def test_fewer_are_scanned_than_by_k_means_and_the_choice_is_the_cheapest_of_its_trials() -> None:
    _, found = fit_vectors(clouds(4_000, middles=40), 64, seed=1)
    assert found.trials[0].name.startswith("k-means")
    assert found.trials[-1].cost == min(trial.cost for trial in found.trials)
    assert found.trials[-1].cost < 0.9 * found.trials[0].cost
    assert len(found.held_out) == 500
    assert found.codes[:, 0].min() >= 0


def test_neighbours_are_looked_for_where_other_ones_are_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Searched in the buckets themselves, those that second buckets are for would be missing."""
    rows = clouds(6_000, dim=16, middles=1)  # where many neighbours are in far buckets
    votes: list[_Asked] = []
    used = fit_module._voted

    def voted(activations: Any, near: _Asked, *rest: Any) -> Any:
        votes.append(near)
        return used(activations, near, *rest)

    monkeypatch.setattr(fit_module, "_voted", voted)
    fit_vectors(rows, 256, copies=0.2)
    lists = _Lists.fitted(rows, 256, False, 0, False)
    learn = _parts(len(rows), 0)[0][::7]
    own = lists.ask(rows[learn], learn).neighbours
    true = lists.ask(rows[learn], learn, everything=True).neighbours
    missed = ~(true[:, :, None] == own[:, None]).any(axis=2)
    found = (true[:, :, None] == votes[0].neighbours[::7][:, None]).any(axis=2)
    assert missed.mean() > 0.02
    assert found[missed].mean() > 0.5


def test_a_router_between_two_says_what_lies_between() -> None:
    one, other, rows = a_router(5, 8, 0), a_router(5, 8, 1), clouds(20)
    for part in (0.0, 0.25, 1.0):
        expected = (1 - part) * one.activations(rows) + part * other.activations(rows)
        found = one.towards(other, part).activations(rows)
        assert found == pytest.approx(expected, abs=1e-5)


def test_copies_are_as_many_as_asked_for() -> None:
    rows = clouds(2_000, middles=20)
    assert fit_vectors(rows, 32, copies=0)[1].codes.shape == (2_000, 1)
    tried = {trial.name: trial.copies for trial in fit_vectors(rows, 32, copies=0.3)[1].trials}
    assert tried["second buckets for 30 % of the items"] == pytest.approx(0.3, abs=0.01)


def test_few_items_have_one_bucket() -> None:
    counted = [bucket_count(count) for count in (1, 999, 1_000, 10_000, 390_000)]
    assert counted == [1, 1, 64, 256, 1024]
    for count in (1, 2, 100):
        _, found = fit_vectors(clouds(count))
        assert (found.codes == 0).all()
        assert not found.trials


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 15), st.integers(1, 20))
def test_new_items_get_second_buckets_by_the_votes_of_their_neighbours(
    seed: int, buckets: int, items: int
) -> None:
    rng = np.random.default_rng(seed)
    activations = rng.normal(size=(8, buckets)).astype(np.float32)
    near = rng.integers(-1, 8, (items, 3))
    homes = rng.integers(0, buckets, items).astype(np.int32)
    loads = rng.integers(0, 9, buckets)
    threshold, least = float(rng.normal()), float(rng.uniform(0, 2))
    worth = bucket_worths(activations, loads)
    rates = opening_rates(worth, threshold)
    found = second_of_new(worth, near, homes, threshold, rates).codes_from(homes, least)
    worth = worth.astype(np.float64)
    chance = 1 / (1 + np.exp(-(worth - threshold) / SOFTNESS))
    price = np.sqrt(np.maximum(chance.mean(axis=0), 1e-9))
    for item in range(items):
        gains = np.zeros(buckets)
        for voter in near[item]:
            missed = 1 - chance[voter, homes[item]]
            if voter < 0 or missed <= LEAST_MISSED:
                continue
            for bucket in np.argsort(-worth[voter], kind="stable")[:CANDIDATES]:
                vote = missed * chance[voter, bucket]
                if bucket != homes[item] and vote > LEAST_VOTE:
                    gains[bucket] += vote / price[bucket]
        assert found[item, 0] == homes[item]
        best = gains.max()
        if abs(best - least) > 1e-3:
            assert (found[item, 1] >= 0) == (best >= least)
        if found[item, 1] >= 0:
            assert gains[found[item, 1]] == pytest.approx(best, rel=1e-3)


def test_second_buckets_beside_learned_ones_scan_less_and_stay_where_they_are() -> None:
    rows = clouds(4_000, middles=40)
    centres = clouds(48, middles=40, seed=3)

    def activations(some: NDArray[np.float32]) -> NDArray[np.float32]:
        return 0.1 * centre_scores(some, centres)  # far from as sharp as they should be

    homes = centre_scores(rows, centres).argmax(axis=1).astype(np.int32)
    found = share_items(rows, homes, 48, activations, seed=1)
    assert (found.codes[:, 0] == homes).all()
    assert found.trials[0].name == "learned buckets and a threshold"
    assert found.trials[-1].copies > 0.1
    assert found.trials[-1].cost < 0.97 * found.trials[0].cost
    assert found.rule is not None
    assert found.rule.sharpness > 1
    alone = share_items(rows, homes, 48, activations, copies=0.1, seed=1)
    assert 0.05 < (alone.codes[:, 1] >= 0).mean() <= 0.1


@pytest.mark.parametrize(
    ("items", "buckets", "enough"),
    [(249, 2, False), (250, 2, True), (299, 150, False), (300, 150, True), (20, 1, True)],
)
def test_it_is_known_before_whether_items_are_enough(
    items: int, buckets: int, enough: bool
) -> None:
    vectors = np.random.default_rng(0).normal(size=(items, 3)).astype(np.float32)
    assert suit_router(items, buckets) == enough
    if enough:
        fit_vectors(vectors, buckets, copies=0)
        return
    with pytest.raises(InputError, match=r"expected (250 or more|2 items a bucket)"):
        fit_vectors(vectors, buckets, copies=0)
