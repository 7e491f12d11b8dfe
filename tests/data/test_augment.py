"""Augmentation and preprocessing against loops that are written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flowhash.data import Augmentation, LabelledItems, Preprocessing
from flowhash.data.item_sources import ArrayItems
from flowhash.errors import InputError


def naive(values: Any, draws: Any, pad: int, side: int) -> Any:
    """Pad, crop, flip, cut: [n, height, width, 3] of any type."""
    count, height, width, _ = values.shape
    out = np.zeros_like(values)
    for image in range(count):
        top, left, flip, middle_row, middle_column = (int(draw) for draw in draws[image])
        padded = np.pad(values[image], ((pad, pad), (pad, pad), (0, 0)))
        crop = padded[top : top + height, left : left + width]
        out[image] = crop[:, ::-1] if flip else crop
        if side:
            row = middle_row * height // 32768 - side // 2
            column = middle_column * width // 32768 - side // 2
            for y in range(height):
                for x in range(width):
                    if row <= y < row + side and column <= x < column + side:
                        out[image, y, x] = 0
    return out


@given(
    count=st.integers(0, 5),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    pad=st.integers(0, 5),
    flip=st.booleans(),
    cutout=st.integers(0, 6),
    per=st.sampled_from(["pixel", "channel", "scalar"]),
    seed=st.integers(0, 2**32),
)
def test_one_pass_does_what_single_steps_do(
    count: int, height: int, width: int, pad: int, flip: bool, cutout: int, per: str, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, height, width, 3), np.uint8)
    shape = {"pixel": (height, width, 3), "channel": (3,), "scalar": ()}[per]
    mean = generator.normal(size=shape).astype(np.float32)
    std = np.array(np.exp2(generator.integers(-2, 3, shape)), np.float32)  # exact inverses
    preprocessing = Preprocessing("images", (height, width), 1 / 255, mean, std)
    augmentation = Augmentation(pad, flip, cutout)
    draws = augmentation.draw(count, generator)
    before = images.copy()

    np.testing.assert_array_equal(
        augmentation.apply(images, draws), naive(images, draws, pad, cutout)
    )
    normal = (images.astype(np.float32) * np.float32(1 / 255) - mean) / std
    plain = preprocessing(images)
    assert plain.dtype == np.float32
    np.testing.assert_array_equal(plain, normal.transpose(0, 3, 1, 2))
    made = preprocessing.augmented(images, draws, augmentation)
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, naive(normal, draws, pad, cutout).transpose(0, 3, 1, 2))
    for batch in (plain, made):
        assert batch.transpose(0, 2, 3, 1).flags.c_contiguous  # channels last
    np.testing.assert_array_equal(images, before)


def test_padding_is_zero_after_the_mean() -> None:
    preprocessing = Preprocessing("images", (8, 8), 1 / 255, np.full((8, 8, 3), 0.3, np.float32))
    images = np.full((1, 8, 8, 3), 200, np.uint8)
    made = preprocessing.augmented(images, np.zeros((1, 5), np.int16), Augmentation(pad=2))
    assert (made[0, :, :2] == 0).all()
    assert (made[0, :, :, :2] == 0).all()
    assert (made[0, :, 2:, 2:] != 0).all()


@given(st.integers(1, 40), st.integers(0, 6), st.integers(0, 2**32))
def test_draws_slice_like_the_batch(count: int, pad: int, seed: int) -> None:
    augmentation = Augmentation(pad, cutout=3)
    images = np.random.default_rng(1).integers(0, 256, (count, 6, 6, 3), np.uint8)
    draws = augmentation.draw(count, np.random.default_rng(seed))
    np.testing.assert_array_equal(draws, augmentation.draw(count, np.random.default_rng(seed)))
    assert draws.dtype == np.int16
    assert draws.shape == (count, 5)
    whole = augmentation.apply(images, draws)
    half = count // 2
    parts = [augmentation.apply(images[s], draws[s]) for s in (slice(half), slice(half, None))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_pixels_are_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    augmentation, generator = Augmentation(2, cutout=3), np.random.default_rng(0)
    images = generator.integers(0, 256, (7, 6, 6, 3), np.uint8)
    draws = augmentation.draw(7, generator)
    whole = augmentation.apply(images, draws)
    monkeypatch.setattr("flowhash.data.augmentation.BLOCK", 3)
    np.testing.assert_array_equal(augmentation.apply(images, draws), whole)


def test_draws_cover_all_offsets_and_switches_change_nothing_else() -> None:
    draws = Augmentation(pad=2).draw(2000, np.random.default_rng(0))
    for column, values in ((0, 5), (1, 5), (2, 2)):
        assert np.bincount(draws[:, column]).min() > 2000 / values * 0.8
        assert np.bincount(draws[:, column]).size == values
    assert 0 <= draws[:, 3:].min() < 100 < 32668 < draws[:, 3:].max() <= 32767
    other = Augmentation(pad=2, flip=False, cutout=4).draw(2000, np.random.default_rng(0))
    assert not other[:, 2].any()
    np.testing.assert_array_equal(np.delete(other, 2, 1), np.delete(draws, 2, 1))


def test_wrong_shapes_are_told() -> None:
    augmentation = Augmentation()
    images = np.zeros((2, 8, 8, 3), np.uint8)
    draws = np.zeros((2, 5), np.int16)
    with pytest.raises(InputError, match=r"\(1, 5\) for 2 images"):
        augmentation.apply(images, draws[:1])
    with pytest.raises(InputError, match="offsets from 0 to 9; expected 0 to 8"):
        augmentation.apply(images, draws + np.array([9, 0, 0, 0, 0], np.int16))
    with pytest.raises(InputError, match="Vectors are not augmented"):
        augmentation.apply(np.zeros((2, 8), np.float32), draws)
    with pytest.raises(InputError, match="pad is -1"):
        Augmentation(pad=-1)
    preprocessing = Preprocessing("images", (4, 4), 1 / 255)
    for call in (preprocessing, lambda x: preprocessing.augmented(x, draws, augmentation)):
        with pytest.raises(InputError, match=r"\(2, 8, 8, 3\).*\[n, 4, 4, 3\]"):
            call(images)
    with pytest.raises(InputError, match=r"float32.*uint8"):
        preprocessing(np.zeros((1, 4, 4, 3), np.float32))


def test_read_only_and_strided_images() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
    images.flags.writeable = False
    preprocessing = Preprocessing("images", (8, 8), 1 / 255)
    np.testing.assert_array_equal(preprocessing(images[::2]), preprocessing(images[::2].copy()))


def labelled(array: Any) -> LabelledItems:
    return LabelledItems(ArrayItems(array), np.zeros(len(array), int), ("a",), "here")


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 2**32))
def test_fit_measures_images(count: int, side: int, seed: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (count, side, side + 1, 3), np.uint8)
    exact = images.astype(np.float64) / 255
    data = labelled(images)
    fitted = Preprocessing.fit(data)
    assert fitted.size == (side, side + 1)
    np.testing.assert_allclose(fitted.mean, exact.mean(axis=0), atol=1e-7)
    assert fitted.std.tolist() == 1.0
    fitted = Preprocessing.fit(data, mean="channel", spread="channel")
    np.testing.assert_allclose(fitted.mean, exact.mean(axis=(0, 1, 2)), atol=1e-7)
    np.testing.assert_allclose(fitted.std, exact.std(axis=(0, 1, 2)), atol=1e-6)


def test_fit_streams_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (50, 4, 4, 3), np.uint8)
    vectors = (generator.normal(size=(50, 6)) * [1, 2, 3, 4, 5, 6] + 1e4).astype(np.float32)
    whole = [Preprocessing.fit(labelled(array)) for array in (images, vectors)]
    monkeypatch.setattr("flowhash.data.preprocess.CHUNK", 7)
    for array, known in zip((images, vectors), whole, strict=True):
        fitted = Preprocessing.fit(labelled(array))
        np.testing.assert_allclose(fitted.mean, known.mean, rtol=1e-7)
        np.testing.assert_allclose(fitted.std, known.std, rtol=1e-6)


def test_fit_keeps_the_proportions_of_vectors() -> None:
    vectors = np.random.default_rng(0).normal(3, [1.0, 5.0, 0.1], (200, 3)).astype(np.float32)
    fitted = Preprocessing.fit(labelled(vectors))
    made = fitted(vectors)
    np.testing.assert_allclose(made.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(np.square(made).mean(), 1, rtol=1e-4)
    spread = vectors.std(axis=0)
    np.testing.assert_allclose(made.std(axis=0) / made.std(), spread / spread.max() *
                               (made.std(axis=0).max() / made.std()), rtol=1e-3)  # fmt: skip
    none = Preprocessing.fit(labelled(vectors), mean="none", spread="none")
    np.testing.assert_array_equal(none(vectors), vectors)
    assert none(vectors) is not vectors


def test_what_does_not_vary_is_divided_by_one() -> None:
    fitted = Preprocessing.fit(labelled(np.full((5, 2, 2, 3), 9, np.uint8)), spread="channel")
    assert fitted.std.tolist() == [1, 1, 1]
    assert Preprocessing.fit(labelled(np.full((5, 2), 9.0))).std.tolist() == 1


def test_saved_and_put_together() -> None:
    for array in (
        np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3),
        np.random.default_rng(0).random((5, 3)),
    ):
        fitted = Preprocessing.fit(labelled(array))
        again = Preprocessing.from_json(fitted.to_json(), fitted.arrays())
        batch = labelled(array).take(np.arange(2))
        np.testing.assert_array_equal(again(batch), fitted(batch))
    with pytest.raises(InputError, match="mean"):
        Preprocessing.from_json(fitted.to_json(), {})
    with pytest.raises(InputError, match=r"std has shape \(2, 2\)"):
        Preprocessing("vectors", None, 1.0, np.zeros(2, np.float32), np.ones((2, 2), np.float32))
    with pytest.raises(InputError, match="std has values that are not above 0"):
        Preprocessing("vectors", None, 1.0, np.zeros(2, np.float32), np.zeros(2, np.float32))
    with pytest.raises(InputError, match="for vectors choose a mean of dimension, none"):
        Preprocessing.fit(labelled(np.random.default_rng(0).random((5, 3))), mean="pixel")
