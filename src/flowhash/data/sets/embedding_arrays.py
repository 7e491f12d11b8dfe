"""Arrays of embeddings with labels: ``.npy``, ``.npz``, parquet, or in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.data.files.array_files import has_labels, read_npy, read_npz, read_parquet
from flowhash.data.item_sources import ArrayItems
from flowhash.data.labelled_data import LabelledItems, Splits, split_in_three
from flowhash.errors import Argument, InputError

CHUNK = 1 << 22  # numbers that are looked at together

Source = str | Path | ArrayLike


def arrays(
    items: Source,
    labels: Source | None = None,
    *,
    embedding: str | None = None,
    label: str | None = None,
    validation: float = 0.1,
    test: float = 0.0,
    seed: int = 0,
    preprocess: Literal["usual", "none"] = "usual",
    progress: bool = True,
) -> Splits:
    """Vectors with labels, split by class.

    Args:
        items: [n, dim] numbers, or a file: ``.npy`` (which is mapped, not loaded), ``.npz`` or
            ``.parquet``. Images uint8 [n, height, width, 3] are taken as images.
        labels: [n] whole numbers or text, or an ``.npy`` file of them. Not needed where the file
            of the items has them.
        embedding: key or column of the items; embeddings, embedding, X or data by default.
        label: key or column of the labels; labels, label or y by default.
        validation: share of each class that is held out for choices.
        test: share that is held out for the final figures; 0 is none.
        seed: of the split.
        preprocess: "usual" takes away the mean and divides by one number, the same for all
            dimensions: distances keep their proportions, which a spread for each dimension would
            not leave them. For images, see :class:`Preprocessing`. "none" leaves values as they
            are (images are divided by 255).
        progress: show a bar where it takes long.

    Raises:
        InputError: the arrays do not fit each other, or have values that are not finite.
        DamagedFileError: a file cannot be read.
    """
    if preprocess not in ("usual", "none"):
        raise InputError(f'preprocess is {preprocess!r}; expected "usual" or "none"')
    data = _labelled(items, labels, embedding, label)
    options = {"mean": "none", "spread": "none"} if preprocess == "none" else {}
    return split_in_three(data, validation, test, seed, progress=progress, **options)


def _labelled(
    items: Source, labels: Source | None, embedding: str | None, label: str | None
) -> LabelledItems:
    """Like :func:`arrays`, not split."""
    source, found, found_labels = _read(items, embedding, label, labels is None)
    label_source = source
    if labels is not None:
        label_source, found_labels = _read_labels(labels)
    elif found_labels is None:
        raise InputError(
            f"{source} comes without labels; expected an array or an .npy file with one for each "
            "row: give",
            Argument("labels"),
        )
    values = np.asarray(found_labels)
    if values.ndim != 1 or len(values) != len(found):
        raise InputError(
            f"{source} has {len(found)} rows, but the labels of {label_source} have shape "
            f"{values.shape}; expected one label for each row"
        )
    numbers, names = number_classes(values, label_source)
    return LabelledItems(_checked_items(found, source), numbers, names, source)


def any_arrays(
    path: Path, labels: str | Path | None, embedding: str | None, label: str | None
) -> tuple[NDArray[Any], list[str] | None]:
    """The items of a file and the names of their classes, or None where it has no labels.

    Labels are taken where they are asked for, or have one of the usual names.
    """
    if labels is None and label is None and not (path.is_file() and has_labels(path)):
        source, array, _ = _read(path, embedding, None, False)
        return _checked_items(array, source).array, None
    found = _labelled(path, labels, embedding, label)
    assert isinstance(found.items, ArrayItems)
    return found.items.array, [found.class_names[one] for one in found.labels.tolist()]


def _read(
    items: Source, embedding: str | None, label: str | None, with_labels: bool
) -> tuple[str, NDArray[Any], NDArray[Any] | None]:
    """The name for messages, the items, and the labels where they are in the same file."""
    if not isinstance(items, (str, Path)):
        return "the array", np.asarray(items), None
    path = Path(items).expanduser()
    suffix = path.suffix.lower()
    if not path.is_file():
        raise InputError(f"{path} is not a file; give an .npy, .npz or .parquet file")
    if suffix == ".npy":
        return str(path), read_npy(path), None
    if suffix == ".npz":
        return str(path), *read_npz(path, embedding, label, with_labels)
    if suffix in (".parquet", ".pq"):
        return str(path), *read_parquet(path, embedding, label, with_labels)
    raise InputError(
        f"{path} ends in {suffix or 'nothing'}; arrays are read from .npy, .npz and .parquet files"
    )


def _read_labels(labels: Source) -> tuple[str, NDArray[Any]]:
    if not isinstance(labels, (str, Path)):
        return "the labels", np.asarray(labels)
    path = Path(labels).expanduser()
    if path.suffix.lower() != ".npy" or not path.is_file():
        raise InputError(f"{path} is not an .npy file; give labels as an array or an .npy file")
    return str(path), np.array(read_npy(path))


def number_classes(labels: NDArray[Any], source: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as numbers from 0, and the names of the classes, sorted.

    Whole numbers are sorted as numbers and text as text; each becomes a class of that name.
    """
    if labels.dtype.kind == "f" and bool(np.all(labels == np.floor(labels))):
        labels = labels.astype(np.int64)  # whole numbers, as some tools write them
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels):
        labels = labels.astype(str)
    if labels.dtype.kind not in "iubUST":
        raise InputError(
            f"{source}: labels have dtype {labels.dtype}; expected whole numbers or text, without "
            "gaps"
        )
    names, numbers = np.unique(labels, return_inverse=True)
    texts = [n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in names]
    return numbers.astype(np.int64), tuple(texts)


def _checked_items(array: NDArray[Any], source: str) -> ArrayItems:
    """Refuse NaN and infinity, also what becomes it as float32; a chunk at a time."""
    try:
        store = ArrayItems(array)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    if array.dtype.kind != "f":  # images, or whole numbers
        return store
    rows = max(1, CHUNK // max(array.shape[1], 1))
    for start in range(0, len(array), rows):
        with np.errstate(over="ignore"):
            chunk = array[start : start + rows].astype(np.float32)
        bad = np.flatnonzero(~np.isfinite(chunk).all(axis=1))
        if bad.size:
            row = start + int(bad[0])
            raise InputError(
                f"{source}: row {row} has values that are NaN, infinite or too large for float32 "
                f"({bad.size} such rows from row {start} to {start + len(chunk) - 1}); drop or "
                "mend them"
            )
    return store
