"""Folders of images: one sub-folder a class, perhaps under ``train``, ``val`` and ``test``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flowhash.data.files.image_files import IMAGE_FORMATS, IMAGE_SUFFIXES, ImageFolder
from flowhash.data.labelled_data import LabelledItems, Splits, split_in_three
from flowhash.errors import Argument, InputError

FOLDERS = {"train": ("train",), "validation": ("val", "valid", "validation"), "test": ("test",)}
LITTER = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"})  # of file managers
NAMED = 3  # files that a message names


def image_folder(
    path: str | Path,
    size: int | tuple[int, int] = (32, 32),
    validation: float = 0.1,
    test: float = 0.0,
    seed: int = 0,
    ignore_other: bool = False,
    threads: int | None = None,
    progress: bool = True,
) -> Splits:
    """A folder of images, one sub-folder a class, read as they are needed.

    Sub-folders called ``train`` and ``val`` (or ``valid``, ``validation``) and ``test`` with
    nothing else beside them are splits, and have the classes below them. A split that is not there
    is held out of the training images. Hidden files and those of file managers are passed over.

    Preprocessing is /255, then the mean and spread of each channel over the training split.

    Args:
        path: the folder.
        size: (height, width), or one number for both, that images are scaled and cropped to. The
            default, 32 × 32, is what the paper's network takes.
        validation: share of each class that is held out, where there is no ``val``.
        test: share that is held out for the final figures, where there is no ``test``; 0 is none.
        seed: of the split.
        ignore_other: whether to pass over files that are not images, instead of naming them.
        threads: that decode; all available cores by default.
        progress: show a bar where it takes long.

    Raises:
        InputError: the folder is not laid out like this; the message names what is wrong.
        DamagedFileError: an image cannot be decoded. Images are decoded when they are taken;
            :meth:`ImageFolder.verify` looks at all of them.
    """
    root = Path(path).expanduser()
    pixels = _checked_size(size)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; give one that has a sub-folder for each class")
    given = _given_splits(root)
    everything = _labelled(given["train"], pixels, ignore_other, threads)
    names = everything.class_names
    others: dict[str, Any] = {
        name: _labelled(folder, pixels, ignore_other, threads, names)
        for name, folder in given.items()
        if name != "train"
    }
    shares = (0.0 if "validation" in given else validation, 0.0 if "test" in given else test)
    splits = split_in_three(
        everything, *shares, seed, mean="channel", spread="channel", progress=progress
    )
    return replace(splits, **others)


def _checked_size(size: int | tuple[int, int]) -> tuple[int, int]:
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise InputError(f"size is {size!r}; expected (height, width) in pixels, or one number")
    return sides[0], sides[1]


def _given_splits(root: Path) -> dict[str, Path]:
    """The folders of the splits: at least "train", which is ``root`` where none are given."""
    folders = {folder.name.lower(): folder for folder in _folders(root)}
    every = {name for names in FOLDERS.values() for name in names}
    if "train" not in folders or not folders.keys() <= every:
        return {"train": root}
    return {
        split: folders[name]
        for split, names in FOLDERS.items()
        for name in names
        if name in folders
    }


def _is_litter(name: str) -> bool:
    return name.startswith(".") or name.lower() in LITTER


def _folders(root: Path) -> list[Path]:
    return sorted(
        entry for entry in root.iterdir() if entry.is_dir() and not _is_litter(entry.name)
    )


def _labelled(
    root: Path,
    size: tuple[int, int],
    ignore_other: bool,
    threads: int | None,
    names: tuple[str, ...] | None = None,
) -> LabelledItems:
    """The images below each sub-folder of ``root``.

    A split beside the training images has their classes, ``names``, and at least one image of each
    sub-folder; the training images two.
    """
    folders = _folders(root)
    _check_layout(root, folders, names)
    known = names or tuple(folder.name for folder in folders)
    numbers = {name: number for number, name in enumerate(known)}
    paths: list[str] = []
    labels: list[int] = []
    for folder in folders:
        images = find_images(folder, ignore_other)
        if len(images) < (2 if names is None else 1):
            has = "a single image" if images else "no images"
            raise InputError(
                f"{folder} is a class with {has}; training needs two or more of each, and others "
                "at least one. Add images, or remove the folder"
            )
        paths += images
        labels += [numbers[folder.name]] * len(images)
    items = ImageFolder(paths, size, threads)
    return LabelledItems(items, np.asarray(labels, np.int64), known, str(root))


def _check_layout(root: Path, folders: list[Path], names: tuple[str, ...] | None) -> None:
    loose = [entry.name for entry in root.iterdir() if _is_image(entry.name) and entry.is_file()]
    if loose:
        raise InputError(
            f"{root} has images beside its sub-folders ({_some(loose)}); every image must be in "
            "the sub-folder of its class"
        )
    if names is None and len(folders) < 2:
        raise InputError(
            f"{root} has {len(folders)} sub-folders; expected two or more, one for each class"
        )
    if not folders:
        raise InputError(f"{root} has no sub-folders; expected one for each class")
    unknown = [folder.name for folder in folders if names is not None and folder.name not in names]
    if unknown:
        raise InputError(
            f"{root} has classes that the training folder lacks: {_some(unknown)}; expected the "
            "same names in each split"
        )


def _is_image(name: str) -> bool:
    return not _is_litter(name) and Path(name).suffix.lower() in IMAGE_SUFFIXES


def find_images(folder: Path, ignore_other: bool) -> list[str]:
    """All images in a folder and below it, in the order of their names.

    Raises:
        InputError: there are other files too, and ``ignore_other`` is not set.
    """
    images, others = [], []
    for where, below, files in os.walk(folder):
        below[:] = [name for name in below if not _is_litter(name)]
        for name in files:
            if _is_image(name):
                images.append(str(Path(where) / name))
            elif not _is_litter(name):
                others.append(str(Path(where) / name))
    if others and not ignore_other:
        raise InputError(
            f"{folder} has files that are not images: {_some(sorted(others))}; expected "
            f"{', '.join(IMAGE_FORMATS)}. Remove or convert them, or pass over them with",
            Argument("ignore_other", "True"),
        )
    return sorted(images)


def _some(names: list[str]) -> str:
    """A few names for a message."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(sorted(names)[:NAMED]) + more
