"""Augmentation of images, drawn for each image, and the compiled passes that do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel
from flowhash.errors import InputError

LARGEST_PAD = 16383  # twice of it is an offset, which is stored as int16
# A cut-out's middle is drawn in units of a side's 32768th, because draws do not know the size.
CUTOUT_UNITS = 32768
BLOCK = 1_000  # images whose pixels are floats at once


@dataclass(frozen=True)
class Augmentation:
    """What is done to training images: pad with zeros, crop back to the size, flip, cut out.

    What chance decides is drawn apart from what is done with it: a process that works on a slice of
    a batch draws for the whole batch and slices the draws, and so sees what one process would see.

    Attributes:
        pad: pixels of zeros on each side; the crop moves by at most as many. 0 is off.
        flip: whether every second image, by chance, is mirrored left to right.
        cutout: side of a square that is set to zero at a random place. 0 is off.

    Example:
        >>> import numpy as np
        >>> augmentation = Augmentation(pad=1, flip=False)
        >>> image = np.full((1, 2, 2, 3), 7, np.uint8)
        >>> down_and_right = np.array([[0, 0, 0, 0, 0]], np.int16)
        >>> augmentation.apply(image, down_and_right)[0, :, :, 0]
        array([[0, 0], [0, 7]], dtype=uint8)
    """

    pad: int = 4
    flip: bool = True
    cutout: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.pad <= LARGEST_PAD:
            raise InputError(f"pad is {self.pad}; choose a number of pixels, 0 to {LARGEST_PAD}")
        if self.cutout < 0:
            raise InputError(f"cutout is {self.cutout}; choose a side in pixels, or 0 for none")

    def draw(self, count: int, generator: np.random.Generator) -> NDArray[np.int16]:
        """What chance decides for ``count`` images.

        The same numbers are taken from the generator whatever is switched on, so that two runs that
        differ in one switch differ in nothing else.

        Returns:
            int16 [count, 5]: row offset and column offset of the crop in the padded image, flip,
            and the cut-out's middle, row and column in 32768ths of the height and width.
        """
        draws = np.empty((count, 5), np.int16)
        draws[:, :2] = generator.integers(0, 2 * self.pad + 1, (count, 2))
        draws[:, 2] = generator.integers(0, 2, count) * self.flip
        draws[:, 3:] = generator.integers(0, CUTOUT_UNITS, (count, 2))
        return draws

    def apply(self, images: NDArray[np.uint8], draws: NDArray[np.int16]) -> NDArray[np.uint8]:
        """The augmented images as pixels, uint8 [n, height, width, 3]; padding is black.

        Training uses :meth:`Preprocessing.augmented` instead, which pads with zeros after the mean
        was taken away, as the paper does.
        """
        images, draws = self.checked(images, draws)
        mean, inverse = (np.full(images.shape[1:], value, np.float32) for value in (0, 1))
        out = np.empty_like(images)
        for start in range(0, len(images), BLOCK):
            some = slice(start, start + BLOCK)
            made = np.empty(images[some].shape, np.float32)
            normalise_crop_flip(
                images[some], draws[some], self.pad, self.cutout, np.float32(1), mean, inverse, made
            )
            out[some] = made
        return out

    def checked(self, images: Any, draws: Any) -> tuple[NDArray[np.uint8], NDArray[np.int16]]:
        """Images and draws in the form the compiled passes take.

        Raises:
            InputError: their shapes do not fit, or a draw is for a larger padding.
        """
        images, draws = np.asarray(images), np.asarray(draws)
        if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
            raise InputError(
                f"images have shape {images.shape} and dtype {images.dtype}; augmentation takes "
                "uint8 [n, height, width, 3]. Vectors are not augmented"
            )
        if draws.shape != (len(images), 5):
            raise InputError(
                f"draws have shape {draws.shape} for {len(images)} images; expected "
                f"({len(images)}, 5), as Augmentation.draw returns them, sliced like the images"
            )
        if draws.size and not (draws[:, :2].min() >= 0 and draws[:, :2].max() <= 2 * self.pad):
            raise InputError(
                f"draws have offsets from {draws[:, :2].min()} to {draws[:, :2].max()}; expected 0 "
                f"to {2 * self.pad} for a padding of {self.pad}. Draw with the same Augmentation"
            )
        return (
            np.require(images, requirements=["C", "W"]),
            np.require(draws, np.int16, requirements=["C", "W"]),
        )


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
