"""ImageNet at 32 × 32 pixels: its official batch files, mapped; never more than one in memory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.data.cache import cached_pickle, uncompressed
from flowhash.data.files import npz_array
from flowhash.data.items import ChainedItems, PlanarImages
from flowhash.data.labelled import LabelledItems, Splits
from flowhash.data.preprocess import Preprocessing
from flowhash.data.split import seeded
from flowhash.errors import DamagedFileError, InputError

CLASSES = 1000
SIDE = 32
PIXELS = 3 * SIDE * SIDE
TRAIN_FILES = tuple(f"train_data_batch_{number}" for number in range(1, 10))
HELD_OUT_FILE = "train_data_batch_10"
TEST_FILE = "val_data"
HELD_OUT = 50  # images of each class


class Batch(NamedTuple):
    """A batch file: pixels [n, 3072], mapped, and labels from 0."""

    name: str
    planes: NDArray[np.uint8]
    labels: NDArray[np.int64]


def imagenet32(
    folder: str | Path,
    seed: int = 0,
    cache: str | Path | None = None,
    per_class: int = HELD_OUT,
) -> Splits:
    """ImageNet32 as in the paper: files 1-9 to train, some of file 10 to validate, val to test.

    Files that are neither an uncompressed ``.npz`` nor cached yet are converted once, one after the
    other, to ``.npy`` files that can be mapped. Preprocessing is (x - mean) / 255 with the mean of
    each pixel over the training split.

    Args:
        folder: holds ``train_data_batch_1`` … ``_10`` and ``val_data``, as ``.npz`` files or as
            pickles without a suffix; they may be in sub-folders.
        seed: of the choice of validation images.
        cache: where converted files go; beside the originals by default.
        per_class: validation images of each class, taken from file 10.

    Raises:
        InputError: a file is missing.
        DamagedFileError: a file is not what it should be; the message names it.
    """
    root = Path(folder).expanduser()
    place = None if cache is None else Path(cache).expanduser()
    paths = _find(root)
    batches = {name: _open(path, place) for name, path in paths.items()}
    training = _chained([batches[name] for name in TRAIN_FILES], f"{root} (train)")
    last = batches[HELD_OUT_FILE]
    held_out = _chained([last], last.name).subset(_some_of_each(last, per_class, seed))
    tested = _chained([batches[TEST_FILE]], batches[TEST_FILE].name)
    return Splits(training, held_out, tested, Preprocessing.fit(training))


def _find(root: Path) -> dict[str, Path]:
    """Where each file is; all of them are named that are missing."""
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; give the one with ImageNet32's batch files")
    wanted = (*TRAIN_FILES, HELD_OUT_FILE, TEST_FILE)
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*"), key=lambda path: (len(path.parts), path)):
        name = path.name.removesuffix(".npz")
        if name in wanted and name not in found and path.is_file():
            found[name] = path
    missing = [name for name in wanted if name not in found]
    if missing:
        raise InputError(
            f"{root} lacks {', '.join(missing)} of ImageNet32 (with .npz or without a suffix). "
            "Download them from https://image-net.org/download-images and unpack them there"
        )
    return found


def _open(path: Path, cache: Path | None) -> Batch:
    """One batch file, converted if it must be."""
    if path.suffix == ".npz":
        planes = uncompressed(path, "data", cache)
        labels = np.array(npz_array(path, "labels"))
    else:
        planes, labels = cached_pickle(path, cache)
    if planes.ndim != 2 or planes.shape[1] != PIXELS or planes.dtype != np.uint8:
        raise DamagedFileError(
            f"{path}: data has shape {planes.shape} and dtype {planes.dtype}; expected uint8 "
            f"[n, {PIXELS}]. It is not the official file of 32 × 32 pixels"
        )
    if labels.shape != (len(planes),) or labels.dtype.kind not in "iu":
        raise DamagedFileError(
            f"{path}: {len(planes)} images, but labels of shape {labels.shape} and dtype "
            f"{labels.dtype}; expected one whole number for each image"
        )
    bad = np.flatnonzero((labels < 1) | (labels > CLASSES))
    if bad.size:
        raise DamagedFileError(
            f"{path}: record {bad[0]} has the label {labels[bad[0]]}; expected 1 to {CLASSES}. "
            "The file is damaged; download it again"
        )
    return Batch(str(path), planes, labels.astype(np.int64) - 1)


def _chained(batches: list[Batch], source: str) -> LabelledItems:
    """The images of several files as one store. The files do not tell names, so classes count."""
    return LabelledItems(
        ChainedItems([PlanarImages(batch.planes, SIDE, SIDE) for batch in batches]),
        np.concatenate([batch.labels for batch in batches]),
        tuple(str(number) for number in range(1, CLASSES + 1)),
        source,
    )


def _some_of_each(batch: Batch, count: int, seed: int) -> NDArray[np.int64]:
    """Positions of ``count`` images of each class, by chance, ascending."""
    if count < 1:
        raise InputError(f"per_class is {count}; expected a whole number from 1")
    order = seeded(seed).permutation(len(batch.labels))
    order = order[np.argsort(batch.labels[order], kind="stable")]
    sizes = np.bincount(batch.labels, minlength=CLASSES)
    if sizes.min() < count:
        scarce = int(np.argmin(sizes))
        raise InputError(
            f"{batch.name} has {sizes[scarce]} images of label {scarce + 1}; {count} of each class "
            "are held out for validation. Choose a smaller per_class"
        )
    ranks = np.arange(order.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[ranks < count])
