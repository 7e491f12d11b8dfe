"""Items that are known by pairs only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flowhash.data import open_pairs
from flowhash.errors import InputError


def groups_by_hand(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    """The smallest item that each item is connected to, by passing it on until nothing changes."""
    least = list(range(count))
    changed = True
    while changed:
        changed = False
        for one, other in pairs:
            low = min(least[one], least[other])
            changed |= least[one] != low or least[other] != low
            least[one] = least[other] = low
    return least


@given(st.data(), st.integers(6, 30), st.integers(0, 3))
def test_groups_are_held_out_whole(data: st.DataObject, count: int, seed: int) -> None:
    # A chain through neighbours of equal parity keeps two groups apart at least.
    places = st.integers(0, count - 3)
    pairs = [(place, place + 2) for place in data.draw(st.lists(places, min_size=2, max_size=20))]
    pairs += [(0, 2), (1, 3)]
    vectors = np.arange(count, dtype=np.float32)[:, None] + np.zeros(3, np.float32)
    splits, kept = open_pairs(vectors, np.array(pairs), validation=0.4, seed=seed)
    item_of = {
        name: part.take(np.arange(len(part)))[:, 0].astype(int).tolist()
        for name, part in (("train", splits.train), ("validation", splits.validation))
    }
    least = groups_by_hand(count, pairs)
    assert sorted(item_of["train"] + item_of["validation"]) == sorted({i for p in pairs for i in p})
    apart = {least[item] for item in item_of["train"]} & {least[i] for i in item_of["validation"]}
    assert not apart
    named = [tuple(item_of["train"][place] for place in pair) for pair in kept.tolist()]
    assert sorted(named) == sorted(pair for pair in pairs if pair[0] in item_of["train"])
    for part, items in (
        (splits.train, item_of["train"]),
        (splits.validation, item_of["validation"]),
    ):
        for one, first in enumerate(items):
            for other, second in enumerate(items):
                same = least[first] == least[second]
                assert (part.labels[one] == part.labels[other]) == same


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npy"
    np.save(path, np.random.default_rng(0).normal(size=(20, 4)))
    splits, pairs = open_pairs(path, np.arange(20).reshape(10, 2))
    assert (len(splits.train), len(splits.validation), len(pairs)) == (18, 2, 9)
    assert splits.test is None


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[0, 9]], "pairs name item 9, but items has 4"),
        ([[0, 1], [1, 2]], "make 1 group"),
        ([[0, 0]], "with itself"),
        ([0, 1], r"expected positions of items \[p, 2\]"),
    ],
)
def test_pairs_that_do_not_fit(pairs: list[object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_pairs(np.zeros((4, 2), np.float32), np.array(pairs))
