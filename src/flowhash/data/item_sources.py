"""What a data set holds, read by position: images or vectors, in memory or on disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from flowhash.data.files.array_files import release_pages
from flowhash.errors import InputError

Kind = Literal["images", "vectors"]


class Items(Protocol):
    """What a data set holds: images or vectors, read by position."""

    @property
    def kind(self) -> Kind:
        """Whether the items are images or vectors."""

    def __len__(self) -> int: ...

    def take(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """The items at ``positions``, a new array.

        Returns:
            uint8 [n, height, width, 3] for images, float32 [n, dim] for vectors.
        """


def checked_positions(positions: Any, count: int, source: str) -> NDArray[np.int64]:
    """``positions`` as int64 [n], each from 0 to ``count`` - 1."""
    array = np.asarray(positions)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"positions have shape {array.shape} and dtype {array.dtype}; expected whole numbers "
            "in one dimension"
        )
    if array.min() < 0 or array.max() >= count:
        raise InputError(
            f"positions go from {array.min()} to {array.max()}, but {source} has {count} items; "
            f"give positions from 0 to {count - 1}"
        )
    return array.astype(np.int64, copy=False)


class ArrayItems:
    """Images uint8 [n, height, width, 3] or vectors [n, dim] in one array, mapped or in memory."""

    def __init__(self, array: NDArray[Any]) -> None:
        # A plain view: what is taken from a memory map is then no memory map itself.
        self.array = np.asarray(array)
        if self.array.ndim == 4 and self.array.shape[3] == 3 and self.array.dtype == np.uint8:
            self.kind: Kind = "images"
        elif self.array.ndim == 2 and self.array.dtype.kind in "fiub":
            self.kind = "vectors"
        else:
            raise InputError(
                f"items have shape {self.array.shape} and dtype {self.array.dtype}; expected "
                "images uint8 [n, height, width, 3] or vectors of numbers [n, dim]. "
                f"{self._advice()}"
            )

    def _advice(self) -> str:
        """How to store an array that holds neither."""
        if self.array.dtype.kind not in "fiub":
            return "Store numbers, such as float32"
        if self.array.ndim == 1:
            return "Store a single vector as one row: array[None]"
        if self.array.ndim == 4 and self.array.shape[3] == 3:
            return "Store images as whole numbers from 0 to 255: array.astype(numpy.uint8)"
        if self.array.ndim > 2:
            return "To compare items by all their numbers store each as a row: array.reshape(n, -1)"
        return "Store a row for each item"

    def __len__(self) -> int:
        return int(self.array.shape[0])

    def take(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """The items at ``positions``, a new array."""
        taken = self.array[positions]
        return taken if self.kind == "images" else taken.astype(np.float32, copy=False)


class PlanarImages:
    """Images stored as planes of red, green and blue, uint8 [n, 3 · height · width]."""

    kind: Kind = "images"

    def __init__(self, planes: NDArray[np.uint8], height: int, width: int) -> None:
        self.planes = np.asarray(planes)
        self.shape = (3, height, width)
        if self.planes.ndim != 2 or self.planes.shape[1] != 3 * height * width:
            raise InputError(
                f"planes have shape {self.planes.shape}; expected [n, {3 * height * width}] for "
                f"images of {height} × {width} pixels in three colours"
            )

    def __len__(self) -> int:
        return int(self.planes.shape[0])

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images at ``positions``, uint8 [n, height, width, 3]."""
        planes = self.planes[positions].reshape(-1, *self.shape)
        release_pages(self.planes)  # ten files of ImageNet32 would take 4 GB after one pass
        return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


class ChainedItems:
    """Several stores one after the other, such as the files of a data set."""

    def __init__(self, parts: Sequence[Items]) -> None:
        if not parts:
            raise InputError("no parts to chain; give at least one")
        self.kind: Kind = parts[0].kind
        if any(part.kind != self.kind for part in parts):
            raise InputError("some parts hold images and others vectors; give parts of one kind")
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *(len(part) for part in parts)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """The items at ``positions``, read part by part and put back into their order."""
        if positions.size == 0:
            return self.parts[0].take(positions)
        part_of = np.searchsorted(self.starts, positions, side="right") - 1
        taken: NDArray[Any] | None = None
        for part in np.unique(part_of):
            here = np.flatnonzero(part_of == part)
            found = self.parts[part].take(positions[here] - self.starts[part])
            if taken is None:
                taken = np.empty((positions.size, *found.shape[1:]), found.dtype)
            taken[here] = found
        assert taken is not None
        return taken


class SomeItems:
    """A choice of another store's items: a view, nothing is copied."""

    def __init__(self, items: Items, positions: NDArray[np.int64]) -> None:
        self.kind: Kind = items.kind
        self.items: Items = items
        self.positions: NDArray[np.int64] = positions
        if isinstance(items, SomeItems):  # a choice of a choice looks positions up once, not twice
            self.items = items.items
            self.positions = items.positions[positions]

    def __len__(self) -> int:
        return int(self.positions.size)

    def take(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """The items at ``positions`` of this choice."""
        return self.items.take(self.positions[positions])
