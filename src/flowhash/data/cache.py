"""Arrays of compressed files and pickles, converted once to ``.npy`` files that can be mapped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data.files import map_npz, npy_chunks, read_npy
from flowhash.data.pickles import read_pickle, whole_numbers
from flowhash.durable_files import atomic_file, remove_strays
from flowhash.errors import DamagedFileError, StorageError, reason
from flowhash.regular_file import read_regular_file

LARGEST = 1 << 31  # bytes of a pickle; the official ones have a fifth of it


def uncompressed(path: Path, key: str, cache: Path | None) -> NDArray[Any]:
    """An array of an ``.npz`` file, mapped: in place, or its uncompressed copy.

    Args:
        path: the file.
        key: the array's name in it.
        cache: folder of the copy; beside the file by default.
    """
    mapped = map_npz(path, key)
    if mapped is not None:
        return mapped

    def copy(target: IO[bytes]) -> None:
        # A member of an .npz file is an .npy file: it is copied without being held in memory.
        for chunk in npy_chunks(path, key):
            target.write(chunk)

    copied = _cached_path(path, key, cache)
    if not copied.exists():
        _write(copied, path, copy)
    return read_npy(copied)


def cached_pickle(
    path: Path, cache: Path | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Data, mapped, labels and mean of a pickle of ImageNet32, all converted at the first time.

    The mean is None where the pickle has none, as the official one of *val*.
    """
    data, labels, mean = (_cached_path(path, key, cache) for key in ("data", "labels", "mean"))
    if not (data.exists() and labels.exists() and mean.exists()):
        try:
            content = read_pickle(read_regular_file(path, LARGEST), str(path))
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
        missing = [key for key in ("data", "labels") if key not in content]
        if missing:
            raise DamagedFileError(
                f"{path} is a pickle without '{missing[0]}'; it has "
                f"{reason(', '.join(content) or 'nothing')}. Get the official file"
            )
        for key, target in (("data", data), ("labels", labels)):
            array = _numbers(path, key, content.pop(key))
            _write(target, path, lambda file, array=array: np.save(file, array))  # type: ignore[misc]
        average = _average(path, content.get("mean"))
        _write(mean, path, lambda file: np.save(file, average))
    found = np.array(read_npy(mean))
    return read_npy(data), np.array(read_npy(labels)), found if found.size else None


def _numbers(path: Path, key: str, values: Any) -> NDArray[Any]:
    array = whole_numbers(values)
    if array is None:
        raise DamagedFileError(
            f"{path}: '{key}' is not an array of whole numbers. Get the official file"
        )
    return array


def _average(path: Path, values: Any) -> NDArray[Any]:
    """The mean as it is stored; an empty array stands for none, so that it is looked for once."""
    if values is None:
        return np.zeros(0)
    if not isinstance(values, np.ndarray) or values.size == 0:
        raise DamagedFileError(f"{path}: 'mean' is not an array of numbers. Get the official file")
    return values


def _cached_path(path: Path, key: str, cache: Path | None) -> Path:
    """Where the copy of a file's array is; another file of the same name has another copy."""
    state = path.stat()
    stamp = f"{state.st_size:x}-{state.st_mtime_ns:x}"
    return (cache or path.parent) / f"{path.name}.{key}.{stamp}.npy"


def _write(target: Path, source: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write a file that is there whole or not at all; copies of former sources are removed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_strays(target)
        with atomic_file(target) as file:
            write(file)
        prefix = target.name.rsplit(".", 2)[0]
        for old in target.parent.glob(f"{prefix}.*.npy"):
            if old != target:  # another process may have made the same one and be reading it
                old.unlink(missing_ok=True)
    except StorageError:  # of the source
        raise
    except OSError as error:
        needs = source.stat().st_size >> 20
        free = _free(target.parent)
        raise StorageError(
            f"{source} must be converted once so that it can be mapped, but {target} cannot be "
            f"written: {error.strerror or error} ({free}; the copy takes some {needs} MB or more). "
            "Give a folder that can be written with cache="
        ) from error


def _free(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free >> 20} MB free"
    except OSError:
        return "no such folder"
