"""Learning: what comes out, what is refused, small data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.sparse import csr_matrix
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from flowhash.errors import InputError
from flowhash.estimator import FlowHasher
from flowhash.quality import search_quality
from tests.estimator.clouds import clouds, quick


def test_learns_buckets_that_follow_the_classes() -> None:
    rng = np.random.default_rng(0)
    rows, labels = clouds(1200, 10, 12, spread=1.2)
    rows = np.hstack((rows, 4 * rng.normal(size=(1200, 10))))  # half of the numbers mean nothing
    hasher = FlowHasher(32, n_neighbors=8, random_state=0).fit(rows[:1000], labels[:1000])
    brute = NearestNeighbors(n_neighbors=8).fit(rows[:1000]).kneighbors(rows[1000:])[1]
    exhaustive = (labels[brute] == labels[1000:, None]).mean()
    assert hasher.score(rows[1000:], labels[1000:]) > exhaustive + 0.2
    assert 1000 / hasher.search(rows[1000:]).scanned.mean() > 8


def test_score_is_the_share_of_right_neighbours() -> None:
    rows, labels = clouds(150, spread=2.0)
    hasher = quick(n_neighbors=6).fit(rows[:100], labels[:100])
    ids = hasher.kneighbors(rows[100:], return_distance=False)
    right = [labels[i] == labels[100 + q] for q, row in enumerate(ids) for i in row]
    assert hasher.score(rows[100:], labels[100:]) == pytest.approx(np.mean(right))
    assert 0 < np.mean(right) < 1
    with pytest.warns(UserWarning, match="did not see"):
        assert hasher.score(rows[100:], np.full(50, 99)) == 0
    hasher.add(rows[100:])  # whose labels are not known are nobody's right neighbours
    with pytest.warns(UserWarning, match="did not see"):
        assert hasher.score(rows[100:], np.full(50, 99)) == 0


@settings(max_examples=20, deadline=None)
@given(
    items=st.integers(2, 40),
    features=st.integers(1, 12),
    classes=st.integers(2, 8),
    buckets=st.integers(1, 20),
    active=st.integers(1, 5),
    loss=st.sampled_from(["codes", "triplet", "npairs", "contrastive"]),
    hidden=st.sampled_from([(), (4,)]),
    seed=st.integers(0, 100),
)
def test_any_shape_gives_codes(
    items: int, features: int, classes: int, buckets: int, active: int, loss: str,
    hidden: tuple[int, ...], seed: int,
) -> None:  # fmt: skip
    rows, labels = clouds(items, features, min(classes, items), seed)
    active = min(active, buckets)
    hasher = quick(buckets=buckets, active=active, loss=loss, hidden=hidden, steps=2)
    codes = hasher.fit(rows, labels).transform(rows)
    assert isinstance(codes, csr_matrix)
    assert codes.shape == (items, buckets)
    assert codes.dtype == np.float32
    assert codes.has_canonical_format
    assert (codes.toarray().sum(axis=1) == active).all()
    assert set(codes.data) == {1.0}
    largest = np.sort(
        np.argsort(-hasher.encoder_.encode(rows).activations, kind="stable")[:, :active]
    )
    np.testing.assert_array_equal(codes.indices.reshape(items, active), largest)
    assert len(hasher.get_feature_names_out()) == buckets


@pytest.mark.parametrize("seed", [3, np.int64(3), "generator"])
def test_the_same_seed_gives_the_same(seed: Any) -> None:
    rows, labels = clouds()

    def fit() -> FlowHasher:
        state = np.random.RandomState(3) if seed == "generator" else seed
        return quick(random_state=state).fit(rows, labels)

    one, other = fit(), fit()
    assert one.encoder_.fingerprint == other.encoder_.fingerprint
    assert quick(random_state=4).fit(rows, labels).encoder_.fingerprint != one.encoder_.fingerprint
    if seed != "generator":
        assert one.fit(rows, labels).encoder_.fingerprint == other.encoder_.fingerprint


def test_leaves_the_data_and_the_random_numbers_alone() -> None:
    import torch

    rows, labels = clouds()
    before, threads = rows.copy(), torch.get_num_threads()
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    quick().fit(rows, labels)
    assert torch.rand(1) == expected
    assert torch.get_num_threads() == threads
    np.testing.assert_array_equal(rows, before)


def test_twenty_items_of_two_classes() -> None:
    rows, labels = clouds(20, 8, 2)
    hasher = FlowHasher(random_state=0).fit(rows, labels)
    assert hasher.encoder_.buckets == 2
    assert hasher.trials_ == []  # four items are too few to choose on
    assert hasher.score(rows, labels) > 0.9


@pytest.mark.filterwarnings("ignore:The number of unique classes")
def test_classes_with_a_single_item() -> None:
    rows, labels = clouds(30, 5, 3)
    labels[:4] = 10, 11, 12, 13
    hasher = quick().fit(rows, labels)
    assert hasher.classes_.tolist() == [0, 1, 2, 10, 11, 12, 13]
    assert quick().fit(rows, np.arange(30)).kneighbors(n_neighbors=2)[1].shape == (30, 2)


def test_rows_that_are_all_the_same() -> None:
    hasher = quick().fit(np.full((12, 4), 7.0), np.arange(12) % 3)
    assert (hasher.kneighbors(n_neighbors=2)[0] == 0).all()


@pytest.mark.parametrize("names", [["cat", "dog", "emu"], [True, False], [1.0, 2.0, 7.0]])
def test_labels_of_other_types(names: list[Any]) -> None:
    rows, labels = clouds(classes=len(names))
    named = np.array(names)[labels]
    hasher = quick().fit(rows, named)
    assert hasher.classes_.tolist() == sorted(names)
    assert hasher.encoder_.class_names == tuple(str(name) for name in np.unique(named))
    assert hasher.score(rows, named) == quick().fit(
        rows, np.unique(named, return_inverse=True)[1]
    ).score(rows, np.unique(named, return_inverse=True)[1])


def test_refuses_what_cannot_be_learned() -> None:
    rows, labels = clouds()
    with pytest.raises(ValueError, match="requires y to be passed, but the target y is None"):
        quick().fit(rows, labels).score(rows, None)
    with pytest.raises(InputError, match="one class only, 3"):
        quick().fit(rows, np.full(len(rows), 3))
    with pytest.raises(InputError, match="active is 9 and buckets is 8"):
        quick(active=9).fit(rows, labels)
    with pytest.raises(InputError, match=r"metric is 'dot' and rank is 'codes'"):
        quick(metric="dot", rank="codes").fit(rows, labels)
    with pytest.raises(ValueError, match="continuous"):
        quick().fit(rows, rows[:, 0])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        quick().fit(rows, labels[:-1])
    rows[3, 1] = 1e300
    with pytest.raises(
        InputError, match=r"X has 1e\+300 in row 3, column 1.* finite numbers of float32"
    ):
        quick().fit(rows, labels)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("buckets", 0), ("buckets", 2.5), ("buckets", 2**30 + 1), ("active", 0), ("penalty", -1),
        ("loss", "library"),
        ("steps", 0), ("steps", "many"), ("rank", "both"), ("metric", "manhattan"),
        ("n_neighbors", 0), ("output", "dense"), ("device", 3),
    ],
)  # fmt: skip
def test_parameters_are_checked_in_fit(name: str, value: Any) -> None:
    rows, labels = clouds()
    with pytest.raises(ValueError, match=f"'{name}' parameter of FlowHasher"):
        quick(**{name: value}).fit(rows, labels)


def test_shows_a_bar_only_if_asked(capfd: pytest.CaptureFixture[str]) -> None:
    rows, labels = clouds()
    quick().fit(rows, labels)
    assert capfd.readouterr() == ("", "")


def test_digits() -> None:
    rows, labels = load_digits(return_X_y=True)
    hasher = FlowHasher(32, random_state=0).fit(rows[:1200], labels[:1200])
    assert hasher.score(rows[1200:], labels[1200:]) > 0.9
    assert 1200 / hasher.search(rows[1200:]).scanned.mean() > 8


def test_groups_fill_every_bucket_and_scan_less() -> None:
    """Ten digits in 32 buckets, on items that were not learned from."""
    items, labels = load_digits(return_X_y=True)
    scanned, precision = {}, {}
    for name, options in (
        ("classes", {"groups": "classes", "hidden": ()}),
        ("groups", {"hidden": ()}),
        ("groups, deep", {"hidden": (64,)}),
    ):
        hasher = FlowHasher(32, random_state=0, **options).fit(items[:1200], labels[:1200])
        found = hasher.encoder_.encode(items[1200:].astype(np.float32))
        quality = search_quality(found.activations, found.embeddings, labels[1200:], 1)
        scanned[name], precision[name] = quality.speed_up, quality.precision[1]
        assert (np.unique(hasher.encoder_.encode(items.astype(np.float32)).codes).size > 30) == (
            name != "classes"
        )
    assert min(scanned["groups"], scanned["groups, deep"]) > 2 * scanned["classes"]
    assert precision["groups"] > 0.93
    assert precision["groups, deep"] > 0.85  # from a random start, in 200 steps


def test_what_is_left_open_is_chosen_on_held_out_items() -> None:
    """Spheres around each other: a layer that bends tells them apart, a plain one does not."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 3_000)
    rows = rng.normal(size=(3_000, 10))
    rows *= (2 + labels[:, None]) / np.linalg.norm(rows, axis=1, keepdims=True)
    rows += 0.2 * rng.normal(size=rows.shape)
    hasher = FlowHasher(random_state=0).fit(rows[:2_500], labels[:2_500])
    assert len(hasher.trials_) > 2
    assert hasher.trials_[-1]["hidden"] == [512]
    assert hasher.trials_[-1]["buckets"] == hasher.encoder_.buckets
    plain = FlowHasher(4, hidden=(), random_state=0).fit(rows[:2_500], labels[:2_500])
    assert plain.trials_ == []
    score = hasher.score(rows[2_500:], labels[2_500:])
    assert score > plain.score(rows[2_500:], labels[2_500:]) + 0.1
    assert len(FlowHasher(4, steps=5, random_state=0).fit(rows, labels).trials_) == 2  # of layers
    assert FlowHasher(loss="triplet", steps=5).fit(rows, labels).encoder_.buckets == 32


def test_new_classes_choose_on_classes_that_are_held_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows, labels = clouds(800, 4, 16, spread=0.3)
    rows = np.hstack((rows, 3 * rng.normal(size=(800, 9))))  # wide within every class
    hasher = quick(buckets=32, steps=60, new_classes=True).fit(rows, labels)
    tried = [(trial["rank"], trial["neighbours"]) for trial in hasher.trials_]
    assert sorted(tried) == [("input", 0.0), ("whitened", 0.0), ("whitened", 0.3)]
    assert tried[-1][0] == "whitened"
    assert len({trial["suf"] for trial in hasher.trials_}) == 1
    base, order = hasher.encoder_.base, hasher.encoder_.hash.order
    assert base is not None
    assert not base.passes_through
    assert order is not None
    assert order.weight == 0
    # Items of classes that it never saw are found by what it chose, better than by X itself.
    middles = 2 * rng.normal(size=(8, 4))
    other = np.arange(160) % 8
    new = np.hstack((middles[other] + 0.3 * rng.normal(size=(160, 4)), np.zeros((160, 9))))
    new[:, 4:] = 3 * rng.normal(size=(160, 9))
    every = np.concatenate((labels, 100 + other))
    hasher.add(new)
    ids = hasher.search(new, 2, probe=32).ids[:, 1]
    plain = NearestNeighbors(n_neighbors=2).fit(np.vstack((rows, new))).kneighbors(new)[1][:, 1]
    right, before = (float((every[each] == every[800:]).mean()) for each in (ids, plain))
    assert right > before + 0.1
    hasher.save(tmp_path / "kept")
    again = FlowHasher.load(tmp_path / "kept")
    assert again.new_classes
    assert again.trials_ == hasher.trials_


@pytest.mark.parametrize(
    ("parameters", "ranks"),
    [
        ({"rank": "whitened"}, {"whitened"}),
        ({"rank": "codes"}, {"codes"}),
        ({"metric": "ip"}, {"input"}),
        ({"metric": "cosine"}, {"input", "whitened"}),
    ],
)
def test_new_classes_keep_what_is_given(parameters: dict[str, str], ranks: set[str]) -> None:
    rows, labels = clouds(300, 4, 6)
    hasher = quick(new_classes=True, class_order=2.0, **parameters).fit(rows, labels)
    assert {trial["rank"] for trial in hasher.trials_} == ranks
    if (order := hasher.encoder_.hash.order) is not None:
        assert order.weight == 2
    assert hasher.kneighbors(rows[:3], 2)[1].shape == (3, 2)


def test_new_classes_are_refused_where_they_cannot_be_held_out() -> None:
    rows, labels = clouds(300, 4, 4)
    with pytest.raises(InputError, match="has 4 classes; expected 5 or more"):
        quick(new_classes=True).fit(rows, labels)
    with pytest.raises(InputError, match='expected the loss "codes"'):
        quick(new_classes=True, loss="triplet").fit(rows, labels)
