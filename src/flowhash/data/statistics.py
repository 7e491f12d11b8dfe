"""Mean and spread of a training split, streamed: one chunk of items in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import InputError
from flowhash.progress_bars import tracked

if TYPE_CHECKING:
    from flowhash.data.labelled import LabelledItems

CHUNK = 2048  # items


def chunks(data: LabelledItems) -> Iterator[NDArray[Any]]:
    """The items of ``data``, a chunk at a time."""
    starts = range(0, len(data), CHUNK)
    for start in tracked(starts, f"reading {data.source}", len(starts)):
        yield data.take(np.arange(start, min(start + CHUNK, len(data))))


def image_statistics(
    data: LabelledItems, scale: float, mean: str, spread: str
) -> tuple[tuple[int, int], NDArray[np.float32], NDArray[np.float32]]:
    """Size, mean and standard deviation of images, the last two of scaled values.

    Pixels are small whole numbers, so their sums and sums of squares are exact.
    """
    height, width, _ = data.take(np.zeros(1, np.int64)).shape[1:]
    if mean == "none" and spread == "none":
        return (height, width), np.zeros((), np.float32), np.ones((), np.float32)
    total = np.zeros((height, width, 3), np.int64)
    squares = np.zeros(3, np.int64)
    for images in chunks(data):
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
    data: LabelledItems, scale: float, mean: str, spread: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean of each dimension and one standard deviation for all, of scaled values.

    Two passes, since the difference of two large sums would lose the spread.
    """
    middle: NDArray[Any] = np.zeros(())
    if mean != "none":
        middle = sum(chunk.sum(axis=0, dtype=np.float64) for chunk in chunks(data)) / len(data)
    std = 1.0
    if spread == "global":
        total, count = 0.0, 0
        for chunk in chunks(data):
            total += float(np.square(chunk - middle).sum())
            count += chunk.size
        std = scale * (total / count) ** 0.5
    if not np.isfinite(std) or not np.isfinite(middle).all():
        raise InputError(f"{data.source}: the mean of the vectors is not finite; look for NaN")
    return (middle * scale).astype(np.float32), np.asarray(std or 1.0, np.float32)
