"""Folders of images, against Pillow and arithmetic."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import flowhash.data.files.image_files as pictures
from flowhash.data import ImageFolder, image_folder
from flowhash.data.files.image_files import ENDINGS, IMAGE_FORMATS, read_image, read_pictures
from flowhash.data.item_payloads import file_thumbnail
from flowhash.data.sets.image_folders import find_images
from flowhash.errors import DamagedFileError, InputError, StorageError


def save(
    path: Path, colour: Any = (1, 2, 3), size: tuple[int, int] = (8, 8), **options: Any
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, **options)
    return path


def fill(root: Path, counts: dict[str, int], shade: int = 0) -> Path:
    for number, (name, count) in enumerate(counts.items()):
        for image in range(count):
            save(root / name / f"{image}.png", (10 * number, image, shade))
    return root


def colours(data: Any) -> Any:
    return data.take(np.arange(len(data)))[:, 0, 0]


def test_one_folder_a_class(tmp_path: Path) -> None:
    fill(tmp_path, {"b": 10, "a": 10, "c": 4})
    (tmp_path / "README.txt").write_text("about")
    splits = image_folder(tmp_path, size=4, validation=0.2, test=0.1)
    assert splits.train.class_names == ("a", "b", "c")
    assert splits.test is not None
    for split, counts in (
        (splits.train, [7, 7, 2]), (splits.validation, [2, 2, 1]), (splits.test, [1, 1, 1]),
    ):  # fmt: skip
        assert np.bincount(split.labels).tolist() == counts
        # b was written first: its red is 0, that of a is 10.
        assert (colours(split)[:, 0] == np.array([10, 0, 20])[split.labels]).all()
    assert splits.train.take(np.array([0])).shape == (1, 4, 4, 3)
    assert image_folder(tmp_path).test is None
    assert image_folder(tmp_path).preprocessing.size == (32, 32)


def test_preprocessing_is_per_channel(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 5, "b": 5})
    splits = image_folder(tmp_path, size=4)
    images = splits.train.take(np.arange(len(splits.train))) / 255.0
    np.testing.assert_allclose(splits.preprocessing.mean, images.mean(axis=(0, 1, 2)), atol=1e-6)
    spread = images.std(axis=(0, 1, 2))
    spread[2] = 1  # blue does not vary
    np.testing.assert_allclose(splits.preprocessing.std, spread, atol=1e-6)


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_given_splits(tmp_path: Path, name: str) -> None:
    fill(tmp_path / "train", {"a": 4, "b": 4}, 1)
    fill(tmp_path / name, {"b": 1}, 2)
    fill(tmp_path / "test", {"a": 2, "b": 1}, 3)
    splits = image_folder(tmp_path, size=4)
    assert splits.test is not None
    assert [len(split) for split in (splits.train, splits.validation, splits.test)] == [8, 1, 3]
    for split, shade in ((splits.train, 1), (splits.validation, 2), (splits.test, 3)):
        assert (colours(split)[:, 2] == shade).all()
    assert splits.validation.labels.tolist() == [1]
    assert splits.validation.class_names == ("a", "b")


def test_a_split_that_is_not_given_is_held_out(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 10, "b": 10})
    fill(tmp_path / "test", {"a": 2, "b": 1})
    splits = image_folder(tmp_path, size=4, validation=0.2)
    assert (len(splits.train), len(splits.validation)) == (16, 4)
    assert len(splits.test or ()) == 3


def test_train_may_be_a_class(tmp_path: Path) -> None:
    fill(tmp_path, {"train": 3, "plane": 3})
    assert image_folder(tmp_path, size=4).train.class_names == ("plane", "train")


def test_classes_of_splits_must_match(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 4, "b": 4})
    fill(tmp_path / "val", {"a": 1, "B": 1})
    with pytest.raises(InputError, match=r"val has classes that the training folder lacks: B"):
        image_folder(tmp_path)


def test_litter_is_passed_over_and_others_are_named(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 3, "b": 3})
    save(tmp_path / "a" / "below" / "more.JPG")
    for name in ("Thumbs.db", ".DS_Store", "desktop.ini", "._0.png"):
        (tmp_path / "a" / name).write_bytes(b"litter")
    (tmp_path / ".git").mkdir()
    (tmp_path / "__MACOSX").mkdir()
    splits = image_folder(tmp_path, size=4, validation=0.0)
    assert np.bincount(splits.train.labels).tolist() == [4, 3]
    (tmp_path / "b" / "notes.txt").write_text("not an image")
    with pytest.raises(InputError, match=r"notes\.txt.*ignore_other=True"):
        image_folder(tmp_path)
    assert len(image_folder(tmp_path, size=4, validation=0, ignore_other=True).train) == 7


def test_layouts_that_cannot_be_learned_from(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere is not a folder"):
        image_folder(tmp_path / "nowhere")
    fill(tmp_path, {"a": 3})
    with pytest.raises(InputError, match="has 1 sub-folders; expected two"):
        image_folder(tmp_path)
    fill(tmp_path, {"b": 1})
    with pytest.raises(InputError, match=r"/b is a class with a single image"):
        image_folder(tmp_path)
    (tmp_path / "b" / "0.png").unlink()
    with pytest.raises(InputError, match=r"/b is a class with no images"):
        image_folder(tmp_path)
    save(tmp_path / "loose.png")
    with pytest.raises(InputError, match=r"loose\.png"):
        image_folder(tmp_path)
    for size in (0, (3,), (3, -1), "big"):
        with pytest.raises(InputError, match="size is"):
            image_folder(tmp_path, size=size)  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_damaged_image_is_named_when_read(tmp_path: Path, threads: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    paths = [tmp_path / name for name in ("good.png", "cut.png", "cut.jpg", "text.gif")]
    for path in paths[:3]:
        Image.fromarray(noise).save(path)
    for path in paths[1:3]:
        path.write_bytes(path.read_bytes()[:-700])
    paths[3].write_text("not an image")
    items = ImageFolder(paths, (8, 8), threads)
    assert items.take(np.array([0])).shape == (1, 8, 8, 3)
    for place in (1, 2, 3):
        with pytest.raises(DamagedFileError, match=paths[place].name):
            items.take(np.array([0, place]))
    found = items.verify()
    assert [any(path.name in line for line in found) for path in paths] == [False, True, True, True]
    paths[0].unlink()
    with pytest.raises(StorageError, match=r"good\.png is not there"):
        read_image(paths[0], (8, 8))


def test_a_damaged_image_in_a_folder_is_named(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "a" / "1.png").write_bytes(b"nothing")
    with pytest.raises(DamagedFileError, match=r"a/1\.png"):
        image_folder(tmp_path, validation=0.0)


def test_an_image_that_would_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "bomb.png", size=(40, 40))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1599)  # Pillow would only warn
    with (
        pytest.warns(Image.DecompressionBombWarning),
        pytest.raises(DamagedFileError, match=r"bomb\.png is too large"),
    ):
        read_image(path, (8, 8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow raises
    with pytest.raises(DamagedFileError, match=r"bomb\.png is too large"):
        read_image(path, (8, 8))


@pytest.mark.parametrize("size", [(10, 10), (6, 10), (10, 6)])
@pytest.mark.parametrize("shape", [(40, 20), (20, 40), (10, 10), (5, 9)])
def test_the_middle_is_kept(tmp_path: Path, size: tuple[int, int], shape: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    height, width = size
    # The largest middle part of these proportions, then scaled: the box in fractions of pixels.
    scale = min(shape[0] / height, shape[1] / width)
    top, left = (shape[0] - scale * height) / 2, (shape[1] - scale * width) / 2
    box = (left, top, left + scale * width, top + scale * height)
    wanted = Image.fromarray(noise).resize((width, height), Image.Resampling.BILINEAR, box)
    found = read_image(tmp_path / "a.png", size)
    assert found.shape == (*size, 3)
    np.testing.assert_allclose(found.astype(int), np.asarray(wanted, int), atol=1)


def test_exif_orientation_is_honoured(tmp_path: Path) -> None:
    image = Image.new("RGB", (8, 8), (0, 0, 0))
    image.paste((255, 255, 255), (0, 0, 8, 4))  # the upper half is white
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    image.save(tmp_path / "turned.png", exif=exif)
    found = read_image(tmp_path / "turned.png", (8, 8))
    assert (found[:, 4:] == 255).all()
    assert (found[:, :4] == 0).all()


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
def test_every_mode_becomes_colour(tmp_path: Path, mode: str) -> None:
    image = Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode)
    image.save(tmp_path / ("a.jpg" if mode == "CMYK" else "a.png"))
    found = read_image(next(tmp_path.iterdir()), (4, 4))
    assert found.shape == (4, 4, 3)
    assert found.min() > 250


def test_sixteen_bits_of_grey_are_not_clipped(tmp_path: Path) -> None:
    grey = (np.arange(64).reshape(8, 8) * 1024).astype(np.uint16)
    Image.fromarray(grey).save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png", (8, 8))
    np.testing.assert_array_equal(found[:, :, 0], grey >> 8)


def test_large_jpegs_look_the_same(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 800).astype(np.uint8)
    image = np.broadcast_to(ramp[:, None, None], (800, 800, 3))
    Image.fromarray(np.ascontiguousarray(image)).save(tmp_path / "a.jpg", quality=95)
    found = read_image(tmp_path / "a.jpg", (16, 16)).astype(int)
    wanted = image.reshape(16, 50, 16, 50, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(found, wanted, atol=4)


@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_kept_or_decoded_again_it_is_the_same(
    tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "KEPT_BYTES", kept)
    paths = [save(tmp_path / f"{number}.png", (number, 0, 0)) for number in range(6)]
    items = ImageFolder(paths, (4, 4))
    for positions in ([3, 1, 3], [5, 3, 0, 1], []):
        taken = items.take(np.array(positions, np.int64))
        assert taken[:, 0, 0, 0].tolist() == positions
        taken[:] = 99
    for path in paths:
        path.unlink()
    if kept:
        assert items.take(np.array([5]))[0, 0, 0, 0] == 5
    else:
        with pytest.raises(StorageError, match=r"5\.png"):
            items.take(np.array([5]))


def test_pictures_may_be_files_or_images(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", (7, 8, 9))
    found = read_pictures([path, str(path), Image.new("L", (30, 20), 5)], (4, 6))
    assert found.shape == (3, 4, 6, 3)
    assert found[:, 0, 0].tolist() == [[7, 8, 9], [7, 8, 9], [5, 5, 5]]


def test_an_eps_file_called_png_is_not_given_to_ghostscript(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, programs = tmp_path / "mark", tmp_path / "programs"
    programs.mkdir()
    for name in ("gs", "gswin64c", "gswin32c"):
        (programs / name).write_text(f"#!/bin/sh\necho ran >> {mark}\nexit 1\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # looked for anew
    path = tmp_path / "a" / "picture.png"
    path.parent.mkdir()
    Image.new("RGB", (8, 8)).save(path, "EPS")
    with pytest.raises(DamagedFileError, match=r"picture\.png cannot be read.*none of PNG, JPEG"):
        read_image(path, (4, 4))
    with pytest.raises(DamagedFileError, match=r"picture\.png"):
        file_thumbnail(path)
    (complaint,) = ImageFolder([path], (4, 4)).verify()
    assert "picture.png" in complaint
    assert not mark.exists()
    with contextlib.suppress(OSError, subprocess.CalledProcessError), Image.open(path) as image:
        image.load()
    assert mark.exists()  # Pillow itself would have run it


@pytest.mark.parametrize("kind", ["TIFF", "PPM", "ICO", "TGA", "JPEG2000", "PCX", "SGI"])
def test_only_the_formats_of_the_server_are_read(tmp_path: Path, kind: str) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png", kind)
    with pytest.raises(DamagedFileError, match=r"a\.png cannot be read.*convert it"):
        read_image(tmp_path / "a.png", (4, 4))
    (tmp_path / "a.png").rename(tmp_path / "a.tif")
    with pytest.raises(InputError, match=r"a\.tif; expected PNG, JPEG, WEBP, GIF, BMP"):
        find_images(tmp_path, ignore_other=False)


@pytest.mark.parametrize("kind", IMAGE_FORMATS)
def test_every_format_of_the_server_is_read(tmp_path: Path, kind: str) -> None:
    for ending in ENDINGS[kind]:
        Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / f"a{ending}", kind)
    for path in find_images(tmp_path, ignore_other=False):
        found = read_image(path, (4, 4)).astype(int)
        assert np.abs(found - [255, 0, 0]).max() < 5
