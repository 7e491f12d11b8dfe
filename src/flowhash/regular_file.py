"""Regular files, opened without waiting: where a file is expected, anybody may have put a pipe."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from flowhash.errors import (
    DamagedFileError,
    InputError,
    MissingExtraError,
    StorageError,
    reason,
)

KINDS = {
    stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device", stat.S_IFDIR: "a folder",
}  # fmt: skip
# What the system says where a file that was made on purpose names places that no file has.
OF_FORGED_PLACES = (errno.EINVAL, errno.EOVERFLOW)
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container


def open_regular_file(path: str | Path, *, pipe: bool = False) -> BinaryIO:
    """Open a file to read its bytes; links to files are followed.

    Args:
        path: the file.
        pipe: whether it may be a pipe, of which somebody has the other end and writes to it.

    Raises:
        DamagedFileError: it is a pipe, a device, a socket or a folder, which may block or never
            end.
        OSError: the system's own, where it cannot be opened.
    """
    # Opening a pipe would wait for somebody who writes to it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if Path(path).is_socket():  # cannot be opened at all, with an odd error
        raise _other(path, stat.S_IFSOCK)
    handle = os.open(path, flags)
    kind = stat.S_IFMT(os.fstat(handle).st_mode)
    if pipe and kind == stat.S_IFIFO:
        os.set_blocking(handle, True)  # its writer may not have begun yet
    elif kind != stat.S_IFREG:
        os.close(handle)
        raise _other(path, kind)
    return os.fdopen(handle, "rb")


def _other(path: str | Path, kind: int) -> DamagedFileError:
    found = KINDS.get(kind, "something else")
    return DamagedFileError(f"{path} is {found}; expected a file. Put the file itself there")


def read_regular_file(path: str | Path, limit: int) -> bytes:
    """The bytes of a file that has at most ``limit`` of them.

    Raises:
        DamagedFileError: it has more, or it is no file.
        OSError: the system's own, where it cannot be read.
    """
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise DamagedFileError(
                f"{path} has {size} bytes; expected at most {limit}. It is another file than it "
                "should be; restore it from a copy"
            )
        return file.read(size)


@contextlib.contextmanager
def reading(path: str | Path, damaged: Callable[[Exception], DamagedFileError]) -> Iterator[None]:
    """Say what is wrong with a file that is read here; nothing else may be done in the block.

    Parsers fail in any way on files that were made on purpose. What the system refuses, because of
    permissions, of too many open files or of a failing disk, is no damage of the file.

    Args:
        path: the file.
        damaged: makes the error for a file that its parser cannot read.
    """
    try:
        yield
    except (InputError, StorageError, MissingExtraError):
        raise
    except FileNotFoundError as error:
        raise StorageError(f"{path} is not there; look whether it was moved or renamed") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, *OF_FORGED_PLACES):
            words = reason(error.strerror or error)
            raise StorageError(f"{path} cannot be read: {words}") from error
        raise damaged(error) from error


def memory() -> int:
    """How many bytes of memory the machine, or the container, has; 1 TiB where nobody says."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        found = 1 << 40
    with contextlib.suppress(OSError, ValueError):  # no container, or "max": no limit
        found = min(found, int(CGROUP_LIMIT.read_text()))
    return found
