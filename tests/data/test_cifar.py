"""CIFAR-100 in its layouts, against the bytes that were written."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.data import cifar100
from flowhash.errors import DamagedFileError, InputError
from tests.data import builders


@pytest.fixture(autouse=True)
def _small(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real" not in request.node.name:
        builders.small_cifar(monkeypatch)


def check(splits: Any) -> None:
    """Every image is where its plane and label say, once."""
    planes, labels = builders.cifar_content(builders.CIFAR_TRAIN, 1)
    wanted = {}
    for plane, label in zip(planes, labels, strict=True):
        image = np.empty((32, 32, 3), np.uint8)
        for channel in range(3):
            for row in range(32):
                start = channel * 1024 + row * 32
                image[row, :, channel] = plane[start : start + 32]
        wanted[image.tobytes()] = int(label)
    seen = []
    for split in (splits.train, splits.validation):
        images = split.take(np.arange(len(split)))
        assert images.dtype == np.uint8
        seen += [image.tobytes() for image in images]
        assert [wanted[image.tobytes()] for image in images] == split.labels.tolist()
        assert split.class_names == tuple(builders.class_names())
    assert sorted(seen) == sorted(wanted)
    assert np.bincount(splits.train.labels).tolist() == [3] * 100
    assert np.bincount(splits.validation.labels).tolist() == [1] * 100
    assert splits.test.labels.tolist() == builders.cifar_content(builders.CIFAR_TEST, 2)[1].tolist()
    mean = splits.train.take(np.arange(300)).astype(np.float64).mean(axis=0) / 255
    np.testing.assert_allclose(splits.preprocessing.mean, mean, atol=1e-7)
    assert splits.preprocessing.std.tolist() == 1.0


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("layout", ["binary", "python"])
@pytest.mark.parametrize("inside", [False, True])
def test_layouts(tmp_path: Path, packed: bool, layout: str, inside: bool) -> None:
    write = builders.write_binary if layout == "binary" else builders.write_python
    folder = write(tmp_path / f"cifar-100-{layout}")
    place = folder if inside else tmp_path
    if packed:
        place = builders.pack(folder) if inside else builders.pack(folder).parent
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    check(cifar100(place))


@pytest.mark.parametrize("protocol", [0, 4, 5])
def test_python_layout_of_other_protocols(tmp_path: Path, protocol: int) -> None:
    check(cifar100(builders.write_python(tmp_path / "anything", protocol)))


def test_the_split_follows_its_seed(tmp_path: Path) -> None:
    builders.write_binary(tmp_path / "cifar-100-binary")
    first, again, other = (cifar100(tmp_path, seed=seed) for seed in (0, 0, 1))
    everything = np.arange(100)
    np.testing.assert_array_equal(
        first.validation.take(everything), again.validation.take(everything)
    )
    assert not np.array_equal(first.validation.take(everything), other.validation.take(everything))


def test_a_missing_archive_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"{tmp_path}.*cifar-100-binary.*download=True"):
        cifar100(tmp_path)


def test_a_truncated_file_is_named_with_both_sizes(tmp_path: Path) -> None:
    folder = builders.write_binary(tmp_path / "cifar-100-binary")
    path = folder / "train.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match=r"train\.bin has 1229599 bytes; expected 1229600"):
        cifar100(tmp_path)
    path.write_bytes(bytes(400 * 3074 + 1))
    with pytest.raises(DamagedFileError, match=r"train\.bin has 1229601 bytes.*1229600"):
        cifar100(tmp_path)


def test_a_bad_label_names_its_record(tmp_path: Path) -> None:
    folder = builders.write_binary(tmp_path / "cifar-100-binary")
    content = bytearray((folder / "test.bin").read_bytes())
    content[17 * 3074 + 1] = 100
    (folder / "test.bin").write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"test\.bin: record 17 has the label 100"):
        cifar100(tmp_path)


def test_missing_and_wrong_members_are_named(tmp_path: Path) -> None:
    folder = builders.write_binary(tmp_path / "cifar-100-binary")
    (folder / "fine_label_names.txt").write_text("apple\n")
    with pytest.raises(DamagedFileError, match=r"fine_label_names\.txt has 1 class names"):
        cifar100(tmp_path)
    (folder / "fine_label_names.txt").unlink()
    with pytest.raises(DamagedFileError, match=r"fine_label_names\.txt is missing"):
        cifar100(tmp_path)


def test_python_files_of_another_shape_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders.write_python(tmp_path / "cifar-100-python")
    monkeypatch.setattr("flowhash.data.sets.cifar.TRAIN_RECORDS", 401)
    with pytest.raises(DamagedFileError, match=r"train: 'data' has shape \(400, 3072\).*401"):
        cifar100(tmp_path)


def test_a_damaged_tar_is_named(tmp_path: Path) -> None:
    path = builders.pack(builders.write_binary(tmp_path / "x" / "cifar-100-binary"))
    target = tmp_path / "cifar-100-binary.tar.gz"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"no tar at all", whole[:-4000]):
        target.write_bytes(content)
        with pytest.raises(DamagedFileError, match=r"cifar-100-binary\.tar\.gz"):
            cifar100(tmp_path)


def test_a_tar_cannot_write_elsewhere(tmp_path: Path) -> None:
    folder = builders.write_binary(tmp_path / "a" / "cifar-100-binary")
    target = tmp_path / "b" / "cifar-100-binary.tar.gz"
    target.parent.mkdir()
    with tarfile.open(target, "w:gz") as archive:
        for name in ("../escaped", "/tmp/flowhash-escaped", "cifar-100-binary/../../escaped"):
            entry = tarfile.TarInfo(name)
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"evil"))
        link = tarfile.TarInfo("cifar-100-binary/train.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        archive.add(folder, "cifar-100-binary")
    check(cifar100(target.parent))
    assert sorted(path.name for path in target.parent.iterdir()) == [target.name]
    assert not (tmp_path / "escaped").exists()
    assert not Path("/tmp/flowhash-escaped").exists()


def test_a_member_that_would_fill_the_memory(tmp_path: Path) -> None:
    target = tmp_path / "cifar-100-binary.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        entry = tarfile.TarInfo("cifar-100-binary/train.bin")
        entry.size = 1 << 22
        archive.addfile(entry, io.BytesIO(bytes(1 << 22)))
    with pytest.raises(DamagedFileError, match=r"train\.bin has 4194304 bytes; expected at most"):
        cifar100(tmp_path)


@pytest.mark.skipif(
    not os.environ.get("FLOWHASH_CIFAR100"),
    reason="FLOWHASH_CIFAR100 is not set; it names the folder of the real CIFAR-100",
)
def test_real_cifar() -> None:
    splits = cifar100(os.environ["FLOWHASH_CIFAR100"])
    assert splits.test is not None
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (45000, 5000, 10000)
    for split, each in ((splits.train, 450), (splits.validation, 50), (splits.test, 100)):
        assert np.bincount(split.labels).tolist() == [each] * 100
    assert splits.train.class_names[:2] == ("apple", "aquarium_fish")
    # The channel means of the training images as they are often printed.
    means = splits.preprocessing.mean.mean(axis=(0, 1))
    np.testing.assert_allclose(means, [0.5071, 0.4865, 0.4409], atol=1e-3)
    batch = splits.preprocessing(splits.train.take(np.arange(45000)[::97]))
    assert abs(float(batch.mean())) < 0.02
