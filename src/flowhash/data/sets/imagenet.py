"""ImageNet at 32 × 32 pixels: its official batch files, mapped; never more than one in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.argument_checks import whole_number
from flowhash.data.files.archives import cached_pickle, uncompressed
from flowhash.data.files.array_files import npz_array, npz_names
from flowhash.data.item_sources import ChainedItems, PlanarImages
from flowhash.data.labelled_data import LabelledItems, Splits, seeded, shuffled_ranks
from flowhash.data.preprocess import Preprocessing
from flowhash.errors import DamagedFileError, InputError

CLASSES = 1000
SIDE = 32
PIXELS = 3 * SIDE * SIDE
TRAIN_FILES = tuple(f"train_data_batch_{number}" for number in range(1, 10))
HELD_OUT_FILE = "train_data_batch_10"
TEST_FILE = "val_data"
HELD_OUT = 50  # images of each class
SCALE = 1 / 255


class BatchFile(NamedTuple):
    """A batch file: pixels [n, 3072], mapped, labels from 0, and the mean [3072] if it has one."""

    name: str
    planes: NDArray[np.uint8]
    labels: NDArray[np.int64]
    mean: NDArray[np.float64] | None


def imagenet32(
    folder: str | Path,
    seed: int = 0,
    cache: str | Path | None = None,
    per_class: int = HELD_OUT,
    progress: bool = True,
) -> Splits:
    """ImageNet32 as in the paper: files 1-9 to train, some of file 10 to validate, val to test.

    Files that are neither an uncompressed ``.npz`` nor cached yet are converted once, one after the
    other, to ``.npy`` files that can be mapped. Preprocessing is (x - mean) / 255 with the mean of
    each pixel that the data set's own files store (key ``mean``), as in the released code. Where a
    training file has none, it is that of the training split, for which all images are read once.

    Args:
        folder: holds ``train_data_batch_1`` … ``_10`` and ``val_data``, as ``.npz`` files or as
            pickles without a suffix; they may be in sub-folders.
        seed: of the choice of validation images.
        cache: where converted files go; beside the originals by default.
        per_class: validation images of each class, taken from file 10; where it has fewer of a
            class, all of them.
        progress: show a bar where it takes long.

    Raises:
        InputError: a file is missing.
        DamagedFileError: a file is not what it should be; the message names it.
    """
    root = Path(folder).expanduser()
    place = None if cache is None else Path(cache).expanduser()
    paths = _find(root)
    batches = {name: _open(path, place) for name, path in paths.items()}
    learned = [batches[name] for name in TRAIN_FILES]
    training = _chained(learned, f"{root} (train)")
    last = batches[HELD_OUT_FILE]
    ranks = shuffled_ranks(last.labels, seeded(seed))
    some_of_each = np.flatnonzero(ranks < whole_number("per_class", per_class, 1))
    held_out = _chained([last], last.name).subset(some_of_each)
    tested = _chained([batches[TEST_FILE]], batches[TEST_FILE].name)
    return Splits(training, held_out, tested, _preprocessing(learned, training, progress))


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


def _open(path: Path, cache: Path | None) -> BatchFile:
    """One batch file, converted if it must be."""
    if path.suffix == ".npz":
        planes = uncompressed(path, "data", cache)
        labels = np.array(npz_array(path, "labels"))
        mean = np.array(npz_array(path, "mean")) if "mean" in npz_names(path) else None
    else:
        planes, labels, mean = cached_pickle(path, cache)
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
    return BatchFile(str(path), planes, labels.astype(np.int64) - 1, _checked_mean(path, mean))


def _checked_mean(path: Path, mean: NDArray[Any] | None) -> NDArray[np.float64] | None:
    """The mean of each pixel [3072], from 0 to 255."""
    if mean is None:
        return None
    if mean.size != PIXELS or mean.dtype.kind not in "fiu":
        raise DamagedFileError(
            f"{path}: mean has shape {mean.shape} and dtype {mean.dtype}; expected {PIXELS} "
            "numbers, one for each pixel and colour. Get the official file"
        )
    values = mean.reshape(PIXELS).astype(np.float64)
    bad = np.flatnonzero(~((values >= 0) & (values <= 255)))  # what is no number too
    if bad.size:
        raise DamagedFileError(
            f"{path}: mean has {values[bad[0]]} at {bad[0]}; expected 0 to 255, as pixels have. "
            "The file is damaged; download it again"
        )
    return values


def _preprocessing(
    batches: list[BatchFile], training: LabelledItems, progress: bool
) -> Preprocessing:
    """By the mean that the files store, else by that of the training split.

    The official files all store that of the whole data set. Files of one's own may store each its
    own: the mean over the images of what their files say is right for both.
    """
    means = [batch.mean for batch in batches if batch.mean is not None]
    sizes = [len(batch.planes) for batch in batches]
    if len(means) < len(batches) or not sum(sizes):
        return Preprocessing.fit(training, progress=progress)
    mean = np.average(np.stack(means), axis=0, weights=sizes) * SCALE
    pixels = mean.reshape(3, SIDE, SIDE).transpose(1, 2, 0)
    return Preprocessing("images", (SIDE, SIDE), SCALE, pixels.astype(np.float32))


def _chained(batches: list[BatchFile], source: str) -> LabelledItems:
    """The images of several files as one store. The files do not tell names, so classes count."""
    return LabelledItems(
        ChainedItems([PlanarImages(batch.planes, SIDE, SIDE) for batch in batches]),
        np.concatenate([batch.labels for batch in batches]),
        tuple(str(number) for number in range(1, CLASSES + 1)),
        source,
    )
