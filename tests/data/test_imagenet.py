"""ImageNet32's files: compressed, stored, pickled; mapped and cached."""

from __future__ import annotations

import os
import pickle
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import flowhash.data.sets.imagenet as imagenet
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


def write(folder: Path, name: str, form: str, made: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    made = content(name) if made is None else made
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
    assert len(copies) == {"stored": 0, "compressed": 11, "pickle": 33}[form]
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("form", ["stored", "compressed", "pickle"])
def test_the_mean_is_the_one_that_the_files_store(tmp_path: Path, form: str) -> None:
    """Which is not that of the images here; the official val file has none."""
    mean = np.random.default_rng(0).uniform(0, 255, 3072)
    for name in NAMES:
        made = {**content(name), "mean": mean}
        if name == "val_data":
            del made["mean"]
        write(tmp_path, name, form, made)
    for _ in range(2):  # converted, then from the cache
        splits = open_small(tmp_path)
        found = splits.preprocessing(splits.test.take(np.arange(20)))
        expected = (content("val_data")["data"].astype(np.float64) - mean) / 255
        np.testing.assert_allclose(found, expected.reshape(-1, 3, 32, 32), atol=1e-6)


@pytest.mark.parametrize("form", ["stored", "pickle"])
def test_without_a_mean_it_is_that_of_the_training_images(tmp_path: Path, form: str) -> None:
    for name in NAMES:
        made = {**content(name), "mean": np.full(3072, 7.0)}
        if name == NAMES[3]:
            del made["mean"]
        write(tmp_path, name, form, made)
    for _ in range(2):
        train = np.concatenate([pixels(name) for name in NAMES[:9]]).astype(np.float64)
        found = open_small(tmp_path).preprocessing.mean
        np.testing.assert_allclose(found, train.mean(axis=0) / 255, atol=1e-7)


def test_what_a_cache_of_before_lacks_is_added(tmp_path: Path) -> None:
    """Older versions kept data and labels only."""
    mean = np.full(3072, 9.0)
    for name in NAMES:
        write(tmp_path, name, "pickle", {**content(name), "mean": mean})
    open_small(tmp_path)
    for path in tmp_path.glob("*.mean.*.npy"):
        path.unlink()
    np.testing.assert_allclose(open_small(tmp_path).preprocessing.mean, 9 / 255, atol=1e-7)


@pytest.mark.parametrize("form", ["stored", "pickle"])
@pytest.mark.parametrize(
    ("mean", "words"),
    [
        (np.zeros(12288), r"train_data_batch_2.*: mean has shape \(12288,\) and dtype float64"),
        (np.full(3072, -1.0), r"train_data_batch_2.*: mean has -1.0 at 0; expected 0 to 255"),
        (np.full(3072, np.nan), r"train_data_batch_2.*: mean has nan at 0"),
        (np.zeros(3072, bool), "train_data_batch_2.*: mean has shape .* dtype bool"),
    ],
)
def test_a_mean_that_is_none_is_named(tmp_path: Path, form: str, mean: Any, words: str) -> None:
    for name in NAMES:
        made = content(name)
        if name == "train_data_batch_2":
            made["mean"] = mean
        write(tmp_path, name, form, made)
    with pytest.raises(DamagedFileError, match=words):
        open_small(tmp_path)


def test_a_pickled_mean_that_is_no_array_is_named(tmp_path: Path) -> None:
    for name in NAMES:
        write(tmp_path, name, "pickle", {**content(name), "mean": "grey"})
    with pytest.raises(DamagedFileError, match="train_data_batch_1: 'mean' is not an array"):
        open_small(tmp_path)


@settings(max_examples=15, deadline=None)
@given(
    held=st.lists(st.integers(0, 5), min_size=CLASSES, max_size=CLASSES).filter(any),
    sizes=st.lists(st.integers(0, 4), min_size=9, max_size=9).filter(any),
    per_class=st.integers(1, 4),
    seed=st.integers(0, 3),
)
def test_files_of_any_sizes(held: list[int], sizes: list[int], per_class: int, seed: int) -> None:
    """A class gives what it has, if that is less; means of the files weigh by their images."""
    generator = np.random.default_rng(seed)

    def made(labels: Any) -> dict[str, Any]:
        data = generator.integers(0, 256, (len(labels), 3072), np.uint8)
        mean = data.mean(axis=0) if len(data) else np.full(3072, 255.0)
        return {"data": data, "labels": np.asarray(labels, np.int64), "mean": mean}

    last = made(generator.permutation(np.repeat(np.arange(1, CLASSES + 1), held)))
    contents = [made(generator.integers(1, CLASSES + 1, size)) for size in sizes]
    with tempfile.TemporaryDirectory() as folder:
        for name, one in zip(NAMES, [*contents, last, made([1])], strict=True):
            write(Path(folder), name, "stored", one)
        splits = imagenet32(folder, seed=seed, per_class=per_class)
    found = np.bincount(splits.validation.labels, minlength=CLASSES)
    assert found.tolist() == [min(count, per_class) for count in held]
    known = {
        (label - 1, image.tobytes())
        for label, image in zip(
            last["labels"].tolist(),
            last["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1),
            strict=True,
        )
    }
    taken = splits.validation.take(np.arange(len(splits.validation)))
    labelled = list(zip(splits.validation.labels.tolist(), taken, strict=True))
    chosen = {(label, image.tobytes()) for label, image in labelled}
    assert len(chosen) == len(labelled)
    assert chosen <= known
    every = np.concatenate([one["data"] for one in contents]).reshape(-1, 3, 32, 32)
    np.testing.assert_allclose(
        splits.preprocessing.mean, every.mean(axis=0).transpose(1, 2, 0) / 255, atol=1e-6
    )


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
    with pytest.raises(InputError, match="per_class is 0; expected a whole number from 1"):
        imagenet32(tmp_path, per_class=0)
