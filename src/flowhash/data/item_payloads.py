"""What FlowHash keeps beside an item for people to see: its class, its name, a small picture.

All three lie in the item's payload in the table, so that they are added, deleted and carried to
another engine together with it: there is no second store that could disagree.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data.files.image_files import in_colour, with_image
from flowhash.errors import InputError
from flowhash.extras import require

LABEL, NAME, PICTURE = "label", "name", "picture"
PICTURE_SIDE = 96  # the longer side of a picture at the most
SMALL = 32  # up to here a picture is kept without loss: it is small, and JPEG would smear it
QUALITY = 85
# Media types of pictures, and how their content begins.
PICTURE_MEDIA = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
}


def thumbnail(image: NDArray[np.uint8]) -> str:
    """An image, uint8 [height, width, 3], as a data URL of at most 96 pixels a side.

    Raises:
        InputError: it is no image.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise InputError(
            f"image has shape {image.shape} and dtype {image.dtype}; expected uint8 [height, "
            "width, 3]"
        )
    return small_picture(require("PIL.Image", "learn").fromarray(image))


def small_picture(image: Any) -> str:
    """A PIL image as a data URL: upright, in colour, at most 96 pixels a side."""
    pillow = require("PIL.Image", "learn")
    upright = require("PIL.ImageOps", "learn").exif_transpose(image)
    picture = in_colour(upright, pillow)
    picture.thumbnail((PICTURE_SIDE, PICTURE_SIDE), pillow.Resampling.LANCZOS)
    content = io.BytesIO()
    if max(picture.size) <= SMALL:
        picture.save(content, "PNG", optimize=True)
        media = "image/png"
    else:
        picture.save(content, "JPEG", quality=QUALITY)
        media = "image/jpeg"
    return f"data:{media};base64,{base64.b64encode(content.getvalue()).decode()}"


def file_thumbnail(path: str | Path) -> str:
    """An image file as a data URL; see :func:`with_image` and :func:`small_picture`."""
    return with_image(path, PICTURE_SIDE, small_picture)


def picture_of(payload: Mapping[str, Any] | None) -> tuple[str, bytes] | None:
    """The media type and content of the picture in a payload, or None if it has none.

    What is no picture of :func:`thumbnail` is none: a payload is its user's own, and a server must
    not give out a page in the name of a picture.
    """
    text = (payload or {}).get(PICTURE)
    if not isinstance(text, str) or not text.startswith("data:"):
        return None
    kind, _, content = text.removeprefix("data:").partition(",")
    media = kind.removesuffix(";base64")
    if media not in PICTURE_MEDIA or kind == media:
        return None
    try:
        found = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return None
    return (media, found) if found.startswith(PICTURE_MEDIA[media]) else None


def plain_payload(payload: Mapping[str, Any] | None) -> dict[str, Any]:
    """A payload without its picture, for answers that people or programs read."""
    return {name: value for name, value in (payload or {}).items() if name != PICTURE}
