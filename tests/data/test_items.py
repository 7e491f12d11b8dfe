"""Stores, subsets and stratified splits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flowhash.data import LabelledItems, stratified
from flowhash.data.files.array_files import read_npy, release_pages
from flowhash.data.item_sources import ArrayItems, ChainedItems, PlanarImages
from flowhash.errors import InputError


def test_what_is_taken_is_a_copy(tmp_path: Path) -> None:
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "a.npy", vectors)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    for array in (vectors, mapped):
        taken = ArrayItems(array).take(np.array([0, 2]))
        assert type(taken) is np.ndarray
        taken[:] = -1
        np.testing.assert_array_equal(array, np.arange(12).reshape(4, 3))


def test_a_single_vector_is_no_array_of_items() -> None:
    with pytest.raises(InputError, match=r"shape \(6,\).*\[n, dim\]. Store a single vector as one"):
        ArrayItems(np.zeros(6, np.float32))


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((2, 3, 4), np.float32), r"store each as a row: array.reshape\(n, -1\)$"),
        (np.zeros((2, 3, 4, 3), np.float32), r"Store images as whole numbers from 0 to 255: .*"),
        (np.zeros((2, 4, 4, 3), np.int64), r"0 to 255: array.astype\(numpy.uint8\)$"),
        (np.full((2, 3), "a"), r"Store numbers, such as float32$"),
        (np.float32(3), r"Store a row for each item$"),
    ],
)
def test_what_to_store_instead_is_said(array: Any, said: str) -> None:
    with pytest.raises(InputError, match=r"vectors of numbers \[n, dim\]\. .*" + said):
        ArrayItems(array)


def test_planes_become_pixels() -> None:
    planes = np.random.default_rng(0).integers(0, 256, (5, 3 * 4 * 6), np.uint8)
    taken = PlanarImages(planes, 4, 6).take(np.array([3, 1]))
    for place, image in enumerate((3, 1)):
        for channel in range(3):
            for row in range(4):
                for column in range(6):
                    value = planes[image, channel * 24 + row * 6 + column]
                    assert taken[place, row, column, channel] == value


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.data())
def test_chained_stores_are_one(sizes: list[int], data: st.DataObject) -> None:
    if sum(sizes) == 0:
        sizes = [*sizes, 3]
    whole = np.arange(2 * sum(sizes), dtype=np.float32).reshape(-1, 2)
    parts = np.split(whole, np.cumsum(sizes)[:-1])
    chained = ChainedItems([ArrayItems(part) for part in parts])
    assert len(chained) == sum(sizes)
    wanted = data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=9))
    positions = np.asarray(wanted, np.int64)
    np.testing.assert_array_equal(chained.take(positions), whole[positions])


def test_a_subset_of_a_subset() -> None:
    vectors = np.arange(20, dtype=np.float32).reshape(10, 2)
    data = LabelledItems(ArrayItems(vectors), np.arange(10) % 3, ("a", "b", "c"), "here")
    part = data.subset(np.array([9, 7, 5, 3])).subset(np.array([2, 0]))
    np.testing.assert_array_equal(part.take(np.array([0, 1])), vectors[[5, 9]])
    assert part.labels.tolist() == [2, 0]
    assert (len(part), part.classes) == (2, 3)
    for positions in ([4], [-1], [0.5], [[0]]):
        with pytest.raises(InputError):
            part.take(np.array(positions))


def test_labels_must_fit() -> None:
    items = ArrayItems(np.zeros((3, 2)))
    with pytest.raises(InputError, match=r"file: 3 items, but labels of shape \(2,\)"):
        LabelledItems(items, np.zeros(2, int), ("a",), "file")
    with pytest.raises(InputError, match="file: labels go from 0 to 1, but there are 1"):
        LabelledItems(items, np.array([0, 1, 0]), ("a",), "file")
    with pytest.raises(InputError, match="file: labels have dtype float64"):
        LabelledItems(items, np.zeros(3), ("a",), "file")
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        ArrayItems(np.zeros(3))


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    validation=st.floats(0, 0.6),
    test=st.floats(0, 0.39),
    seed=st.integers(0, 1000),
)
def test_split(sizes: list[int], validation: float, test: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 3, sizes))
    parts = stratified(labels, validation, test, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(labels.size))
    again = stratified(labels, validation, test, seed)
    for part, other in zip(parts, again, strict=True):
        np.testing.assert_array_equal(part, other)
        assert (np.diff(part) > 0).all()
    for number, size in enumerate(sizes):
        train, held, tested = (int((labels[part] == 3 * number).sum()) for part in parts)
        assert train >= min(size, 2)
        wanted = int(np.floor(size * validation + 0.5))
        if validation > 0 and size >= 3:
            wanted = max(wanted, 1)
        assert held == max(0, min(wanted, size - 2))
        wanted = int(np.floor(size * test + 0.5))
        if test > 0 and size >= 4:
            wanted = max(wanted, 1)
        assert tested == max(0, min(wanted, size - 2 - held))


def test_splits_differ_by_seed_and_are_random() -> None:
    labels = np.repeat(np.arange(5), 20)
    held = [tuple(stratified(labels, 0.1, seed=seed)[1]) for seed in range(50)]
    assert len(set(held)) > 45
    counts = np.bincount(np.concatenate(held), minlength=100)
    assert counts.max() < 20  # of 50: five expected, no position is favoured


@pytest.mark.parametrize("shares", [(-0.1, 0), (1.0, 0), (0.5, 0.5), (float("nan"), 0)])
def test_bad_shares(shares: tuple[float, float]) -> None:
    with pytest.raises(InputError, match=r"validation is .* and test is"):
        stratified(np.zeros(5, int), *shares)


def resident(path: Path) -> int:
    """Bytes of a mapped file that count as memory of this process."""
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            here = line.endswith(str(path))
        elif here and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="asks Linux what is in memory")
def test_images_that_were_taken_do_not_stay_in_memory(tmp_path: Path) -> None:
    """A pass over mapped files leaves nothing of them, and a second one reads the same."""
    expected = np.random.default_rng(0).integers(0, 256, (2000, 3 * 16 * 16), np.uint8)
    np.save(tmp_path / "planes.npy", expected)
    planes = read_npy(tmp_path / "planes.npy")
    assert planes.sum() == expected.sum()
    assert resident(tmp_path / "planes.npy") > expected.nbytes / 2  # the test can tell
    images = PlanarImages(planes, 16, 16)
    for _ in range(2):
        found = images.take(np.arange(2000))
        assert resident(tmp_path / "planes.npy") < expected.nbytes / 100
        np.testing.assert_array_equal(found, expected.reshape(-1, 3, 16, 16).transpose(0, 2, 3, 1))


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_releasing_pages_loses_nothing(tmp_path: Path, mode: Any) -> None:
    """Changes in a private copy of a map are nowhere else."""
    np.save(tmp_path / "rows.npy", np.zeros((5000, 4)))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode=mode)
    expected = np.zeros((5000, 4))
    if mode != "r":
        mapped[7] = expected[7] = 3.0
    part = np.asarray(mapped)[5:]
    part.flags.writeable = False
    for array in (mapped, part, part.T, mapped[:0], np.zeros(3)):
        release_pages(array)
    np.testing.assert_array_equal(mapped, expected)
    np.testing.assert_array_equal(part, expected[5:])
