"""``Collection``: items to be stored and found; like a data set, but labels are not needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data.data_registry import DATA_FILES, NAMED, load_function, open_data
from flowhash.data.files.image_files import IMAGE_SUFFIXES, ImageFolder
from flowhash.data.item_payloads import LABEL, NAME, PICTURE, file_thumbnail, thumbnail
from flowhash.data.item_sources import ArrayItems, ChainedItems, Items
from flowhash.data.sets.embedding_arrays import any_arrays
from flowhash.data.sets.image_folders import find_images
from flowhash.errors import InputError
from flowhash.threads import available_threads

Picture = Callable[[int, NDArray[Any]], str]
SPLITS = ("train", "validation", "test", "all")


@dataclass(frozen=True, eq=False)
class Collection:
    """Items with what a person calls them.

    Attributes:
        items: images or vectors, read by position.
        names: one an item: the file below the folder, or the row; none twice.
        labels: the class of each item, or None where it is not known.
        source: what the items came from, for messages.
        files: whether each item is a file of its own, so that its name is a good id.
        picture: makes a small picture (see ``thumbnails``) of the item at a place; None where
            there is nothing to see.
    """

    items: Items
    names: Sequence[str]
    labels: Sequence[str | None]
    source: str
    files: bool = False
    picture: Picture | None = None

    def __len__(self) -> int:
        return len(self.items)

    def take(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """The items at ``positions``: uint8 [n, height, width, 3] or float32 [n, dim]."""
        return self.items.take(positions)

    def payloads(self, start: int, taken: NDArray[Any], pictures: bool) -> list[dict[str, Any]]:
        """What is stored beside the items ``taken`` from place ``start`` on."""

        def made(place: int) -> dict[str, Any]:
            payload = {NAME: self.names[place]}
            label = self.labels[place]
            if label is not None:
                payload[LABEL] = label
            if pictures and self.picture is not None:
                payload[PICTURE] = self.picture(place, taken[place - start])
            return payload

        with ThreadPoolExecutor(available_threads()) as pool:
            return list(pool.map(made, range(start, start + len(taken))))


def open_collection(
    source: str | Path,
    *,
    size: tuple[int, int] | None = None,
    split: str = "train",
    labels: str | Path | None = None,
    embedding: str | None = None,
    label: str | None = None,
    ignore_other: bool = False,
    progress: bool = True,
    **options: Any,
) -> Collection:
    """Open items to put into a table.

    Args:
        source: a folder of images, laid out in any way (an image in a sub-folder has the name of
            the topmost one as its label); one image; an ``.npy``, ``.npz`` or ``.parquet`` file,
            with labels or without; or "digits", "cifar100", "imagenet32".
        size: (height, width) that images in files are brought to; an encoder says which.
        split: of a data set with splits: "train", "validation", "test" or "all".
        labels: an ``.npy`` file of labels beside an ``.npy`` file.
        embedding: key or column of the items; as for ``flowhash.data.arrays``.
        label: key or column of the labels.
        ignore_other: pass over files in a folder that are no images.
        progress: show bars where it takes long.
        **options: of the named data set, such as ``folder``.

    Raises:
        InputError: there is nothing to store, or it has no such option.
    """
    if split not in SPLITS:
        raise InputError(f"split is {split!r}; expected one of {', '.join(SPLITS)}")
    if isinstance(source, str) and source in NAMED:
        return _of_splits(source, split, {**options, "progress": progress})
    path = Path(source).expanduser()
    if options:
        others = " and ".join(name for name, known in NAMED.items() if known.in_folder)
        raise InputError(f"{source} takes no {' and no '.join(options)}; that is for {others}")
    if path.is_dir():
        return _of_folder(path, size or (32, 32), ignore_other)
    if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
        image = ImageFolder([path], size or (32, 32))
        return Collection(image, [path.name], [None], str(path), True, _file_picture([path]))
    if path.suffix.lower() in DATA_FILES:
        found, classes = any_arrays(path, labels, embedding, label)
        names = _Rows(len(found), f"{path.name} row")
        known = [None] * len(found) if classes is None else classes
        store = ArrayItems(found)
        return Collection(store, names, known, str(path), False, _picture(store))
    raise InputError(
        f"{source} is neither a data set nor a folder; expected {', '.join(NAMED)}, a folder of "
        f"images, an image, or a file that ends in {', '.join(DATA_FILES)}"
    )


class _Rows(Sequence[str]):
    """Names of rows, made when they are asked for."""

    def __init__(self, rows: int, prefix: str) -> None:
        self.rows, self.prefix = rows, prefix

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(self.rows))]
        if not 0 <= place < self.rows:
            raise IndexError(place)
        return f"{self.prefix} {place}"


def _of_splits(source: str, split: str, options: dict[str, Any]) -> Collection:
    splits = open_data(source, **options)
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    chosen = {
        name: part
        for name, part in parts.items()
        if part is not None and len(part) and split in (name, "all")
    }
    if not chosen:
        raise InputError(f"{source} has no {split} split; choose another one")
    names = [row for name, part in chosen.items() for row in _Rows(len(part), name)]
    labels = [part.class_names[label] for part in chosen.values() for label in part.labels.tolist()]
    store = ChainedItems([part.items for part in chosen.values()])
    picture = _picture(store, NAMED[source].draw)
    return Collection(store, names, labels, source, False, picture)


def _of_folder(root: Path, size: tuple[int, int], ignore_other: bool) -> Collection:
    paths = [Path(path) for path in find_images(root, ignore_other)]
    if not paths:
        raise InputError(f"{root} has no images; expected at least one, in it or below it")
    below = [path.relative_to(root) for path in paths]
    labels = [path.parts[0] if len(path.parts) > 1 else None for path in below]
    names = [path.as_posix() for path in below]
    store = ImageFolder(paths, size)
    return Collection(store, names, labels, str(root), True, _file_picture(paths))


def _file_picture(paths: Sequence[Path]) -> Picture:
    """From the files: what is taken has the encoder's size, which may be small."""
    return lambda place, item: file_thumbnail(paths[place])


def _picture(items: Items, draw: str | None = None) -> Picture | None:
    """Of images, or of vectors that the function ``draw`` makes images of."""
    if draw is not None:
        drawn = load_function(draw)
        return lambda place, item: thumbnail(drawn(item))
    return (lambda place, item: thumbnail(item)) if items.kind == "images" else None
