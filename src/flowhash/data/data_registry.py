"""The data sets that have a name, and ``open_data``, which opens any by its name, folder or file.

A new data set is a module with a function that returns ``Splits``, and one entry in ``NAMED``. This
module imports nothing heavy: the command reads the names when it starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flowhash.errors import Argument, InputError

if TYPE_CHECKING:
    from flowhash.data.labelled_data import Splits

DATA_FILES = (".npy", ".npz", ".parquet", ".pq")


class NamedData(NamedTuple):
    """A data set that has a name instead of a path.

    Attributes:
        opener: the function that opens it, as "module:function" under ``flowhash.data.sets``.
        in_folder: whether its files lie in a folder, which is said by ``folder=``.
        draw: of vectors that can be seen, the function that makes an image of one, like ``opener``.
        download: whether ``download=True`` fetches it.
    """

    opener: str
    in_folder: bool = True
    draw: str | None = None
    download: bool = False


NAMED = {
    "digits": NamedData(
        "handwritten_digits:digits",
        in_folder=False,
        draw="handwritten_digits:draw_digit",
    ),
    "cifar100": NamedData("cifar:cifar100", download=True),
    "imagenet32": NamedData("imagenet:imagenet32"),
}


def open_data(source: str | Path, *, progress: bool = True, **options: Any) -> Splits:
    """Open a data set.

    Args:
        source: "digits", "cifar100" or "imagenet32" (the latter two with ``folder=``), a folder of
            images, or an ``.npy``, ``.npz`` or ``.parquet`` file. For a folder that is called like
            a data set, write "./digits".
        progress: show bars where it takes long.
        **options: go to :func:`digits`, :func:`cifar100`, :func:`imagenet32`,
            :func:`image_folder` or :func:`arrays`.

    Raises:
        InputError: there is no such data set, or it has no such option.

    Example:
        >>> open_data("digits").train.classes
        10
    """
    given: tuple[Path, ...] = ()
    if isinstance(source, str) and source in NAMED:
        opener = load_function(NAMED[source].opener)
    else:
        given = (Path(source).expanduser(),)
        if given[0].is_dir():
            opener = load_function("image_folders:image_folder")
        elif given[0].suffix.lower() in DATA_FILES:
            opener = load_function("embedding_arrays:arrays")
        else:
            raise InputError(
                f"{source} is neither a data set nor a folder; expected {', '.join(NAMED)}, a "
                f"folder of images, or a file that ends in {', '.join(DATA_FILES)}"
            )
    names = list(inspect.signature(opener).parameters)[len(given) :]
    bars = {"progress": progress} if "progress" in names else {}
    names = [name for name in names if name != "progress"]
    takes = f"it takes {', '.join(names)}"
    for name in options:
        if name not in names:
            raise InputError(
                f"{source} cannot be opened with {name!r}: {takes}. Leave out", Argument(name)
            )
    if "folder" in names and "folder" not in options:
        raise InputError(
            f"{source} cannot be opened without a folder: {takes}. Say where it is:",
            Argument("folder", "...", f'open_data("{source}", {{}})'),
        )
    splits: Splits = opener(*given, **options, **bars)
    return splits


def load_function(named: str) -> Callable[..., Any]:
    """The function "module:function" of ``flowhash.data.sets``; the module is imported here."""
    module, _, function = named.partition(":")
    loaded: Callable[..., Any] = getattr(import_module(f"flowhash.data.sets.{module}"), function)
    return loaded
