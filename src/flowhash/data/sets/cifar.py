"""CIFAR-100: 60,000 images of 32 × 32 pixels in 100 classes, in its two official archives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flowhash.data.files.archives import Member, download as fetch, read_folder, read_tar
from flowhash.data.files.pickles import read_pickle, whole_numbers
from flowhash.data.item_sources import ArrayItems
from flowhash.data.labelled_data import LabelledItems, Splits, split_in_three
from flowhash.errors import Argument, DamagedFileError, InputError

TRAIN_RECORDS = 50_000
TEST_RECORDS = 10_000
CLASSES = 100
SIDE = 32
PIXELS = 3 * SIDE * SIDE
RECORD = 2 + PIXELS  # coarse label, fine label, planes of red, green and blue

BINARY = "cifar-100-binary"
PYTHON = "cifar-100-python"
ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
MD5 = "03b5dce01913d631647c71ecec9e9cb8"
SMALL = 1 << 20  # bytes that a file of names has at the most

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


def cifar100(
    folder: str | Path,
    validation: float = 0.1,
    seed: int = 0,
    download: bool = False,
    progress: bool = True,
) -> Splits:
    """CIFAR-100 with its 100 fine classes; validation is held out of the training images.

    Preprocessing is /255 minus the mean of each pixel over the training split, as in the paper.

    Args:
        folder: ``cifar-100-binary`` or ``cifar-100-python``, or a folder that holds one of them,
            unpacked or as ``.tar.gz``.
        validation: share of each class that is held out; 0.1 leaves 45,000 and 5,000.
        seed: of the split.
        download: whether to fetch the binary archive (169 MB) into ``folder`` if none is there.
        progress: show bars where it takes long.

    Raises:
        InputError: there is no archive in ``folder``.
        DamagedFileError: a file is not what it should be; the message names it.
    """
    path = Path(folder).expanduser()
    found = _find(path)
    if found is None and download:
        fetch(ADDRESS, path / f"{BINARY}.tar.gz", MD5, progress)
        found = _find(path)
    if found is None:
        raise InputError(
            f"{path} has no CIFAR-100; looked for {BINARY}, {PYTHON} and the same with .tar.gz. "
            f"Give the folder that holds one of them, or, to fetch {ADDRESS},",
            Argument("download", "True"),
        )
    (images, labels), (test_images, test_labels), names = _read(*found)
    everything = LabelledItems(ArrayItems(images), labels, names, f"{found[0]} (train)")
    tested = LabelledItems(ArrayItems(test_images), test_labels, names, f"{found[0]} (test)")
    splits = split_in_three(everything, validation, 0.0, seed, progress=progress)
    return replace(splits, test=tested)


def _find(path: Path) -> tuple[Path, str] | None:
    """Where an archive is, and which of the two; unpacked before packed."""
    for layout, member in ((BINARY, "train.bin"), (PYTHON, "meta")):
        for folder in (path / layout, path):
            if (folder / member).is_file():
                return folder, layout
    for layout in (BINARY, PYTHON):
        for packed in (path / f"{layout}.tar.gz", path):
            if packed.is_file() and packed.name.startswith(layout):
                return packed, layout
    return None


def _read(
    path: Path, layout: str
) -> tuple[tuple[Images, Labels], tuple[Images, Labels], tuple[str, ...]]:
    """Images and labels of train and test, and the names of the classes."""
    if layout == BINARY:
        limits = {
            "train.bin": TRAIN_RECORDS * RECORD,
            "test.bin": TEST_RECORDS * RECORD,
            "fine_label_names.txt": SMALL,
        }
    else:  # lists of names and labels make pickles larger than the pixels, but not by much
        limits = {
            "train": TRAIN_RECORDS * 2 * RECORD + SMALL,
            "test": TEST_RECORDS * 2 * RECORD + SMALL,
            "meta": SMALL,
        }
    members = read_tar(path, layout, limits) if path.is_file() else read_folder(path, limits)
    train, test, names = (members[name] for name in limits)
    if layout == BINARY:
        read, listed = _from_binary, names.content.decode("utf-8", "replace").split()
    else:
        read, listed = _from_pickle, _pickled_names(names)
    if len(listed) != CLASSES:
        raise DamagedFileError(
            f"{names.name} has {len(listed)} class names; expected {CLASSES}. Unpack the archive "
            "again"
        )
    return read(train, TRAIN_RECORDS), read(test, TEST_RECORDS), tuple(listed)


def _pickled_names(member: Member) -> list[str]:
    listed = read_pickle(member.content, member.name).get("fine_label_names")
    if not isinstance(listed, list) or not all(isinstance(n, str | bytes) for n in listed):
        return []
    return [n.decode("utf-8", "replace") if isinstance(n, bytes) else n for n in listed]


def _from_binary(member: Member, records: int) -> tuple[Images, Labels]:
    """Records of two label bytes and three planes of pixels."""
    if len(member.content) != records * RECORD:
        raise DamagedFileError(
            f"{member.name} has {len(member.content)} bytes; expected {records * RECORD}, which is "
            f"{records} records of {RECORD}. It was cut short or is another file; unpack or "
            "download it again"
        )
    table = np.frombuffer(member.content, np.uint8).reshape(records, RECORD)
    return _from_planes(table[:, 2:]), _checked_labels(table[:, 1], member.name)


def _from_pickle(member: Member, records: int) -> tuple[Images, Labels]:
    """The dictionary of the Python archive."""
    content = read_pickle(member.content, member.name)
    planes, labels = content.get("data"), content.get("fine_labels")
    shape = getattr(planes, "shape", None)
    if not isinstance(planes, np.ndarray) or planes.dtype != np.uint8 or shape != (records, PIXELS):
        raise DamagedFileError(
            f"{member.name}: 'data' has shape {shape}; expected uint8 ({records}, {PIXELS}). It is "
            "not the official file; download it again"
        )
    numbers = whole_numbers(labels)
    if numbers is None or numbers.shape != (records,):
        raise DamagedFileError(
            f"{member.name}: 'fine_labels' are not {records} whole numbers. It is not the official "
            "file; download it again"
        )
    return _from_planes(planes), _checked_labels(numbers, member.name)


def _from_planes(planes: NDArray[np.uint8]) -> Images:
    """Images [n, 32, 32, 3] from [n, 3072]: as they are read, so that batches are plain gathers."""
    pixels = planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels)


def _checked_labels(labels: NDArray[np.integer], name: str) -> Labels:
    bad = np.flatnonzero((labels < 0) | (labels >= CLASSES))
    if bad.size:
        raise DamagedFileError(
            f"{name}: record {bad[0]} has the label {labels[bad[0]]}; expected 0 to {CLASSES - 1}. "
            "The file is damaged; unpack or download it again"
        )
    return labels.astype(np.int64)
