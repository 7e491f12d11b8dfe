"""``open_data``: any data set by its name, folder or file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowhash.data.labelled_data import Splits
from flowhash.errors import Argument, InputError

FILES = (".npy", ".npz", ".parquet", ".pq")


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
    import flowhash.data as room

    named: dict[str, Callable[..., Splits]] = {
        "digits": room.digits, "cifar100": room.cifar100, "imagenet32": room.imagenet32,
    }  # fmt: skip
    if isinstance(source, str) and source in named:
        return _call(named[source], source, (), options, progress)
    path = Path(source).expanduser()
    if path.is_dir():
        return _call(room.image_folder, str(path), (path,), options, progress)
    if path.suffix.lower() in FILES:
        return _call(room.arrays, str(path), (path,), options, progress)
    raise InputError(
        f"{source} is neither a data set nor a folder; expected {', '.join(named)}, a folder of "
        f"images, or a file that ends in {', '.join(FILES)}"
    )


def _call(
    opener: Callable[..., Splits],
    source: str,
    given: tuple[Any, ...],
    options: dict[str, Any],
    progress: bool,
) -> Splits:
    """Call ``opener``, after a look at whether the options are its own."""
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
    return opener(*given, **options, **bars)
