"""Augmentation of images: zero-pad, crop at random, flip, cut out; drawn for each image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data.pixels import CUTOUT_UNITS, crop_flip
from flowhash.errors import InputError

LARGEST_PAD = 16383  # twice of it is an offset, which is stored as int16


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
        out = np.empty_like(images)
        crop_flip(images, draws, self.pad, self.cutout, out)
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
