"""Archives: downloaded, read member by member, and kept as arrays that can be mapped.

The download is our own, not pooch's: that one begins anew where it was broken off, and ours goes on
with the part that is there.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import http.client
import lzma
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.data.files.array_files import map_npz, npy_chunks, read_npy
from flowhash.data.files.pickles import read_pickle, whole_numbers
from flowhash.durable_files import (
    NOT_THROUGH_LINKS,
    NOT_WAITING,
    atomic_file,
    open_regular_file,
    read_regular_file,
    reading,
    remove_strays,
)
from flowhash.errors import DamagedFileError, StorageError, reason
from flowhash.progress_bars import bytes_bar

# The official archives have little but what is read; somebody may have packed them anew, with more.
SPARE = 4
SLACK = 1 << 24  # bytes
ENTRIES = 10_000
CHUNK = 1 << 18
PATIENCE = 60  # seconds without a byte
NOT_OFFICIAL = ("cannot be read", "get the official file")
LARGEST = 1 << 31  # bytes of a pickle; the official ones have a fifth of it


class Member(NamedTuple):
    """A file of an archive: what to call it in messages, and what it holds."""

    name: str
    content: bytes


def read_folder(folder: Path, limits: Mapping[str, int]) -> dict[str, Member]:
    """The files of an unpacked archive, by name; ``limits`` has the most bytes of each."""
    members = {}
    for name, limit in limits.items():
        path = folder / name
        with reading(path, *NOT_OFFICIAL):
            if not path.exists():
                raise DamagedFileError(
                    f"{path} is missing; the folder is incomplete. Unpack the archive again"
                )
            members[name] = Member(str(path), read_regular_file(path, limit))
    return members


def read_tar(path: Path, folder: str, limits: Mapping[str, int]) -> dict[str, Member]:
    """The members ``folder/name`` of a tar file, by name; like :func:`read_folder`."""
    members: dict[str, Member] = {}
    limit = SPARE * sum(limits.values()) + SLACK
    damaged = ("is not a whole tar file", "download it again")
    with reading(path, *damaged), _unpacked(path, limit) as archive:
        for count, entry in enumerate(archive):
            if count > ENTRIES:
                raise ValueError(f"it has more than {ENTRIES} members")
            name = entry.name.removeprefix("./").removeprefix(folder + "/")
            if not entry.isfile() or name not in limits or name in members:
                continue
            if entry.size > limits[name]:  # refused before it fills the memory
                raise DamagedFileError(
                    f"{path}: {entry.name} has {entry.size} bytes; expected at most "
                    f"{limits[name]}. It is not the official file"
                )
            file = archive.extractfile(entry)
            assert file is not None
            members[name] = Member(f"{path}: {entry.name}", file.read())
            if len(members) == len(limits):
                break
    missing = [name for name in limits if name not in members]
    if missing:
        raise DamagedFileError(
            f"{path} has no member {folder}/{missing[0]}; expected the official archive. Download "
            "it again"
        )
    return members


@contextlib.contextmanager
def _unpacked(path: Path, limit: int) -> Iterator[tarfile.TarFile]:
    """A tar file, compressed or not, of which at most ``limit`` bytes are unpacked."""
    with open_regular_file(path) as file:
        begin = file.read(6)
        file.seek(0)
        readers: dict[bytes, Any] = {
            b"\x1f\x8b": gzip.open,
            b"BZh": bz2.open,
            b"\xfd7zXZ\0": lzma.open,
        }
        opened = next((readers[magic] for magic in readers if begin.startswith(magic)), None)
        with contextlib.ExitStack() as stack:
            content: Any = file if opened is None else stack.enter_context(opened(file))
            limited: Any = _Limited(content, limit)
            yield stack.enter_context(tarfile.open(fileobj=limited, mode="r:"))


class _Limited:
    """A file for tarfile to read: a header can ask for any number of bytes at once."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self.file, self.limit = file, limit
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        self._check(self.file.tell() + size)
        return self.file.read(size)

    def seek(self, place: int) -> int:
        self._check(place)
        return self.file.seek(place)

    def _check(self, place: int) -> None:
        if place > self.limit:
            raise ValueError(f"it unpacks to more than {self.limit} bytes")


def download(address: str, target: Path, md5: str, progress: bool = True) -> None:
    """Fetch ``address`` to ``target``, whose folder is made; a broken download is taken up again.

    Raises:
        StorageError: the connection or the disk failed; calling again goes on where it broke off.
        DamagedFileError: what came has another checksum; it was deleted.
    """
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch(address, part, progress)
    except (OSError, http.client.HTTPException) as error:
        raise StorageError(
            f"{address} could not be downloaded to {part}: {error}. Try again, which goes on where "
            f"it broke off, or fetch the file by other means and put it to {target}"
        ) from error
    found = _checksum(part)
    if found != md5:
        part.unlink()
        raise DamagedFileError(
            f"{address} came with the checksum (md5) {found}; expected {md5}. It was deleted from "
            f"{part}; try again, or fetch the file by other means and put it to {target}"
        )
    part.replace(target)


def _fetch(address: str, part: Path, progress: bool) -> None:
    """Append to ``part`` what it lacks."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        error.close()
        # The part is as long as the file, or longer: whole but not renamed, or of another file.
        # Its checksum tells, and a wrong one deletes it.
        return
    with response:
        # A server that knows no ranges sends all of it again.
        resumed = response.status == http.client.PARTIAL_CONTENT
        start = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        name = part.name.removesuffix(".part")
        with _opened(part, resumed) as file, bytes_bar(name, start, total, progress) as advance:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                advance(len(chunk))
    size = part.stat().st_size
    if total is not None and size < total:
        raise StorageError(f"the connection ended after {size} of {total} bytes")


def _opened(part: Path, resumed: bool) -> IO[bytes]:
    """Open a part to write to its end, or anew; its name can be foreseen, so never a link."""
    flags = os.O_WRONLY | os.O_CREAT | NOT_THROUGH_LINKS | NOT_WAITING
    handle = os.open(part, flags | (os.O_APPEND if resumed else os.O_TRUNC), 0o666)
    return os.fdopen(handle, "ab" if resumed else "wb")


def _checksum(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def uncompressed(path: Path, key: str, cache: Path | None) -> NDArray[Any]:
    """An array of an ``.npz`` file, mapped: in place, or its uncompressed copy.

    The copy goes to the folder ``cache``; beside the file by default.
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
    targets = {key: _cached_path(path, key, cache) for key in ("data", "labels", "mean")}
    if not all(target.exists() for target in targets.values()):
        for key, array in _pickled_arrays(path).items():
            _write(targets[key], path, lambda file, array=array: np.save(file, array))  # type: ignore[misc]
    data, labels, mean = (read_npy(target) for target in targets.values())
    return data, np.array(labels), np.array(mean) if mean.size else None


def _pickled_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Data, labels and mean of a pickle; an empty mean stands for none, to be looked for once."""
    with reading(path, *NOT_OFFICIAL):
        content = read_pickle(read_regular_file(path, LARGEST), str(path))
    arrays: dict[str, NDArray[Any]] = {}
    for key in ("data", "labels"):
        if key not in content:
            raise DamagedFileError(
                f"{path} is a pickle without '{key}'; it has "
                f"{reason(', '.join(content) or 'nothing')}. Get the official file"
            )
        array = whole_numbers(content[key])
        if array is None:
            raise DamagedFileError(
                f"{path}: '{key}' is not an array of whole numbers. Get the official file"
            )
        arrays[key] = array
    mean = content.get("mean")
    if mean is not None and (not isinstance(mean, np.ndarray) or mean.size == 0):
        raise DamagedFileError(f"{path}: 'mean' is not an array of numbers. Get the official file")
    arrays["mean"] = np.zeros(0) if mean is None else mean
    return arrays


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
