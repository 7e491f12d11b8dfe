"""Data sets: CIFAR-100, ImageNet32, folders of images, arrays of embeddings, digits.

``open_data`` opens any of them. The names below load their module when first used, so that a data
set asks for no package but its own. No module is called like one of them: importing a module sets
its name on the package, and would hide the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.data.augmentation import Augmentation as Augmentation
    from flowhash.data.data_registry import open_data as open_data
    from flowhash.data.files.image_files import ImageFolder as ImageFolder
    from flowhash.data.item_collection import (
        Collection as Collection,
        open_collection as open_collection,
    )
    from flowhash.data.item_sources import Items as Items
    from flowhash.data.labelled_data import (
        LabelledItems as LabelledItems,
        Splits as Splits,
        open_pairs as open_pairs,
        stratified as stratified,
        unseen_classes as unseen_classes,
    )
    from flowhash.data.preprocess import Preprocessing as Preprocessing
    from flowhash.data.sets.cifar import cifar100 as cifar100
    from flowhash.data.sets.embedding_arrays import arrays as arrays
    from flowhash.data.sets.handwritten_digits import digits as digits
    from flowhash.data.sets.image_folders import image_folder as image_folder
    from flowhash.data.sets.imagenet import imagenet32 as imagenet32

if TYPE_CHECKING:  # for other rooms
    from flowhash.data.data_registry import DATA_FILES as DATA_FILES, NAMED as NAMED
    from flowhash.data.files.array_files import (
        npz_array as npz_array,
        npz_names as npz_names,
        read_npy as read_npy,
        release_pages as release_pages,
    )
    from flowhash.data.files.image_files import (
        DRAFT_FACTOR as DRAFT_FACTOR,
        IMAGE_FORMATS as IMAGE_FORMATS,
        IMAGE_SUFFIXES as IMAGE_SUFFIXES,
        fit_image as fit_image,
        read_pictures as read_pictures,
    )
    from flowhash.data.item_payloads import (
        LABEL as LABEL,
        NAME as NAME,
        PICTURE as PICTURE,
        PICTURE_MEDIA as PICTURE_MEDIA,
        picture_of as picture_of,
        plain_payload as plain_payload,
        small_picture as small_picture,
    )
    from flowhash.data.item_sources import ArrayItems as ArrayItems
    from flowhash.data.labelled_data import (
        checked_pairs as checked_pairs,
        shuffled_ranks as shuffled_ranks,
    )
    from flowhash.data.sets.embedding_arrays import any_arrays as any_arrays
    from flowhash.data.sets.handwritten_digits import draw_digit as draw_digit
    from flowhash.data.sets.image_folders import find_images as find_images

__all__, __getattr__, __dir__ = lazy_exports(__spec__)
