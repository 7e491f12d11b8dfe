"""FlowHasher without labels: a recall that is asked for, by brute force."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from flowhash import FlowHasher
from flowhash.encoder import Encoded, Encoder
from flowhash.errors import InputError
from flowhash.estimator import flow_hasher
from flowhash.table import Hits

METRICS = ("euclidean", "cosine", "inner")


def clouds(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Overlapping clouds, the same ones whatever the seed, away from zero."""
    middles = np.random.default_rng(7).normal(size=(60, 12))
    rng = np.random.default_rng(seed)
    rows = middles[rng.integers(0, 60, count)] + 0.6 * rng.normal(size=(count, 12)) + 0.5
    return rows.astype(np.float32)


def distances(
    metric: str, queries: NDArray[np.float32], items: NDArray[np.float32]
) -> NDArray[np.float64]:
    asked, rows = queries.astype(np.float64), items.astype(np.float64)
    if metric == "euclidean":
        return np.sqrt(np.square(asked[:, None] - rows[None]).sum(axis=2))
    if metric == "cosine":
        asked = asked / np.linalg.norm(asked, axis=1, keepdims=True)
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return 1 - asked @ rows.T
    return -asked @ rows.T


def recall(found: NDArray[np.int64], truth: NDArray[np.float64]) -> float:
    """The share of the nearest by brute force that was found."""
    best = np.argsort(truth, axis=1)[:, : found.shape[1]]
    return float((found[:, :, None] == best[:, None, :]).any(axis=1).mean())


@pytest.fixture(scope="module", params=METRICS)
def fitted(
    request: pytest.FixtureRequest,
) -> tuple[FlowHasher, NDArray[np.float64], NDArray[np.float32]]:
    items, queries = clouds(4_000), clouds(400, 1)
    hasher = FlowHasher(metric=request.param, n_neighbors=10, random_state=0).fit(items)
    return hasher, distances(request.param, queries, items), queries


def test_what_is_asked_for_is_found_with_a_part_of_the_items(
    fitted: tuple[FlowHasher, NDArray[np.float64], NDArray[np.float32]],
) -> None:
    hasher, truth, queries = fitted
    reached, scanned = {}, {}
    for wanted in (0.8, 0.95, 0.99):
        hits = hasher.search(queries, 10, recall=wanted)
        reached[wanted], scanned[wanted] = recall(hits.ids, truth), hits.scanned.mean() / 4_000
    assert reached[0.8] > 0.74
    assert reached[0.95] > 0.92
    assert reached[0.99] > 0.97
    assert scanned[0.8] < scanned[0.95] < scanned[0.99] < 0.5


def test_everything_is_found_where_everything_is_asked_for(
    fitted: tuple[FlowHasher, NDArray[np.float64], NDArray[np.float32]],
) -> None:
    hasher, truth, queries = fitted
    far, found = hasher.kneighbors(queries, recall=1.0)
    assert recall(found, truth) > 0.999  # but for float32 ties
    np.testing.assert_allclose(far, np.sort(truth, axis=1)[:, :10], rtol=2e-4, atol=2e-5)


def test_neighbours_have_the_usual_recall_without_being_asked(
    fitted: tuple[FlowHasher, NDArray[np.float64], NDArray[np.float32]],
) -> None:
    hasher, truth, queries = fitted
    assert recall(hasher.kneighbors(queries, return_distance=False), truth) > 0.92
    assert hasher.search(queries, 10, recall=0.95).recall == 0.95


def test_items_are_stored_once_whatever_buckets_they_are_in(
    fitted: tuple[FlowHasher, NDArray[np.float64], NDArray[np.float32]],
) -> None:
    hasher, _, queries = fitted
    found = hasher.search(queries, 4_000, recall=1.0).ids
    assert all(len(set(line)) == 4_000 for line in found[:20])


def test_files_and_pickles_answer_as_before(
    tmp_path: Path, fitted: tuple[FlowHasher, NDArray[np.float64], NDArray[np.float32]]
) -> None:
    hasher, _, queries = fitted
    hasher.save(tmp_path / "saved")
    for again in (FlowHasher.load(tmp_path / "saved"), pickle.loads(pickle.dumps(hasher))):
        for one, other in zip(hasher.kneighbors(queries), again.kneighbors(queries), strict=True):
            np.testing.assert_array_equal(one, other)
        assert again.trials_ == hasher.trials_
        assert not len(again.classes_)


def test_items_that_come_later_are_found_and_adapt_takes_them_in() -> None:
    items, later = clouds(2_000), clouds(1_500, 2) + 3
    hasher = FlowHasher(n_neighbors=10, random_state=0).fit(items)
    added = hasher.add(later)
    assert (added == np.arange(2_000, 3_500)).all()
    found = hasher.kneighbors(later[:200], n_neighbors=1, return_distance=False)
    # Nothing like them was there: before it adapts, the seed decides whether it is .6 or .95.
    assert (found[:, 0] == added[:200]).mean() > 0.5
    everything = np.concatenate((items, later))
    before = hasher.search(later[:300], 10, recall=0.95).scanned.mean()
    hasher.adapt()
    queries = clouds(300, 5) + 3
    hits = hasher.search(queries, 10, recall=0.95)
    assert recall(hits.ids, distances("euclidean", queries, everything)) > 0.91
    assert hits.scanned.mean() < before


def test_queries_that_look_different_are_learned_from() -> None:
    items, rng = clouds(3_000), np.random.default_rng(3)
    queries = (clouds(1_500, 4) + 1.5 * rng.normal(size=(1_500, 12))).astype(np.float32)
    asked, test = queries[:1_200], queries[1_200:]
    truth = distances("euclidean", test, items)
    plain = FlowHasher(n_neighbors=10, random_state=0).fit(items)
    told = FlowHasher(n_neighbors=10, random_state=0).fit(items, queries=asked)
    assert recall(plain.kneighbors(test, return_distance=False), truth) < 0.9
    assert recall(told.kneighbors(test, return_distance=False), truth) > 0.91


def test_mistakes_are_said_in_a_line() -> None:
    items = clouds(300)
    with pytest.raises(InputError, match="active is 2, and there are no labels"):
        FlowHasher(active=2).fit(items)
    with pytest.raises(InputError, match="queries came together with y"):
        FlowHasher().fit(items, np.arange(300) % 3, queries=items)
    hasher = FlowHasher(random_state=0).fit(items)
    with pytest.raises(InputError, match="predict wants labels"):
        hasher.predict(items)
    with pytest.raises(InputError, match="fitted without labels"):
        hasher.adapt(items)


def test_few_items_are_searched_whole() -> None:
    items = clouds(100)
    found = FlowHasher(n_neighbors=5).fit(items).kneighbors(items[:10], return_distance=False)
    assert recall(found, distances("euclidean", items[:10], items)) == 1


def seconds(hasher: FlowHasher, ids: NDArray[np.int64]) -> float:
    """The share of items with two buckets."""
    return float(np.mean([len(hasher.table_.buckets_of(int(item))) == 2 for item in ids]))


def test_items_that_come_later_get_second_buckets_by_the_same_rule() -> None:
    items, later, queries = clouds(8_000), clouds(1_000, 2), clouds(400, 1)
    hasher = FlowHasher(copies=0.2, n_neighbors=10, random_state=0).fit(items)
    assert seconds(hasher, np.arange(8_000)) == pytest.approx(0.2, abs=0.001)
    added = hasher.add(later)
    assert 0.1 < seconds(hasher, added) < 0.35
    hits = hasher.search(queries, 10, recall=0.95)
    truth = distances("euclidean", queries, np.concatenate((items, later)))
    assert recall(hits.ids, truth) > 0.93


@pytest.mark.parametrize("rank", ["input", "whitened"])
def test_labelled_items_get_second_buckets_where_copies_are_asked_for(rank: str) -> None:
    items, labels = clouds(3_000), np.random.default_rng(0).integers(0, 4, 3_000)
    queries = clouds(300, 1)
    options = {"buckets": 32, "hidden": (), "steps": 100, "rank": rank, "random_state": 0}
    hasher = FlowHasher(copies=0.3, n_neighbors=10, **options).fit(items, labels)
    assert 0.2 < seconds(hasher, np.arange(3_000)) <= 0.3
    plain = FlowHasher(n_neighbors=10, **options).fit(items, labels)
    assert plain.table_.active == 1
    first = [hasher.table_.buckets_of(item)[0] for item in range(3_000)]
    seen = [plain.table_.buckets_of(item)[0] for item in range(3_000)]
    assert np.mean(np.array(first) == seen) > 0.7  # codes are sorted, so that a second may be first
    everything = plain.search(queries, 10, recall=None, probe=32)
    hits = hasher.search(queries, 10, recall=0.9)
    assert (hits.ids[:, :, None] == everything.ids[:, None]).any(axis=1).mean() > 0.85
    for query, (ids, opened) in enumerate(zip(hits.ids[:20], hits.opened, strict=False)):
        made = hasher.encoder_.encode(queries[query : query + 1]).ordered_buckets()
        assert len(set(ids)) == 10
        assert opened <= made.shape[1]
    hasher.add(items[:50], labels[:50])
    hasher.adapt()
    assert hasher.table_.active == 2
    assert hasher.search(queries, 10, recall=0.9).recall == 0.9
    assert hasher.predict(queries).shape == (300,)


def test_copies_and_more_active_buckets_are_not_both_taken() -> None:
    with pytest.raises(InputError, match=r"copies is 0\.3 and active is 2"):
        FlowHasher(copies=0.3, active=2, buckets=8, hidden=(), steps=5).fit(
            clouds(300), np.arange(300) % 3
        )


def test_neighbours_of_all_items_and_of_many_queries_come_in_blocks(
    fitted: tuple[FlowHasher, NDArray[np.float64], NDArray[np.float32]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hasher, _, queries = fitted
    ways = {
        "items": lambda: hasher.search(n_neighbors=6, recall=0.9),
        "queries": lambda: hasher.search(queries, 6, recall=0.9, at_least=20),
        "probe": lambda: hasher.search(n_neighbors=6, probe=3, at_least=9),
    }
    whole = {name: way() for name, way in ways.items()}
    made = []
    encode = Encoder.encode_stored

    def counted(self: Encoder, rows: NDArray[np.float32], *more: str) -> Encoded:
        made.append(len(rows))
        return encode(self, rows, *more)

    monkeypatch.setattr(Encoder, "encode_stored", counted)
    monkeypatch.setattr(flow_hasher, "ACTIVATIONS_AT_ONCE", 300 * hasher.encoder_.buckets)
    for name, way in ways.items():
        for field in ("ids", "distances", "counts", "scanned", "opened"):
            np.testing.assert_array_equal(getattr(way(), field), getattr(whole[name], field))
    assert max(made) == 300
    found = hasher.search(n_neighbors=6, recall=0.9).ids
    assert (found != np.arange(4_000)[:, None]).all()


def test_few_items_have_one_bucket_that_reaches_any_recall() -> None:
    hasher = FlowHasher(random_state=0).fit(clouds(30))
    found = hasher.search(clouds(3, 1), 4, recall=0.99)
    assert (found.scanned == 30).all()
    assert recall(found.ids, distances("euclidean", clouds(3, 1), clouds(30))) == 1


def test_score_wants_a_fit_with_labels() -> None:
    hasher = FlowHasher(random_state=0).fit(clouds(300))
    for labels in ((), (None,), (np.zeros(3),)):
        with pytest.raises(InputError, match=r"fitted without; fit with labels, or see .*recall=1"):
            hasher.score(clouds(3), *labels)


@pytest.mark.parametrize("metric", METRICS)
def test_single_queries_find_what_they_find_together_in_many_threads(metric: str) -> None:
    hasher = FlowHasher(metric=metric, n_neighbors=10, random_state=0).fit(clouds(4_000))
    queries = clouds(200, 3)
    together = hasher.search(queries, recall=0.9)
    far, near = hasher.kneighbors(queries, recall=0.9)

    def ask(row: int) -> tuple[Hits, NDArray[np.float64], NDArray[np.int64]]:
        some = queries[row : row + 1]
        return hasher.search(some, recall=0.9), *hasher.kneighbors(some, recall=0.9)

    with ThreadPoolExecutor(8) as pool:
        for row, (hits, apart, ids) in enumerate(pool.map(ask, range(200))):
            # The last bits of activations may differ: hardly ever does a bucket more or less.
            assert abs(int(hits.opened[0]) - int(together.opened[row])) <= 1
            if hits.opened[0] == together.opened[row]:
                assert hits.ids[0].tolist() == together.ids[row].tolist()
                np.testing.assert_array_equal(hits.distances[0], together.distances[row])
                assert hits.scanned[0] == together.scanned[row]
            assert ids[0].tolist() == near[row].tolist()
            np.testing.assert_array_equal(apart[0], far[row])


def test_new_classes_without_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="new_classes is True, but there are no labels"):
        FlowHasher(new_classes=True).fit(np.zeros((300, 4), np.float32))
