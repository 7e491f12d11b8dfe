"""Files that survive a crash: the writer's lock, files in one step, flushed folders."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from flowhash.atomic import NOT_THROUGH_LINKS, NOT_WAITING, atomic_file, remove_strays
from flowhash.errors import LockedTableError, StorageError

LOCK = "writer.lock"


def take_lock(path: Path) -> IO[bytes]:
    """Take the writer's lock; the system releases it when the process ends, however it ends."""
    with naming(path / LOCK):
        if not path.is_dir():
            raise StorageError(
                f"{path} is not a folder; use HashTable.create to make a table there"
            )
        try:
            import fcntl
        except ImportError as error:  # Windows
            raise StorageError(
                "tables can be written on Linux and macOS only, because of their lock; open this "
                'one with mode="r", or keep it in memory'
            ) from error
        file = _open_lock(path / LOCK)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise LockedTableError(
                f"{path} is being written by another process or object; a table has one writer. "
                'Close that one, or open this one with mode="r"'
            ) from error
        except BaseException:
            file.close()
            raise
    return file


def _open_lock(path: Path) -> IO[bytes]:
    """Open the file of a lock, made where there is none: a file of its own, nothing else."""
    other = StorageError(f"{path} is a link, or not a file; expected one for the lock. Remove it")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NOT_THROUGH_LINKS | NOT_WAITING
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise other from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise other
    return os.fdopen(handle, "ab", buffering=0)


def release_lock(file: IO[bytes]) -> None:
    """Give the writer's lock back at once, whoever else has a copy of its descriptor."""
    import fcntl

    with contextlib.suppress(OSError):  # closing does it too
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def flush_folder(folder: Path) -> None:
    """Make new and renamed entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn an error of the system into one that names the file and says what to do."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            error.errno, f"{error.filename or path}: {reason}; nothing was changed. Free space or "
            "mend the permissions, then try again"
        ) from error  # fmt: skip


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one step, durably: it has the old content or the new one, never a part."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_strays(path)
        with atomic_file(path) as file:
            file.write(content)
