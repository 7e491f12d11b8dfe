"""Image files: decoded, turned upright, scaled and cropped to one size, on several threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from flowhash.data.item_sources import Kind
from flowhash.durable_files import open_regular_file, reading
from flowhash.errors import DamagedFileError, StorageError, reason
from flowhash.extras import require
from flowhash.progress_bars import tracked
from flowhash.threads import available_threads

# Formats that are read, from folders and by the server, and how their files end. Pillow knows many
# more, some of which start other programs: an EPS file called .png would be given to Ghostscript.
ENDINGS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
}
IMAGE_FORMATS = tuple(ENDINGS)
IMAGE_SUFFIXES = frozenset(ending for endings in ENDINGS.values() for ending in endings)
KEPT_BYTES = 1 << 30  # decoded images that are kept in memory at the most
Made = TypeVar("Made")
DRAFT_FACTOR = 4  # a JPEG file is decoded at least at so many times the size that is wanted


def read_image(path: str | Path, size: tuple[int, int]) -> NDArray[np.uint8]:
    """An image file as uint8 [height, width, 3]; see :func:`fit_image`.

    Raises:
        DamagedFileError: the file cannot be decoded; the message names it.
    """
    return with_image(path, max(size), lambda image: fit_image(image, size))


def with_image(path: str | Path, side: int, use: Callable[[Any], Made]) -> Made:
    """What ``use`` makes of an image file that is needed at about ``side`` pixels.

    Raises:
        DamagedFileError: the file cannot be decoded; the message names it.
    """
    image_module = require("PIL.Image", "learn")
    with reading(path, "cannot be read as an image", "delete or replace it"):
        try:
            with (
                open_regular_file(path) as file,
                image_module.open(file, formats=IMAGE_FORMATS) as image,
            ):
                width, height = image.size
                limit = image_module.MAX_IMAGE_PIXELS
                if limit is not None and width * height > limit:
                    raise _too_large(path, f"{width} × {height} pixels, more than {limit}")
                # Lets the JPEG decoder skip detail that scaling would throw away; others ignore it.
                image.draft("RGB", (DRAFT_FACTOR * side, DRAFT_FACTOR * side))
                return use(image)
        except image_module.DecompressionBombError as error:
            raise _too_large(path, reason(error)) from error
        except image_module.UnidentifiedImageError as error:
            raise DamagedFileError(
                f"{path} cannot be read as an image: it is none of {', '.join(IMAGE_FORMATS)}; "
                "delete it, or convert it"
            ) from error


def fit_image(image: Any, size: tuple[int, int]) -> NDArray[np.uint8]:
    """A PIL image as uint8 [height, width, 3].

    The image is turned as its EXIF orientation says, scaled so that it just covers ``size``, and
    cropped to its middle.
    """
    image_module = require("PIL.Image", "learn")
    operations = require("PIL.ImageOps", "learn")
    upright = in_colour(operations.exif_transpose(image), image_module)
    fitted = operations.fit(upright, (size[1], size[0]), image_module.Resampling.BILINEAR)
    return np.array(fitted, np.uint8)


def read_pictures(
    pictures: Sequence[Any], size: tuple[int, int], threads: int | None = None
) -> NDArray[np.uint8]:
    """Image files and PIL images as uint8 [n, height, width, 3]; like :func:`read_image`."""
    out = np.empty((len(pictures), *size, 3), np.uint8)

    def one(place: int) -> None:
        picture = pictures[place]
        if hasattr(picture, "convert"):
            out[place] = fit_image(picture, size)
        else:
            out[place] = read_image(picture, size)

    with ThreadPoolExecutor(threads or available_threads()) as pool:
        list(pool.map(one, range(len(pictures))))
    return out


def in_colour(image: Any, image_module: Any) -> Any:
    """An image in RGB; 16 bits of grey become 8 by their upper half, where Pillow would clip."""
    if image.mode.startswith("I"):
        grey = np.clip(np.asarray(image).astype(np.int64), 0, 65535) >> 8
        image = image_module.fromarray(grey.astype(np.uint8))
    return image.convert("RGB")


def _too_large(path: str | Path, reason: str) -> DamagedFileError:
    return DamagedFileError(
        f"{path} is too large an image, or made to fill the memory: {reason}. Delete it, or raise "
        "PIL.Image.MAX_IMAGE_PIXELS if you trust it"
    )


class ImageFolder:
    """Images in files, decoded when they are taken.

    Decoded images are small next to their files. Where all of them fit into a gigabyte they are
    kept, so that a second epoch decodes nothing.

    Args:
        paths: the files.
        size: (height, width) that they are brought to.
        threads: that decode; all available cores by default.
    """

    kind: Kind = "images"

    def __init__(
        self, paths: Sequence[str | Path], size: tuple[int, int], threads: int | None = None
    ) -> None:
        self.paths = [str(path) for path in paths]
        self.size = size
        self.threads = threads or available_threads()
        self._kept: NDArray[np.uint8] | None = None
        self._is_kept = np.zeros(len(self.paths), bool)
        if len(self.paths) * size[0] * size[1] * 3 <= KEPT_BYTES:
            self._kept = np.empty((len(self.paths), *size, 3), np.uint8)

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images at ``positions``, uint8 [n, height, width, 3].

        Raises:
            DamagedFileError: a file cannot be decoded; the message names it.
        """
        if self._kept is None:
            return self._decode(positions)
        missing = np.unique(positions[~self._is_kept[positions]])
        if missing.size:
            self._kept[missing] = self._decode(missing)
            self._is_kept[missing] = True
        taken: NDArray[np.uint8] = self._kept[positions]
        return taken

    def _decode(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        return read_pictures([self.paths[place] for place in positions], self.size, self.threads)

    def verify(self, progress: bool = True) -> list[str]:
        """Decode every file; the messages about those that cannot be, in order. Empty is good."""

        def complaint(path: str) -> str | None:
            try:
                read_image(path, self.size)
            except StorageError as error:
                return str(error)
            return None

        with ThreadPoolExecutor(self.threads) as pool:
            found = tracked(
                pool.map(complaint, self.paths), "look at images", len(self.paths), progress
            )
            return [message for message in found if message]
