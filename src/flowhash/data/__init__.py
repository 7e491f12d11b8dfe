"""Data sets: CIFAR-100, ImageNet32, folders of images, arrays of embeddings, digits.

``open_data`` opens any of them. The names below load their module when first used, so that a data
set asks for no package but its own. No module is called like one of them: importing a module sets
its name on the package, and would hide the function.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowhash.data.augmentation import Augmentation
    from flowhash.data.data_registry import open_data
    from flowhash.data.item_collection import Collection, open_collection
    from flowhash.data.item_sources import Items
    from flowhash.data.labelled_data import (
        LabelledItems,
        Splits,
        open_pairs,
        stratified,
        unseen_classes,
    )
    from flowhash.data.preprocess import Preprocessing
    from flowhash.data.sets.cifar import cifar100
    from flowhash.data.sets.embedding_arrays import arrays
    from flowhash.data.sets.handwritten_digits import digits
    from flowhash.data.sets.image_folders import ImageFolder, image_folder
    from flowhash.data.sets.imagenet import imagenet32

# Data sets that have a name instead of a path.
NAMED = ("digits", "cifar100", "imagenet32")

_ROOMS = {
    "Augmentation": "augment",
    "Collection": "collection",
    "ImageFolder": "folder",
    "Items": "items",
    "LabelledItems": "labelled",
    "Preprocessing": "preprocess",
    "Splits": "labelled",
    "arrays": "tabular",
    "cifar100": "cifar",
    "digits": "handwritten",
    "image_folder": "folder",
    "imagenet32": "imagenet",
    "open_collection": "collection",
    "open_pairs": "pairing",
    "open_data": "opening",
    "stratified": "split",
    "unseen_classes": "unseen",
}

__all__ = [
    "Augmentation",
    "Collection",
    "ImageFolder",
    "Items",
    "LabelledItems",
    "Preprocessing",
    "Splits",
    "arrays",
    "cifar100",
    "digits",
    "image_folder",
    "imagenet32",
    "open_collection",
    "open_data",
    "open_pairs",
    "stratified",
    "unseen_classes",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use (PEP 562)."""
    if name in _ROOMS:
        return getattr(importlib.import_module(f"flowhash.data.{_ROOMS[name]}"), name)
    raise AttributeError(f"module 'flowhash.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
