"""Compiled passes over pixels: normalise, crop, flip and cut out.

All images are [n, height, width, 3]. Outputs are written whole: callers need not clear them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel

# A cut-out's middle is drawn in units of a side's 32768th, because draws do not know the size.
CUTOUT_UNITS = 32768


@inner_kernel
def normalise(
    images: NDArray[np.uint8],
    scale: Any,
    mean: NDArray[np.float32],
    inverse: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write (images · scale - mean) · inverse to ``out``; arrays are [n, values] or [values].

    The inverse of the spread, because a division that looks for zeros is no SIMD code.
    """
    for image in range(images.shape[0]):
        for value in range(images.shape[1]):
            scaled = np.float32(images[image, value]) * scale
            out[image, value] = (scaled - mean[value]) * inverse[value]


@inner_kernel
def cut_square(image: NDArray[Any], row_draw: Any, column_draw: Any, side: int) -> None:
    """Set a square to zero; its middle is anywhere in the image, its edges may stick out."""
    height, width = image.shape[0], image.shape[1]
    top = np.int64(row_draw) * height // CUTOUT_UNITS - side // 2
    left = np.int64(column_draw) * width // CUTOUT_UNITS - side // 2
    for row in range(max(top, 0), min(top + side, height)):
        for column in range(max(left, 0), min(left + side, width)):
            for channel in range(3):
                image[row, column, channel] = 0


@inner_kernel
def crop_flip(
    images: NDArray[np.uint8], draws: NDArray[np.int16], pad: int, side: int, out: NDArray[np.uint8]
) -> None:
    """Pad with zeros, crop at the drawn offset, flip where drawn, cut a square of ``side``."""
    height, width = images.shape[1], images.shape[2]
    for image in range(images.shape[0]):
        down = np.int64(draws[image, 0]) - pad
        right = np.int64(draws[image, 1]) - pad
        flip = draws[image, 2] != 0
        for row in range(height):
            from_row = row + down
            for column in range(width):
                from_column = (width - 1 - column if flip else column) + right
                inside = 0 <= from_row < height and 0 <= from_column < width
                for channel in range(3):
                    out[image, row, column, channel] = (
                        images[image, from_row, from_column, channel] if inside else 0
                    )
        if side > 0:
            cut_square(out[image], draws[image, 3], draws[image, 4], side)


@inner_kernel
def normalise_row(
    pixels: NDArray[np.uint8],
    scale: Any,
    mean: NDArray[np.float32],
    inverse: NDArray[np.float32],
    right: Any,
    flip: bool,
    out: NDArray[np.float32],
) -> None:
    """One row of :func:`normalise_crop_flip`; all arrays are [width, 3]."""
    width = pixels.shape[0]
    for column in range(width):
        from_column = (width - 1 - column if flip else column) + right
        if 0 <= from_column < width:
            for channel in range(3):
                scaled = np.float32(pixels[from_column, channel]) * scale
                value = scaled - mean[from_column, channel]
                out[column, channel] = value * inverse[from_column, channel]
        else:
            for channel in range(3):
                out[column, channel] = 0.0


@inner_kernel
def normalise_crop_flip(
    images: NDArray[np.uint8],
    draws: NDArray[np.int16],
    pad: int,
    side: int,
    scale: Any,
    mean: NDArray[np.float32],
    inverse: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """:func:`normalise`, then pad with zeros, crop, flip and cut out, in one pass.

    A pixel meets the mean of the place where it was, not of the place where it goes; padding and
    cut-outs are exact zeros.
    """
    height = images.shape[1]
    for image in range(images.shape[0]):
        down = np.int64(draws[image, 0]) - pad
        right = np.int64(draws[image, 1]) - pad
        flip = draws[image, 2] != 0
        for row in range(height):
            from_row = row + down
            if 0 <= from_row < height:
                normalise_row(
                    images[image, from_row], scale, mean[from_row], inverse[from_row],
                    right, flip, out[image, row],
                )  # fmt: skip
            else:
                out[image, row] = 0.0
        if side > 0:
            cut_square(out[image], draws[image, 3], draws[image, 4], side)
