"""Regular files, opened without waiting: where a file is expected, anybody may have put a pipe."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from flowhash.errors import DamagedFileError

KINDS = {
    stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device", stat.S_IFDIR: "a folder",
}  # fmt: skip


def open_regular_file(path: str | Path) -> BinaryIO:
    """Open a file to read its bytes; links to files are followed.

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
    if kind != stat.S_IFREG:
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


def memory() -> int:
    """How many bytes of memory the machine has; 1 TiB where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return 1 << 40
