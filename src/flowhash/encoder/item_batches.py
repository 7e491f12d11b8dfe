"""What a user hands over to be encoded, as batches of checked arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.argument_checks import whole_number
from flowhash.data import LabelledItems, read_pictures
from flowhash.errors import InputError

Size = tuple[int, int]


def in_batches(
    items: Any, batch_size: int, size: Size | None, dim: int | None = None
) -> tuple[Iterator[NDArray[Any]], int | None]:
    """Batches of at most ``batch_size``, and about how many items there are if that is known.

    Nothing is read before the first batch is asked for, and no more than one batch at a time.

    Args:
        items: see ``Encoder.encode``.
        batch_size: items in a batch.
        size: height and width of images, None where the encoder takes vectors.
        dim: numbers in a vector, None where that is not known.

    Returns:
        Batches uint8 [n, height, width, 3] or float32 [n, dim], none of them empty.

    Raises:
        InputError: items that cannot be used; also while the batches are asked for.
    """
    most = whole_number("batch_size", batch_size, 1)
    single = 1 if size is None else 3  # dimensions of one item
    return _checked(_pieces(items, most, single), size, dim), _expected(items)


def count_of(items: Any) -> int | None:
    """How many items there are, or None where that shows only at the end."""
    if _has_positions(items) or _is_array(items):
        return len(items) if getattr(items, "ndim", 1) else None
    if isinstance(items, list | tuple) and (not items or _is_picture(items[0])):
        return len(items)
    return None


def _expected(items: Any) -> int | None:
    """For a progress bar, which may err: a DataLoader's sampler may take items twice or never."""
    if hasattr(items, "dataset") and hasattr(items.dataset, "__len__"):
        return len(items.dataset)
    return count_of(items)


def _pieces(items: Any, batch_size: int, single: int) -> Iterator[Any]:
    """Arrays, or lists of pictures, of at most ``batch_size`` items."""
    if isinstance(items, str | Path | bytes) or _is_picture(items):
        raise InputError(
            f"items is {str(items)!r:.200}; for one picture pass a list, [picture], for a folder "
            "or a file of many use flowhash.data.open_data"
        )
    if not isinstance(items, Iterable) and not hasattr(items, "__len__"):
        came = f"a {type(items).__name__}"
        if items is None:
            came = "None (a data set without a test split has None there; use its validation split)"
        raise InputError(
            f"items is {came}; expected an array, a list of pictures, items of "
            "flowhash.data, or what yields items or batches"
        )
    if _has_positions(items):
        for start in range(0, len(items), batch_size):
            yield items.take(np.arange(start, min(start + batch_size, len(items))))
    elif _is_array(items):
        array = _array(items)
        if array.ndim != single + 1 and array.dtype.kind not in "OU":
            kind = "images [n, height, width, 3]" if single == 3 else "vectors [n, numbers]"
            raise InputError(
                f"items has shape {array.shape}; expected {kind}. Give a single one as items[None]"
            )
        yield from _cut(array, batch_size)
    else:
        if not isinstance(items, Iterable):  # a torch Dataset, which need not know its end
            items = map(items.__getitem__, range(len(items)))
        yield from _grouped(items, batch_size, single)


def _grouped(items: Iterable[Any], batch_size: int, single: int) -> Iterator[Any]:
    """What an iterable yields: batches are cut to size, single items are gathered."""
    waiting: list[Any] = []
    for found in items:
        element = _without_labels(found, single)
        if _is_picture(element) or _dimensions(element) == single:
            waiting.append(element)
            if len(waiting) == batch_size:
                yield waiting
                waiting = []
            continue
        if waiting:
            yield waiting
            waiting = []
        yield from _cut(element if _is_pictures(element) else _array(element), batch_size)
    if waiting:
        yield waiting


def _cut(batch: Any, batch_size: int) -> Iterator[Any]:
    if not isinstance(batch, list | tuple) and batch.ndim == 0:
        raise InputError(
            f"items yields {batch.item()!r:.80}; expected pictures, images, vectors, or batches "
            "of them"
        )
    for start in range(0, len(batch), batch_size):
        yield batch[start : start + batch_size]


def _without_labels(element: Any, single: int) -> Any:
    """Of a pair (items, labels) or (item, label) the first."""
    if not isinstance(element, list | tuple) or len(element) != 2:
        return element
    first, second = element
    if _is_picture(first) or (_is_array(first) and first.ndim == single):
        # Two pictures, or two single items, are a batch of two.
        return element if _is_picture(second) or _dimensions(second) else first
    is_batch = _is_pictures(first) or (_is_array(first) and first.ndim == single + 1)
    return first if is_batch else element


def _checked(pieces: Iterator[Any], size: Size | None, dim: int | None) -> Iterator[NDArray[Any]]:
    start = 0
    for piece in pieces:
        if not len(piece):
            continue
        array = _stacked(piece, size)
        batch = _as_vectors(array, dim, start) if size is None else _as_images(array, size)
        start += len(batch)
        yield batch


def _stacked(piece: Any, size: Size | None) -> NDArray[Any]:
    if _is_array(piece) and piece.dtype.kind in "OU":  # an array of paths
        piece = piece.tolist()
    if not isinstance(piece, list | tuple):
        return _array(piece)
    pictures = [_is_picture(item) for item in piece]
    if not any(pictures):
        try:
            return np.stack([_array(item) for item in piece])
        except ValueError as error:
            shapes = sorted({_array(item).shape for item in piece})
            raise InputError(f"items have shapes {shapes}; expected all of one shape") from error
    if size is None:
        raise InputError("items are pictures, but this encoder takes vectors; give vectors")
    if not all(pictures):
        raise InputError("some items are pictures and others are not; give items of one kind")
    return read_pictures(piece, size)


def _as_images(array: NDArray[Any], size: Size) -> NDArray[np.uint8]:
    """Checked images; with colours in front, as torch likes them, they are turned."""
    if array.ndim == 4 and array.shape[1:] == (3, *size) and array.shape[1:] != (*size, 3):
        array = array.transpose(0, 2, 3, 1)
    if array.dtype.kind == "f" and array.ndim == 4:
        raise InputError(
            f"items are images of {array.dtype}; expected uint8, 0 to 255, as they come from a "
            "file. The encoder scales them itself: leave out ToTensor and normalisation"
        )
    if array.shape[1:] != (*size, 3) or array.dtype != np.uint8:
        raise InputError(
            f"a batch has shape {array.shape} and dtype {array.dtype}; expected images uint8 "
            f"[n, {size[0]}, {size[1]}, 3]. Resize them, or give files or PIL images, which are "
            "resized here"
        )
    return array


def _as_vectors(array: NDArray[Any], dim: int | None, start: int) -> NDArray[np.float32]:
    fits = array.ndim == 2 and dim in (None, array.shape[1])
    if not fits or array.dtype.kind not in "fiub":
        raise InputError(
            f"a batch has shape {array.shape} and dtype {array.dtype}; expected vectors "
            f"[n, {'numbers' if dim is None else dim}], which this encoder was trained on. Make "
            "them by the model that made the vectors of the training, or fit anew to these"
        )
    with np.errstate(over="ignore"):  # what is too large becomes infinite and is refused
        vectors = array.astype(np.float32, copy=False)
    finite = np.isfinite(vectors).all(1)
    if not finite.all():
        row = int(np.argmin(finite))
        wrong = array[row][~np.isfinite(vectors[row])][0]
        raise InputError(
            f"item {start + row} holds {wrong}; expected finite numbers of float32. Leave the item "
            "out, or mend it"
        )
    return vectors


def _has_positions(items: Any) -> bool:
    """Whether it is a store of ``flowhash.data``, read by position."""
    return isinstance(items, LabelledItems) or (hasattr(items, "kind") and hasattr(items, "take"))


def _is_array(items: Any) -> bool:
    """Whether it is an array, a torch tensor or a data frame."""
    return isinstance(items, np.ndarray) or hasattr(items, "detach") or hasattr(items, "to_numpy")


def _is_picture(item: Any) -> bool:
    """Whether it is an image file's path or a PIL image."""
    return isinstance(item, str | Path) or (hasattr(item, "convert") and hasattr(item, "mode"))


def _is_pictures(items: Any) -> bool:
    return isinstance(items, list | tuple) and bool(items) and _is_picture(items[0])


def _dimensions(element: Any) -> int:
    found = getattr(element, "ndim", None)
    return found if isinstance(found, int) else _array(element).ndim


def as_numpy(values: Any) -> Any:
    """A torch tensor as an array; anything else as it is."""
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:  # bfloat16, which numpy does not know
        return tensor.float().numpy()


def _array(values: Any) -> NDArray[Any]:
    values = as_numpy(values)
    if isinstance(values, Mapping):
        raise InputError(
            f"items yields a {type(values).__name__} with {', '.join(map(repr, values))}; expected "
            "images or vectors. Take out the entry that holds them"
        )
    try:
        return np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except ValueError as error:
        raise InputError(f"items yields lists of unequal lengths: {error}") from error
