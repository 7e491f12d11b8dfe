"""Files and folders that are whole or not there: put in their place in one step, flushed, locked.

What a killed process has left of them, the next one removes. What is read is a regular file, opened
without waiting: where a file is expected, anybody may have put a pipe.

The lock is our own, not filelock's: that one unlocks when its object is collected, also in a forked
child, which would take the lock from its parent; and a file that is written here is locked before
it is renamed, and stays so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from flowhash.errors import (
    Advice,
    DamagedFileError,
    InputError,
    LockedTableError,
    MissingExtraError,
    StorageError,
    reason,
)

# What these flags are for, the systems without them do not have.
NOT_THROUGH_LINKS: int = getattr(os, "O_NOFOLLOW", 0)
NOT_WAITING: int = getattr(os, "O_NONBLOCK", 0)
STRAY = r"\.[0-9a-f]{16}\.new"  # behind a file's name
# Older versions used no random digits. So may users: only what FlowHash alone names is taken away.
OLD_STRAY = r"(\.[0-9a-f]{16})?\.new"
OWN_NAMES = ("manifest.json", "index.toml")
LOCK = "writer.lock"  # of a table's folder
KINDS = {
    stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device", stat.S_IFDIR: "a folder",
}  # fmt: skip
# What the system says where a file that was made on purpose names places that no file has.
OF_FORGED_PLACES = (errno.EINVAL, errno.EOVERFLOW)
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container
ON_WINDOWS = os.name == "nt"  # folders cannot be opened there, nor open files renamed or removed


def open_regular_file(path: str | Path, *, pipe: bool = False) -> BinaryIO:
    """Open a file to read its bytes; links to files are followed.

    With ``pipe`` it may be a pipe, of which somebody has the other end and writes to it.

    Raises:
        DamagedFileError: it is a pipe, a device, a socket or a folder, which may block or never
            end.
        OSError: the system's own, where it cannot be opened.
    """
    # Opening a pipe would wait for somebody who writes to it.
    flags = os.O_RDONLY | NOT_WAITING | getattr(os, "O_BINARY", 0)
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
def reading(path: str | Path, cannot: str, advice: str) -> Iterator[None]:
    """Say what is wrong with a file that is read here; nothing else may be done in the block.

    Parsers fail in any way on files that were made on purpose. What the system refuses, because of
    permissions, of too many open files or of a failing disk, is no damage of the file. ``cannot``
    and ``advice`` are the message's words before and behind the parser's own.
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
        raise DamagedFileError(f"{path} {cannot}: {reason(error)}; {advice}") from error


def memory() -> int:
    """How many bytes of memory the machine, or the container, has; 1 TiB where nobody says."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        found = 1 << 40
    with contextlib.suppress(OSError, ValueError):  # no container, or "max": no limit
        found = min(found, int(CGROUP_LIMIT.read_text()))
    return found


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to; when the block ends it is on disk and takes the place of ``path``.

    It is whole or not there. If anything fails before it has taken its place, it is removed. Its
    folder is opened first, so that then only the disk itself can fail.
    """
    folder = None if ON_WINDOWS else os.open(path.parent, os.O_RDONLY)
    try:
        new, file = _new_file(path)
        with _naming(path, new), file:
            try:
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


def _new_file(path: Path) -> tuple[Path, IO[bytes]]:
    """A file beside ``path`` that nobody removes.

    Before it is locked, it looks like one that was left: whoever removes those may have it already.
    Then another is made, but not for ever, because a file system may count links in its own way.
    """
    for left in reversed(range(100)):
        # Not by ``secrets``, which loads hashing: the command's help does not.
        new = path.with_name(f"{path.name}.{os.urandom(8).hex()}.new")
        with _naming(path, new):
            file = new.open("xb")  # which never follows a link
        if (_lock(file.fileno()) is not False and os.fstat(file.fileno()).st_nlink) or not left:
            break
        file.close()
        with contextlib.suppress(OSError):
            new.unlink()
    return new, file


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
    name = re.compile(re.escape(path.name) + (OLD_STRAY if path.name in OWN_NAMES else STRAY))
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


def _lock(handle: int) -> bool | None:
    """Lock a file that is being written, until it is closed.

    Returns:
        Whether nobody else had done so; None where there are no locks.
    """
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows; file systems without locks
        return None
    return True


def take_lock(path: Path) -> IO[bytes]:
    """Take the writer's lock; the system releases it when the process ends, however it ends."""
    with naming(path / LOCK):
        if not path.is_dir():
            raise StorageError(f"{path} is not a folder; expected a table.", advice=Advice.CREATE)
        try:
            import fcntl  # noqa: F401
        except ImportError as error:  # Windows
            raise StorageError(
                "tables can be written on Linux and macOS only, because of their lock; open this "
                'one with mode="r", or keep it in memory'
            ) from error
        file = hold_lock(path / LOCK)
        if file is None:
            raise LockedTableError(
                f"{path} is being written by another process or object; a table has one writer.",
                advice=Advice.ONE_WRITER,
            )
    return file


def hold_lock(path: Path) -> IO[bytes] | None:
    """Lock a file, made where there is none, until it is closed; None where another holds it."""
    import fcntl

    file = _open_lock(path)
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
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
        words = error.strerror or str(error)
        raise StorageError(
            error.errno, f"{error.filename or path}: {words}; nothing was changed. Free space or "
            "mend the permissions, then try again"
        ) from error  # fmt: skip


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one step, durably: it has the old content or the new one, never a part."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_strays(path)
        with atomic_file(path) as file:
            file.write(content)


MADE = "table"  # in a folder aside, what is made


@contextlib.contextmanager
def folder_aside(folder: Path) -> Iterator[Path]:
    """A place to make ``folder``; beside it, so that renaming it is one step.

    The folder above is made, too. What a killed command has left there is removed first. Its lock
    tells: the system gives it back when a process ends, however it ends, and nobody else's is taken
    for that.
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
        place = parent / f"{beginning}{os.urandom(4).hex()}"  # as in _new_file, without secrets
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
    """Remove a folder of :func:`folder_aside` whose process is gone; nothing else."""
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


def put_folder(made: Path, folder: Path) -> None:
    """Give a folder its name, durably, unless somebody made one of this name meanwhile.

    Raises:
        InputError: somebody did.
    """
    try:
        made.replace(folder)
    except OSError as error:
        if not folder.exists():
            raise
        raise InputError(
            f"{folder} was made by somebody else meanwhile, and is left as it is; give another "
            "folder"
        ) from error
    flush_folder(folder.parent)
