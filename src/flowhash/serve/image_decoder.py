"""Images that clients send: decoded with care, since anybody may have made them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data import DRAFT_FACTOR, IMAGE_FORMATS, PICTURE_SIDE, fit_image, thumbnail
from flowhash.extras import require
from flowhash.serve.errors import RequestError


def decode(
    content: bytes, size: tuple[int, int], max_pixels: int, name: str = "the image"
) -> NDArray[np.uint8]:
    """An image as the encoder takes it [height, width, 3].

    The number of pixels is read from the head of the file before anything is decoded.

    Raises:
        RequestError: 413 for more than ``max_pixels``, 415 for other formats, 422 for damage.
    """
    with _opened(content, size, max_pixels, name) as image:
        return fit_image(image, size)


def decode_and_keep(
    content: bytes, size: tuple[int, int], max_pixels: int, name: str = "the image"
) -> tuple[NDArray[np.uint8], str]:
    """What ``decode`` makes, and a thumbnail to store beside it.

    Raises:
        RequestError: as ``decode``.
    """
    with _opened(content, size, max_pixels, name) as image:
        return fit_image(image, size), thumbnail(_small(image))


@contextmanager
def _opened(content: bytes, size: tuple[int, int], max_pixels: int, name: str) -> Iterator[Any]:
    pillow = require("PIL.Image", "learn")
    try:
        with warnings.catch_warnings():  # a large image is refused with words, not with a warning
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            image = pillow.open(io.BytesIO(content), formats=IMAGE_FORMATS)
        with image:
            _check_pixels(image.size, max_pixels, name)
            # Just as files are read, so that an image gives the same numbers wherever it is read.
            side = DRAFT_FACTOR * max(size)
            image.draft("RGB", (side, side))
            image.load()
            yield image
    except RequestError:
        raise
    except pillow.DecompressionBombError as error:
        raise RequestError(
            413, f"{name} is made to fill the memory: {error}", "too_many_pixels"
        ) from error
    except pillow.UnidentifiedImageError as error:
        raise RequestError(
            415, f"{name} is no image of a known format; expected {', '.join(IMAGE_FORMATS)}"
        ) from error
    except Exception as error:  # decoders fail in many ways on what is damaged
        raise RequestError(
            422, f"{name} cannot be decoded ({type(error).__name__}); send it whole, or as PNG"
        ) from error


def _check_pixels(size: tuple[int, int], most: int, name: str) -> None:
    width, height = size
    if width * height > most:
        raise RequestError(
            413,
            f"{name} has {width} × {height} pixels; expected at most {most} in all. Scale it down: "
            "the encoder looks at a small version anyway",
            "too_many_pixels",
        )


def _small(image: Any) -> NDArray[np.uint8]:
    """The whole image, upright, small enough for a thumbnail."""
    width, height = image.size
    operations = require("PIL.ImageOps", "learn")
    factor = max(1, max(width, height) / (2 * PICTURE_SIDE))
    small = (max(1, round(width / factor)), max(1, round(height / factor)))
    upright = operations.exif_transpose(image)
    if upright.size != image.size:
        small = small[::-1]
    return fit_image(upright, small[::-1])
