"""Members of an archive: unpacked in a folder, or read straight from a tar file.

Nothing is unpacked to disk, so that no member can be written where it does not belong.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from flowhash.errors import DamagedFileError, StorageError


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
            size = path.stat().st_size
            _check_size(str(path), size, limit)
            members[name] = Member(str(path), path.read_bytes())
        except FileNotFoundError as error:
            raise DamagedFileError(
                f"{path} is missing; the folder is incomplete. Unpack the archive again"
            ) from error
        except DamagedFileError:
            raise
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    return members


def read_tar(path: Path, folder: str, limits: Mapping[str, int]) -> dict[str, Member]:
    """The members ``folder/name`` of a tar file, by name; like :func:`read_folder`."""
    members: dict[str, Member] = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for entry in archive:
                name = entry.name.removeprefix("./").removeprefix(folder + "/")
                if not entry.isfile() or name not in limits or name in members:
                    continue
                _check_size(f"{path}: {entry.name}", entry.size, limits[name])
                file = archive.extractfile(entry)
                assert file is not None
                members[name] = Member(f"{path}: {entry.name}", file.read())
                if len(members) == len(limits):
                    break
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DamagedFileError(
            f"{path} is not a whole tar file: {error}; download it again"
        ) from error
    except OSError as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError(f"{path} cannot be read: {error}; download it again") from error
    missing = [name for name in limits if name not in members]
    if missing:
        raise DamagedFileError(
            f"{path} has no member {folder}/{missing[0]}; expected the official archive. Download "
            "it again"
        )
    return members


def _check_size(name: str, size: int, limit: int) -> None:
    """Refuse a file before it fills the memory."""
    if size > limit:
        raise DamagedFileError(
            f"{name} has {size} bytes; expected at most {limit}. It is not the official file"
        )
