"""Members of an archive: unpacked in a folder, or read straight from a tar file.

Nothing is unpacked to disk, so that no member can be written where it does not belong.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from flowhash.errors import DamagedFileError, StorageError, reason
from flowhash.regular_file import open_regular_file, read_regular_file, reading

# The official archives have little but what is read; somebody may have packed them anew, with more.
SPARE = 4
SLACK = 1 << 24  # bytes
ENTRIES = 10_000


class Member(NamedTuple):
    """A file of an archive: what to call it in messages, and what it holds."""

    name: str
    content: bytes


def read_folder(folder: Path, limits: Mapping[str, int]) -> dict[str, Member]:
    """The files of an unpacked archive, by name.

    Args:
        folder: where they are.
        limits: names, and the most bytes that each may have.
    """
    members = {}
    for name, limit in limits.items():
        path = folder / name
        try:
            members[name] = Member(str(path), read_regular_file(path, limit))
        except FileNotFoundError as error:
            raise DamagedFileError(
                f"{path} is missing; the folder is incomplete. Unpack the archive again"
            ) from error
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    return members


def read_tar(path: Path, folder: str, limits: Mapping[str, int]) -> dict[str, Member]:
    """The members ``folder/name`` of a tar file, by name; like :func:`read_folder`."""
    members: dict[str, Member] = {}
    limit = SPARE * sum(limits.values()) + SLACK
    with reading(path, lambda error: _damaged_tar(path, error)), _unpacked(path, limit) as archive:
        for count, entry in enumerate(archive):
            if count > ENTRIES:
                raise ValueError(f"it has more than {ENTRIES} members")
            name = entry.name.removeprefix("./").removeprefix(folder + "/")
            if not entry.isfile() or name not in limits or name in members:
                continue
            _check_size(f"{path}: {entry.name}", entry.size, limits[name])
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


def _damaged_tar(path: Path, error: object) -> DamagedFileError:
    return DamagedFileError(f"{path} is not a whole tar file: {reason(error)}; download it again")


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


def _check_size(name: str, size: int, limit: int) -> None:
    """Refuse a file before it fills the memory."""
    if size > limit:
        raise DamagedFileError(
            f"{name} has {size} bytes; expected at most {limit}. It is not the official file"
        )
