"""From what a data set holds to what a network takes: scale, mean, spread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from flowhash.data.augmentation import Augmentation, normalise, normalise_crop_flip
from flowhash.data.item_sources import Kind
from flowhash.errors import InputError, reason
from flowhash.progress_bars import tracked

if TYPE_CHECKING:
    from flowhash.data.labelled_data import LabelledItems

Mean = Literal["pixel", "channel", "dimension", "none"]
Spread = Literal["channel", "global", "none"]

LARGEST = 1 << 24  # pixels of an image for a network: mean and spread are held for each
LONGEST = 1e15  # of a vector for a network; its products go up to the square of it
CHUNK = 2048  # items


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """Turns what a data set holds into what a network takes: (x · scale - mean) / std.

    It is saved with the encoder: :meth:`to_json` has the settings, :meth:`arrays` the arrays, and
    :meth:`from_json` puts them together again.

    Attributes:
        kind: images or vectors.
        size: (height, width) of images, None for vectors.
        scale: what values are multiplied by first, such as 1/255.
        mean: float32 [height, width, 3], [3], [dim] or a scalar; in scaled units.
        std: float32, like ``mean``; what is left is divided by it.

    Raises:
        InputError: the parts do not fit each other.
    """

    kind: Kind
    size: tuple[int, int] | None = None
    scale: float = 1.0
    mean: NDArray[np.float32] = field(default_factory=lambda: np.zeros((), np.float32))
    std: NDArray[np.float32] = field(default_factory=lambda: np.ones((), np.float32))
    _mean: NDArray[np.float32] = field(init=False, repr=False)
    _inverse: NDArray[np.float32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in ("images", "vectors"):
            raise InputError(f'kind is {self.kind!r}; expected "images" or "vectors"')
        if (self.size is not None) != (self.kind == "images"):
            raise InputError(
                f"kind is {self.kind} and size is {self.size}; images have a (height, width), "
                "vectors have None"
            )
        if self.size is not None and not (
            len(self.size) == 2 and min(self.size) > 0 and math.prod(self.size) <= LARGEST
        ):
            raise InputError(
                f"size is {reason(self.size):.60}; expected a (height, width) of at most {LARGEST} "
                "pixels in all"
            )
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"scale is {self.scale}; expected a finite number above 0")
        for name in ("mean", "std"):
            array = np.array(getattr(self, name), np.float32)
            if not np.isfinite(array).all():
                raise InputError(f"{name} has values that are not finite; fit it anew")
            object.__setattr__(self, name, array)
        if self.std.min(initial=np.inf) <= 0:
            raise InputError("std has values that are not above 0; use 1 where nothing varies")
        object.__setattr__(self, "_mean", self._whole(self.mean, "mean"))
        object.__setattr__(self, "_inverse", 1 / self._whole(self.std, "std"))

    def _whole(self, array: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        """``array`` at the full shape of an image, which the compiled passes take."""
        if self.size is None:
            if array.ndim > 1:
                raise InputError(f"{name} has shape {array.shape}; expected [dim] or a scalar")
            return array
        height, width = self.size
        if array.shape not in ((), (3,), (height, width, 3)):
            raise InputError(
                f"{name} has shape {array.shape}; expected ({height}, {width}, 3), (3,) or a "
                f"scalar for images of {height} × {width} pixels"
            )
        return np.array(np.broadcast_to(array, (height, width, 3)))

    @classmethod
    def fit(
        cls,
        data: LabelledItems,
        *,
        mean: Mean | None = None,
        spread: Spread | None = None,
        scale: float | None = None,
        progress: bool = True,
    ) -> Preprocessing:
        """Measure the mean and spread of ``data``, chunk by chunk, in float64.

        Args:
            data: the training split, and nothing else.
            mean: "pixel" (the default for images), "channel", "dimension" (the default for
                vectors) or "none".
            spread: "none" (the default for images), "channel" for images, or "global" (the default
                for vectors): one number for all dimensions. It keeps angles and the order of
                distances, where a spread for each dimension would raise those that are mostly
                noise to the weight of all others.
            scale: 1/255 by default for images, 1 for vectors.
            progress: show a bar where it takes long.
        """
        if len(data) == 0:
            raise InputError(f"{data.source} has no items to learn from; expected one or more")
        kind = data.items.kind
        choices: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
            "images": (("pixel", "channel", "none"), ("none", "channel")),
            "vectors": (("dimension", "none"), ("global", "none")),
        }
        means, spreads = choices[kind]
        mean_of, spread_of = mean or means[0], spread or spreads[0]
        if mean_of not in means or spread_of not in spreads:
            raise InputError(
                f"mean is {mean_of!r} and spread is {spread_of!r}; for {kind} choose a mean of "
                f"{', '.join(means)} and a spread of {', '.join(spreads)}"
            )
        if scale is None:
            scale = 1 / 255 if kind == "images" else 1.0
        size = None
        if kind == "images":
            size, middle, std = image_statistics(data, scale, mean_of, spread_of, progress)
        else:
            middle, std = vector_statistics(data, scale, mean_of, spread_of, progress)
        return cls(kind, size, scale, middle, std)

    def __call__(self, batch: NDArray[Any]) -> NDArray[np.float32]:
        """What a network takes.

        Args:
            batch: uint8 [n, height, width, 3], or vectors [n, dim].

        Returns:
            float32 [n, 3, height, width] whose memory is channels-last, or float32 [n, dim].
        """
        batch = self._checked(batch)
        if self.kind == "vectors":
            scaled = batch.astype(np.float32)
            scaled *= np.float32(self.scale)
            scaled -= self._mean
            scaled *= self._inverse
            _refuse_long(scaled)
            return scaled
        images = np.require(batch, requirements=["C", "W"])
        out = np.empty(images.shape, np.float32)
        flat = (len(images), self._mean.size)
        normalise(
            images.reshape(flat), np.float32(self.scale),
            self._mean.reshape(-1), self._inverse.reshape(-1), out.reshape(flat),
        )  # fmt: skip
        return out.transpose(0, 3, 1, 2)

    def augmented(
        self, images: NDArray[np.uint8], draws: NDArray[np.int16], augmentation: Augmentation
    ) -> NDArray[np.float32]:
        """:meth:`__call__`, then pad with zeros, crop and flip, in one compiled pass.

        Args:
            images: uint8 [n, height, width, 3].
            draws: int16 [n, 5] of ``augmentation.draw``.
            augmentation: what is done.

        Returns:
            float32 [n, 3, height, width] whose memory is channels-last. Each pixel met the mean of
            its place in the original; padding and cut-outs are exact zeros.
        """
        images = self._checked(images)
        images, draws = augmentation.checked(images, draws)
        out = np.empty(images.shape, np.float32)
        normalise_crop_flip(
            images, draws, augmentation.pad, augmentation.cutout, np.float32(self.scale),
            self._mean, self._inverse, out,
        )  # fmt: skip
        return out.transpose(0, 3, 1, 2)

    def _checked(self, values: Any) -> NDArray[Any]:
        batch: NDArray[Any] = np.asarray(values)
        if self.kind == "vectors":
            dim = max(self.mean.shape + self.std.shape, default=None)
            fits = batch.ndim == 2 and dim in (None, batch.shape[1])
            if not fits or batch.dtype.kind not in "fiub":
                raise InputError(
                    f"the batch has shape {batch.shape} and dtype {batch.dtype}; expected vectors "
                    f"[n, {dim or 'dim'}]. Give a single one as values[None, :]"
                )
            return batch
        assert self.size is not None
        if batch.ndim != 4 or batch.shape[1:] != (*self.size, 3) or batch.dtype != np.uint8:
            height, width = self.size
            raise InputError(
                f"the batch has shape {batch.shape} and dtype {batch.dtype}; expected images uint8 "
                f"[n, {height}, {width}, 3]. Resize images to {height} × {width} before, and give "
                "a single one as image[None]"
            )
        return batch

    def to_json(self) -> dict[str, Any]:
        """The small settings, ready for JSON; the rest is in :meth:`arrays`."""
        size = None if self.size is None else list(self.size)
        return {"kind": self.kind, "size": size, "scale": self.scale}

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The arrays that go with :meth:`to_json`."""
        return {"mean": self.mean, "std": self.std}

    @classmethod
    def from_json(
        cls, settings: Mapping[str, Any], arrays: Mapping[str, NDArray[np.float32]]
    ) -> Preprocessing:
        """Put together what :meth:`to_json` and :meth:`arrays` took apart."""
        try:
            size = settings["size"]
            if size is not None:
                height, width = (int(side) for side in size)
                size = (height, width)
            scale = float(settings["scale"])
            return cls(settings["kind"], size, scale, arrays["mean"], arrays["std"])
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"the preprocessing cannot be put together: {reason(repr(error))}; expected the "
                "settings kind, size and scale and the arrays mean and std"
            ) from error


def _refuse_long(vectors: NDArray[np.float32]) -> None:
    """Refuse vectors whose products overflow: they would end as zeros, all in one bucket."""
    with np.errstate(over="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors)
    fits = squares <= LONGEST**2
    if not fits.all():
        row = int(np.argmin(fits))
        length = float(np.linalg.norm(vectors[row].astype(np.float64)))
        raise InputError(
            f"vector {row} of a batch has length {length:g} after preprocessing; expected at most "
            f"{LONGEST:g}. Divide all vectors by the same number, and train again"
        )


def chunks(data: LabelledItems, progress: bool) -> Iterator[NDArray[Any]]:
    """The items of ``data``, a chunk at a time."""
    starts = range(0, len(data), CHUNK)
    for start in tracked(starts, f"reading {data.source}", len(starts), progress):
        yield data.take(np.arange(start, min(start + CHUNK, len(data))))


def image_statistics(
    data: LabelledItems, scale: float, mean: str, spread: str, progress: bool
) -> tuple[tuple[int, int], NDArray[np.float32], NDArray[np.float32]]:
    """Size, mean and standard deviation of images, the last two of scaled values.

    Pixels are small whole numbers, so their sums and sums of squares are exact.
    """
    height, width, _ = data.take(np.zeros(1, np.int64)).shape[1:]
    if mean == "none" and spread == "none":
        return (height, width), np.zeros((), np.float32), np.ones((), np.float32)
    total = np.zeros((height, width, 3), np.int64)
    squares = np.zeros(3, np.int64)
    for images in chunks(data, progress):
        total += images.sum(axis=0, dtype=np.int64)
        if spread == "channel":
            flat = images.reshape(-1, 3)
            squares += [np.square(flat[:, c], dtype=np.int64).sum() for c in range(3)]
    pixels = len(data) * height * width
    channel = total.sum(axis=(0, 1)) / pixels
    middle: NDArray[Any] = np.zeros(())
    if mean != "none":
        middle = channel if mean == "channel" else total / len(data)
    std: NDArray[Any] = np.ones(())
    if spread == "channel":
        variance = squares / pixels - channel**2
        # One grey value throughout has no spread; dividing by 1 leaves it where it is.
        std = np.where(variance > 1e-6, np.sqrt(np.maximum(variance, 0)) * scale, 1.0)
    return (height, width), (middle * scale).astype(np.float32), std.astype(np.float32)


def vector_statistics(
    data: LabelledItems, scale: float, mean: str, spread: str, progress: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean of each dimension and one standard deviation for all, of scaled values.

    Two passes, since the difference of two large sums would lose the spread.
    """
    middle: NDArray[Any] = np.zeros(())
    if mean != "none":
        parts = chunks(data, progress)
        middle = sum(part.sum(axis=0, dtype=np.float64) for part in parts) / len(data)
    std = 1.0
    if spread == "global":
        total, count = 0.0, 0
        for chunk in chunks(data, progress):
            total += float(np.square(chunk - middle).sum())
            count += chunk.size
        std = scale * (total / count) ** 0.5
    if not np.isfinite(std) or not np.isfinite(middle).all():
        raise InputError(f"{data.source}: the mean of the vectors is not finite; look for NaN")
    return (middle * scale).astype(np.float32), np.asarray(std or 1.0, np.float32)
