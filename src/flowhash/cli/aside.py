"""A folder aside, for what takes its place in one step when it is whole."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from flowhash.durable_files import LOCK, naming, take_lock
from flowhash.errors import LockedTableError, StorageError

MADE = "table"


@contextlib.contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """A place to make ``folder``; beside it, so that renaming it is one step.

    What a killed command has left there is removed first. Its lock tells: the system gives it back
    when a process ends, however it ends, and nobody else's is taken for that.

    Args:
        folder: what is made; the folder above it is made, too.
    """
    beginning = f".{folder.name}.copy-"
    ours = re.compile(re.escape(beginning) + "[0-9a-f]{8}")
    with naming(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        for entry in folder.parent.iterdir():
            if ours.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # somebody else's, or gone meanwhile
                    _remove_dead(entry)
        place, lock = _locked(folder.parent, beginning)
    try:
        yield place / MADE
    finally:
        _remove(place, lock)


def _locked(parent: Path, beginning: str) -> tuple[Path, IO[bytes]]:
    """A new folder that is ours for as long as its lock is held."""
    while True:
        place = parent / f"{beginning}{secrets.token_hex(4)}"
        place.mkdir(mode=0o700)
        # Without a lock yet, it looks like a dead one to others, who may remove it.
        try:
            lock = take_lock(place)
        except LockedTableError:
            continue
        except StorageError:
            if place.exists():
                raise
            continue
        if _is_at(place / LOCK, lock):
            return place, lock
        lock.close()


def _is_at(path: Path, lock: IO[bytes]) -> bool:
    """Whether a path still leads to the file that is locked, and not to a later one."""
    try:
        return os.path.samestat(path.stat(), os.fstat(lock.fileno()))
    except OSError:
        return False


def _remove_dead(place: Path) -> None:
    """Remove a folder of :func:`aside` whose process is gone; nothing else."""
    if place.is_symlink() or not place.is_dir():
        return
    names = {entry.name for entry in place.iterdir()}
    if not names:  # killed before it had a lock, or after that was removed
        with contextlib.suppress(OSError):
            place.rmdir()
    elif LOCK in names <= {LOCK, MADE}:
        with contextlib.suppress(StorageError):
            _remove(place, take_lock(place))


def _remove(place: Path, lock: IO[bytes]) -> None:
    """The lock last: killed in between, this leaves what the next one knows for dead."""
    shutil.rmtree(place / MADE, ignore_errors=True)
    with contextlib.suppress(OSError):
        if not (place / MADE).exists():  # else, where a part of it stays, the next one tries again
            (place / LOCK).unlink(missing_ok=True)
            place.rmdir()
    lock.close()
