"""What can be encoded: every form of the same items gives the same batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from flowhash.data.item_sources import ArrayItems
from flowhash.data.labelled_data import LabelledItems
from flowhash.encoder.item_batches import count_of, in_batches
from flowhash.errors import DamagedFileError, InputError, StorageError
from flowhash.progress_bars import shown
from tests.encoder.encoders import DIM, make

SIZE = (6, 5)
IMAGES = np.random.default_rng(1).integers(0, 256, (7, *SIZE, 3), dtype=np.uint8)
VECTORS = np.random.default_rng(2).normal(size=(7, 4)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0])


def batches(items: Any, batch_size: int = 3, size: Any = None, dim: Any = None) -> list[Any]:
    return list(in_batches(items, batch_size, size, dim)[0])


class Frame:
    """As much of a data frame as matters."""

    ndim = 2

    def __len__(self) -> int:
        return len(VECTORS)

    def __iter__(self) -> Iterator[str]:
        return iter("abcd")  # the columns, as pandas has it

    def to_numpy(self) -> NDArray[Any]:
        return VECTORS


def forms_of(array: NDArray[Any]) -> dict[str, Any]:
    """The same seven items in many forms."""
    tensor = torch.from_numpy(array)
    labels = torch.from_numpy(LABELS)
    return {
        "array": array,
        "tensor": tensor,
        "not contiguous": np.asfortranarray(array),
        "items": ArrayItems(array),
        "labelled items": LabelledItems(ArrayItems(array), LABELS, ("a", "b", "c"), "here"),
        "list of single ones": list(array),
        "generator of single ones": (item for item in array),
        "single ones with labels": list(zip(array, LABELS.tolist(), strict=True)),
        "single tensors with labels": TensorDataset(tensor, labels),
        "generator of batches": (array[start : start + 2] for start in range(0, 7, 2)),
        "large batches": [array[:6], array[6:]],
        "batches and single ones": [array[:2], array[2], array[3], array[4:]],
        "empty batches": [array[:0], array, array[:0]],
        "loader": DataLoader(tensor, batch_size=2),  # type: ignore[arg-type]
        "loader with labels": DataLoader(TensorDataset(tensor, labels), batch_size=4),
        "pairs of batches": [(array[:2], LABELS[:2]), (array[2:], LABELS[2:])],
        "lists of numbers": array.tolist() if array.ndim == 2 else array,
        "float64": array.astype(np.float64) if array.ndim == 2 else array,
    }


@pytest.mark.parametrize("form", forms_of(IMAGES))
def test_images_in_any_form(form: str) -> None:
    found = batches(forms_of(IMAGES)[form], size=SIZE)
    assert all(batch.dtype == np.uint8 and 1 <= len(batch) <= 3 for batch in found)
    np.testing.assert_array_equal(np.concatenate(found), IMAGES)


@pytest.mark.parametrize("form", forms_of(VECTORS))
@pytest.mark.parametrize("dim", [4, None])
def test_vectors_in_any_form(form: str, dim: int | None) -> None:
    found = batches(forms_of(VECTORS)[form], dim=dim)
    assert all(batch.dtype == np.float32 and 1 <= len(batch) <= 3 for batch in found)
    np.testing.assert_array_equal(np.concatenate(found), VECTORS)


def test_two_vectors_are_no_pair_of_item_and_label() -> None:
    two = VECTORS[:2]
    for items in ([list(two)], [tuple(two)], [two.tolist()], [list(torch.from_numpy(two))]):
        np.testing.assert_array_equal(np.concatenate(batches(items, dim=4)), two)
    short = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)  # two numbers each
    np.testing.assert_array_equal(np.concatenate(batches(list(short), dim=2)), short)
    np.testing.assert_array_equal(np.concatenate(batches([(1.0, 2.0), (3, 4)], dim=2)), short)


def test_other_vectors(tmp_path: Path) -> None:
    np.testing.assert_array_equal(np.concatenate(batches(Frame(), dim=4)), VECTORS)
    np.save(tmp_path / "vectors.npy", VECTORS)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    np.testing.assert_array_equal(np.concatenate(batches(mapped, dim=4)), VECTORS)
    whole = torch.arange(8).reshape(2, 4)
    for kind in (torch.int64, torch.float16, torch.bfloat16, torch.uint8):
        assert batches(whole.to(kind), dim=4)[0].tolist() == whole.tolist()
    learned = torch.from_numpy(VECTORS).requires_grad_()
    np.testing.assert_array_equal(np.concatenate(batches(learned, dim=4)), VECTORS)


def test_images_with_colours_in_front_are_turned() -> None:
    turned = torch.from_numpy(IMAGES).permute(0, 3, 1, 2)
    loader: Any = DataLoader(turned, batch_size=2)  # type: ignore[arg-type]
    for items in (turned, list(turned), loader):
        np.testing.assert_array_equal(np.concatenate(batches(items, size=SIZE)), IMAGES)
    # Three by three pixels: nothing tells the axes apart, so they stay.
    small = np.random.default_rng(0).integers(0, 256, (2, 3, 3, 3), dtype=np.uint8)
    np.testing.assert_array_equal(np.concatenate(batches(small, size=(3, 3))), small)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    made = [tmp_path / f"{number}.png" for number in range(len(IMAGES))]
    for path, image in zip(made, IMAGES, strict=True):
        Image.fromarray(image).save(path)
    return made


def test_pictures_in_any_form(paths: list[Path]) -> None:
    opened = [Image.open(path) for path in paths]
    labels = LABELS.tolist()
    forms: list[Any] = [
        paths, tuple(paths), [str(path) for path in paths], iter(paths), opened, iter(opened),
        np.array([str(path) for path in paths]), np.array(paths, object),
        [paths[:2], paths[2:]], [(paths[:2], labels[:2]), (opened[2:], labels[2:])],
        zip(paths, labels, strict=True), zip(opened, labels, strict=True),
        [(paths[0], paths[1]), *paths[2:]],
    ]  # fmt: skip
    for form in forms:
        np.testing.assert_array_equal(np.concatenate(batches(form, size=SIZE)), IMAGES)


def test_a_picture_that_cannot_be_read_is_named(paths: list[Path]) -> None:
    paths[4].write_bytes(b"no picture")
    with pytest.raises(DamagedFileError, match=r"4\.png"):
        batches(paths, size=SIZE)
    paths[4].unlink()
    with pytest.raises(StorageError, match=r"4\.png"):
        batches(paths, size=SIZE)


def test_items_are_asked_for_batch_by_batch() -> None:
    asked: list[int] = []

    def endless() -> Iterator[NDArray[Any]]:
        number = 0
        while True:
            asked.append(number)
            yield VECTORS[number % 7]
            number += 1

    made, total = in_batches(endless(), 3, None, 4)
    assert (asked, total) == ([], None)
    next(made)
    assert len(asked) == 3
    next(made)
    assert len(asked) == 6


class Counted(ArrayItems):
    """Items that remember what was taken."""

    def __init__(self, array: NDArray[Any]) -> None:
        super().__init__(array)
        self.taken: list[int] = []

    def take(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        self.taken += positions.tolist()
        return super().take(positions)


def test_stores_are_read_batch_by_batch() -> None:
    store = Counted(VECTORS)
    made, total = in_batches(store, 3, None, 4)
    assert (store.taken, total) == ([], 7)
    next(made)
    assert store.taken == [0, 1, 2]
    assert len(list(made)) == 2
    assert store.taken == list(range(7))


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, True, "many"])
def test_a_batch_has_at_least_one_item(batch_size: Any) -> None:
    with pytest.raises(InputError, match=r"batch_size is .*; expected a whole number from 1"):
        in_batches(VECTORS, batch_size, None)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (IMAGES / 255, "images of float64; expected uint8.* leave out ToTensor"),
        (torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float(), "images of float32"),
        (IMAGES[:, :4], r"shape \(3, 4, 5, 3\) and dtype uint8; expected .*\[n, 6, 5, 3\]. Resize"),
        (IMAGES[..., :1], r"shape \(3, 6, 5, 1\)"),
        (IMAGES.astype(np.int64), "dtype int64; expected images uint8"),
        (IMAGES[0], r"items has shape \(6, 5, 3\); expected images .* items\[None\]"),
        (VECTORS, r"items has shape \(7, 4\); expected images"),
        ([VECTORS], r"shape \(3, 4\)"),
        ([IMAGES[0], IMAGES[1, :4]], r"shapes \[\(4, 5, 3\), \(6, 5, 3\)\]; expected all of one"),
        ("some.png", r"items is 'some.png'; .* \[picture\].*open_data"),
        (Path("folder"), "items is 'folder'"),
        (b"bytes", "for one picture pass a list"),
        (Image.new("RGB", (5, 6)), "for one picture pass a list"),
        (3, "items is a int; expected an array"),
        (None, "items is None"),
        ([3, 4], "items yields 3; expected pictures"),
        ([{"image": IMAGES[0]}], "items yields a dict with 'image'; .* Take out the entry"),
        (["absent.png", IMAGES[0]], "some items are pictures and others are not"),
    ],
)
def test_what_is_no_image_is_refused(items: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        batches(items, size=SIZE)


NOT_A_NUMBER = VECTORS.copy()
NOT_A_NUMBER[5, 2] = np.nan
HUGE = VECTORS.astype(np.float64)
HUGE[6, 1] = -1e300


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (
            VECTORS[:, :3],
            r"shape \(3, 3\) and dtype float32; expected vectors \[n, 4\], which this .* fit anew",
        ),
        (VECTORS[0], r"items has shape \(4,\); expected vectors .* items\[None\]"),
        (np.float32(3), "items has shape|items is a float32"),
        (np.array(3.0), "items has shape"),
        (IMAGES, r"items has shape \(7, 6, 5, 3\); expected vectors"),
        (["picture.png"], "items are pictures, but this encoder takes vectors"),
        ([[1, 2, 3, 4], [1, 2, 3]], r"shapes \[\(3,\), \(4,\)\]; expected all of one"),
        ([[[1, 2, 3, 4], [1, 2, 3]]], "lists of unequal lengths"),
        (VECTORS.astype(complex), "dtype complex128"),
        (NOT_A_NUMBER, "item 5 holds nan; expected finite numbers"),
        (iter(NOT_A_NUMBER), "item 5 holds nan"),
        (HUGE, "item 6 holds -1e.300; expected finite numbers of float32"),
    ],
)
def test_what_is_no_vector_is_refused(items: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        batches(items, dim=4)


def test_how_many_there_are() -> None:
    loader = DataLoader(TensorDataset(torch.from_numpy(VECTORS)), batch_size=2)
    assert [count_of(items) for items in (VECTORS, ArrayItems(VECTORS), ["a.png"], [])] == [
        7,
        7,
        1,
        0,
    ]
    assert [count_of(items) for items in (iter(VECTORS), loader, [VECTORS], np.array(1))] == [
        None
    ] * 4
    assert in_batches(loader, 2, None)[1] == 7  # good enough for a bar
    assert batches([]) == []
    assert batches(iter([])) == []


def test_the_bar_shows_count_rate_and_time_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(shown(iter(["ab", "c"]), "encode", 3, True)) == ["ab", "c"]
    assert capsys.readouterr().err == ""  # no terminal, no bar
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for total in (3, None):
        assert list(shown(iter(["ab", "c"]), "encode", total, True)) == ["ab", "c"]
        bar = capsys.readouterr().err
        assert "encode" in bar
        assert f"3/{3 if total else '?'}" in bar
        assert "/s" in bar
        assert (":" in bar.rsplit("/s", 1)[1]) == (total is not None)


@pytest.mark.parametrize("large", [1e19, 3e38])
def test_a_vector_too_long_for_products_is_refused(large: float) -> None:
    vectors = np.zeros((3, DIM), np.float32)
    vectors[2] = large
    with pytest.raises(InputError, match="vector 2 of a batch has length"):
        make("mlp").encode(vectors)
