"""Scikit-learn's handwritten digits, which come with it: small, for a first try."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data.item_sources import ArrayItems
from flowhash.data.labelled_data import LabelledItems, Splits, split_in_three
from flowhash.extras import require

BRIGHTEST = 16
SIDE = 8


def digits(validation: float = 0.2, test: float = 0.2, seed: int = 0) -> Splits:
    """1,797 handwritten digits of 8 × 8 pixels, as vectors [n, 64] from 0 to 1.

    Args:
        validation: share of each digit's images that is held out for choices.
        test: share that is held out for the final figures.
        seed: of the split.

    Example:
        >>> splits = digits()
        >>> len(splits.train), len(splits.validation), len(splits.test)
        (1079, 359, 359)
    """
    loaded = require("sklearn.datasets", "learn").load_digits()
    pixels = (loaded.data / BRIGHTEST).astype(np.float32)
    names = tuple(str(digit) for digit in range(10))
    everything = LabelledItems(ArrayItems(pixels), loaded.target, names, "digits")
    return split_in_three(everything, validation, test, seed)


def draw_digit(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """A digit, pixels from 0 to 1 [64], as an image, dark on light [8, 8, 3]."""
    grey = 255 - 255 * pixels.reshape(SIDE, SIDE)
    return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
