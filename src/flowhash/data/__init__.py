"""Data sets: CIFAR-100, ImageNet32, folders of images, arrays of embeddings, digits.

``open_data`` opens any of them. The names below load their module when first used, so that a data
set asks for no package but its own. No module is called like one of them: importing a module sets
its name on the package, and would hide the function.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowhash.data.augment import Augmentation
    from flowhash.data.cifar import cifar100
    from flowhash.data.collection import Collection, open_collection
    from flowhash.data.folder import ImageFolder, image_folder
    from flowhash.data.handwritten import digits
    from flowhash.data.imagenet import imagenet32
    from flowhash.data.items import Items
    from flowhash.data.labelled import LabelledItems, Splits
    from flowhash.data.opening import open_data
    from flowhash.data.pairing import open_pairs
    from flowhash.data.preprocess import Preprocessing
    from flowhash.data.split import stratified
    from flowhash.data.tabular import arrays
    from flowhash.data.unseen import unseen_classes

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
