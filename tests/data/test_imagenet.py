"""ImageNet32's files: compressed, stored, pickled; mapped and cached."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowhash.data.imagenet as imagenet
from flowhash.data import imagenet32
from flowhash.errors import DamagedFileError, InputError, StorageError

CLASSES = 5
EACH = 4  # images of a class in each file
NAMES = [f"train_data_batch_{number}" for number in range(1, 11)] + ["val_data"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet, "CLASSES", CLASSES)


def content(name: str) -> dict[str, Any]:
    generator = np.random.default_rng(NAMES.index(name))
    labels = generator.permutation(np.repeat(np.arange(1, CLASSES + 1), EACH))
    data = generator.integers(0, 256, (labels.size, 3072), np.uint8)
    return {"data": data, "labels": labels, "mean": data.mean(axis=0)}


def write(folder: Path, name: str, form: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    made = content(name)
    if form == "pickle":
        made["labels"] = made["labels"].tolist()
        (folder / name).write_bytes(pickle.dumps(made, 2))
        return folder / name
    save = np.savez if form == "stored" else np.savez_compressed
    save(folder / f"{name}.npz", **made)
    return folder / f"{name}.npz"


def open_small(folder: Path, **options: Any) -> Any:
    return imagenet32(folder, per_class=2, **options)


def pixels(name: str) -> Any:
    return content(name)["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


@pytest.mark.parametrize("form", ["stored", "compressed", "pickle"])
def test_files_are_read_and_split(tmp_path: Path, form: str) -> None:
    for name in NAMES:
        write(tmp_path / ("train" if name.startswith("train") else "val"), name, form)
    for _ in range(2):  # converted, then from the cache
        splits = open_small(tmp_path)
        train = np.concatenate([pixels(name) for name in NAMES[:9]])
        labels = np.concatenate([content(name)["labels"] for name in NAMES[:9]]) - 1
        np.testing.assert_array_equal(splits.train.take(np.arange(180)), train)
        np.testing.assert_array_equal(splits.train.labels, labels)
        np.testing.assert_array_equal(splits.test.take(np.arange(20)), pixels("val_data"))
        np.testing.assert_array_equal(splits.test.labels, content("val_data")["labels"] - 1)
        assert np.bincount(splits.validation.labels).tolist() == [2] * CLASSES
        known = {image.tobytes() for image in pixels(NAMES[9])}
        held = {image.tobytes() for image in splits.validation.take(np.arange(10))}
        assert len(held) == 10
        assert held <= known
        mean = train.astype(np.float64).mean(axis=0) / 255
        np.testing.assert_allclose(splits.preprocessing.mean, mean, atol=1e-7)
    copies = list(tmp_path.rglob("*.npy"))
    assert len(copies) == {"stored": 0, "compressed": 11, "pickle": 22}[form]
    assert not list(tmp_path.rglob("*.part"))


def test_stored_files_are_mapped_in_place(tmp_path: Path) -> None:
    for name in NAMES:
        write(tmp_path, name, "stored")
    part = open_small(tmp_path).train.items.parts[0]
    base = part.planes
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap)
    assert not base.flags.writeable


def test_another_file_of_the_same_name_has_another_copy(tmp_path: Path) -> None:
    for name in NAMES:
        write(tmp_path, name, "compressed")
    cache = tmp_path / "cache"
    open_small(tmp_path, cache=cache)
    assert len(list(cache.iterdir())) == 11
    changed = content("val_data")
    changed["data"] = 255 - changed["data"]
    np.savez_compressed(tmp_path / "val_data.npz", **changed)
    os.utime(tmp_path / "val_data.npz", ns=(1, 1))  # even an older one
    splits = open_small(tmp_path, cache=cache)
    np.testing.assert_array_equal(splits.test.take(np.arange(20)), 255 - pixels("val_data"))
    assert len(list(cache.iterdir())) == 11


def test_the_choice_follows_its_seed(tmp_path: Path) -> None:
    for name in NAMES:
        write(tmp_path, name, "stored")
    held = [open_small(tmp_path, seed=seed).validation.take(np.arange(10)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(held[0], held[1])
    assert not np.array_equal(held[0], held[2])


def test_missing_files_are_named(tmp_path: Path) -> None:
    for name in NAMES[:8]:
        write(tmp_path, name, "stored")
    with pytest.raises(InputError, match="lacks train_data_batch_9, train_data_batch_10, val_data"):
        open_small(tmp_path)
    with pytest.raises(InputError, match="nowhere is not a folder"):
        open_small(tmp_path / "nowhere")


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    for name in NAMES:
        write(tmp_path, name, "compressed")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"train_data_batch_1\.npz must be converted.*cache="):
        open_small(tmp_path, cache=tmp_path / "file")


@pytest.mark.skipif(os.getuid() == 0, reason="root writes to read-only folders")
def test_a_read_only_folder_is_told(tmp_path: Path) -> None:
    for name in NAMES:
        write(tmp_path / "data", name, "compressed")
    (tmp_path / "data").chmod(0o555)
    with pytest.raises(StorageError, match="cache="):
        open_small(tmp_path / "data")
    open_small(tmp_path / "data", cache=tmp_path / "cache")


@pytest.mark.parametrize("form", ["stored", "compressed", "pickle"])
def test_truncated_files_are_named(tmp_path: Path, form: str) -> None:
    paths = [write(tmp_path, name, form) for name in NAMES]
    paths[4].write_bytes(paths[4].read_bytes()[:-3000])
    with pytest.raises(DamagedFileError, match=paths[4].name):
        open_small(tmp_path)
    assert not list(tmp_path.glob("*.part"))


def test_a_changed_compressed_file_is_named(tmp_path: Path) -> None:
    paths = [write(tmp_path, name, "compressed") for name in NAMES]
    with zipfile.ZipFile(paths[0]) as archive:
        entry = archive.getinfo("data.npy")
    content_ = bytearray(paths[0].read_bytes())
    content_[entry.header_offset + 5000] ^= 255
    paths[0].write_bytes(content_)
    with pytest.raises(DamagedFileError, match=r"train_data_batch_1\.npz"):
        open_small(tmp_path)


@pytest.mark.parametrize("label", [0, CLASSES + 1])
def test_labels_start_at_one(tmp_path: Path, label: int) -> None:
    for name in NAMES:
        write(tmp_path, name, "stored")
    changed = content("val_data")
    changed["labels"][3] = label
    np.savez(tmp_path / "val_data.npz", **changed)
    with pytest.raises(DamagedFileError, match=rf"val_data\.npz: record 3 has the label {label}"):
        open_small(tmp_path)


def test_other_contents_are_named(tmp_path: Path) -> None:
    for name in NAMES:
        write(tmp_path, name, "pickle")
    for made, words in (
        ({"data": np.zeros((2, 12288), np.uint8), "labels": [1, 2]}, r"val_data: data has shape"),
        ({"labels": [1, 2]}, "val_data is a pickle without 'data'"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "val_data: 2 images, but labels"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": ["a", "b"]}, "val_data: 'labels'"),
    ):
        (tmp_path / "val_data").write_bytes(pickle.dumps(made))
        with pytest.raises(DamagedFileError, match=words):
            open_small(tmp_path)
    write(tmp_path, "val_data", "pickle")
    with pytest.raises(InputError, match="train_data_batch_10 has 4 images of label 1; 9 of each"):
        imagenet32(tmp_path, per_class=9)
