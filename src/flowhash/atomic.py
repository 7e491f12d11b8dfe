"""Files that are replaced in one step.

Folders may belong to others, who leave links where a file is expected: what is written goes to a
new file of a random name, never through a link.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

# What these flags are for, the systems without them do not have.
NOT_THROUGH_LINKS: int = getattr(os, "O_NOFOLLOW", 0)
NOT_WAITING: int = getattr(os, "O_NONBLOCK", 0)
ON_WINDOWS = os.name == "nt"  # folders cannot be opened there, nor open files renamed or removed
STRAY = r"(\.[0-9a-f]{16})?\.new"  # behind a file's name; older versions used no random digits


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to; when the block ends it is on disk and takes the place of ``path``.

    It is whole or not there. If anything fails before it has taken its place, it is removed. Its
    folder is opened first, so that then only the disk itself can fail.
    """
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    folder = None if ON_WINDOWS else os.open(path.parent, os.O_RDONLY)
    try:
        with _naming(path, new), new.open("xb") as file:  # which never follows a link
            try:
                _lock(file.fileno())
                yield file
                file.flush()
                os.fsync(file.fileno())
                if ON_WINDOWS:
                    file.close()  # elsewhere its lock keeps others from removing it until then
                new.replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    if ON_WINDOWS:
                        file.close()
                    new.unlink()
                raise
        if folder is not None:
            os.fsync(folder)
    finally:
        if folder is not None:
            os.close(folder)


@contextlib.contextmanager
def _naming(path: Path, new: Path) -> Iterator[None]:
    """Users know the name of the file that is replaced, not that of the new one."""
    try:
        yield
    except OSError as error:
        if error.filename == str(new):
            error.filename = str(path)
        raise


def remove_strays(path: Path) -> None:
    """Remove what writers of a file that were killed have left beside it.

    Nothing that somebody is writing: that is locked.
    """
    name = re.compile(re.escape(path.name) + STRAY)
    for entry in [one for one in path.parent.iterdir() if name.fullmatch(one.name)]:
        with contextlib.suppress(OSError):
            if entry.is_symlink() or not entry.is_file():
                continue
            handle = os.open(entry, os.O_RDONLY | NOT_THROUGH_LINKS | NOT_WAITING)
            try:
                if _lock(handle):
                    entry.unlink()
            finally:
                os.close(handle)


def _lock(handle: int) -> bool:
    """Lock a file that is being written, until it is closed; whether nobody else had done so."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):  # Windows; file systems without locks
        return False
    return True
