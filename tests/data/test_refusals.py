"""What the system refuses is said as it is, and is no damage of the file that is read."""

from __future__ import annotations

import errno
import io
import os
import resource
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from flowhash import durable_files
from flowhash.data.files import array_files as files
from flowhash.data.files.archives import read_tar, uncompressed
from flowhash.data.files.array_files import has_labels, npz_array, read_npy
from flowhash.data.files.image_files import read_image
from flowhash.durable_files import memory
from flowhash.errors import DamagedFileError, StorageError

NOISE = np.random.default_rng(0).integers(0, 256, (300, 200), np.uint8)


def test_a_disk_without_room_is_not_called_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    np.savez_compressed(path, data=NOISE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, hard))
    try:
        with pytest.raises(StorageError) as caught:
            uncompressed(path, "data", None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not isinstance(caught.value, DamagedFileError)
    for words in ("cannot be written", os.strerror(errno.EFBIG), "Give a folder", "cache="):
        assert words in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.npz"]
    assert np.array_equal(uncompressed(path, "data", None), NOISE)


READERS: dict[str, Callable[[Path], Any]] = {
    "file.npy": read_npy,
    "file.npz": lambda path: uncompressed(path, "data", None),
    "file.tar": lambda path: read_tar(path, "folder", {"train": 100}),
    "file.png": lambda path: read_image(path, (4, 4)),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "file.npy", NOISE)
    np.savez_compressed(tmp_path / "file.npz", data=NOISE)
    Image.new("RGB", (4, 4)).save(tmp_path / "file.png")
    with tarfile.open(tmp_path / "file.tar", "w") as archive:
        entry = tarfile.TarInfo("folder/train")
        entry.size = 5
        archive.addfile(entry, io.BytesIO(b"12345"))
    pyarrow.parquet.write_table(pyarrow.table({"label": [1]}), tmp_path / "file.parquet")
    return tmp_path


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("name", READERS)
def test_what_the_system_refuses(
    folder: Path, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    READERS[name](folder / name)
    for copy in folder.glob("file.npz.*"):
        copy.unlink()
    opened = os.open

    def refuse(path: Any, *rest: Any, **options: Any) -> int:
        if str(path).endswith(name):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match=f"{name} cannot be read: ") as caught:
        READERS[name](folder / name)
    assert os.strerror(number) in str(caught.value)
    assert not isinstance(caught.value, DamagedFileError)


def test_no_descriptor_is_left_for_a_parquet_file(folder: Path) -> None:
    path = folder / "file.parquet"
    assert has_labels(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.dup(0)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
    try:
        with pytest.raises(StorageError, match=r"file\.parquet cannot be read: .*open") as caught:
            has_labels(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not isinstance(caught.value, DamagedFileError)


def test_files_that_are_missing(tmp_path: Path) -> None:
    for name in ("file.npy", "file.npz", "file.tar", "file.png"):
        with pytest.raises(OSError, match=name) as caught:
            READERS[name](tmp_path / name)
        assert not isinstance(caught.value, DamagedFileError)
    with pytest.raises(StorageError, match=r"file\.parquet is not there"):
        has_labels(tmp_path / "file.parquet")


def test_a_compressed_array_is_in_memory_once(tmp_path: Path) -> None:
    path, large = tmp_path / "file.npz", np.tile(NOISE, (400, 1))  # 24 MB
    np.savez_compressed(path, data=large, text=np.array(["a", "bc"]), none=np.zeros((0, 3)))
    tracemalloc.start()
    try:
        found = npz_array(path, "data")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.array_equal(found, large)
    assert peak < 1.5 * large.nbytes
    assert npz_array(path, "text").tolist() == ["a", "bc"]
    assert npz_array(path, "none").shape == (0, 3)


def test_the_memory_bounds_what_is_loaded_not_what_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.npz"
    np.savez_compressed(path, data=NOISE)
    monkeypatch.setattr(files, "memory", lambda: 2 * NOISE.nbytes - 1)
    with pytest.raises(StorageError, match=r"file\.npz unpacks to 60000 bytes.*half the memory"):
        npz_array(path, "data")
    assert np.array_equal(uncompressed(path, "data", None), NOISE)
    monkeypatch.setattr(files, "memory", lambda: 2 * NOISE.nbytes)
    assert np.array_equal(npz_array(path, "data"), NOISE)


def test_a_container_may_have_less_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(durable_files, "CGROUP_LIMIT", limit)
    machine = memory()
    for text, expected in (("max\n", machine), ("12345\n", 12345), (f"{1 << 60}\n", machine)):
        limit.write_text(text)
        assert memory() == expected
