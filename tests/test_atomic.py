"""Files in one step: whole or not there, never through a link, nothing left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flowhash import durable_files as atomic
from flowhash.bulk import work_folder as work
from flowhash.data.files import archives as cache
from flowhash.data.files.archives import _opened
from flowhash.durable_files import atomic_file, open_regular_file, remove_strays, replace_file
from flowhash.errors import DamagedFileError, StorageError
from flowhash.table import HashTable


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def test_it_takes_the_place_of_the_old_one(folder: Path) -> None:
    for content in (b"first", b"second"):
        replace_file(folder / "file", content)
        assert (folder / "file").read_bytes() == content
        assert names(folder) == {"file"}


def test_what_fails_leaves_the_old_one_and_nothing_else(folder: Path) -> None:
    replace_file(folder / "file", b"old")

    def write(error: BaseException) -> None:
        with atomic_file(folder / "file") as file:
            file.write(b"half of the")
            raise error

    for error in (OSError("full"), KeyboardInterrupt(), ValueError("x")):
        with pytest.raises(type(error)):
            write(error)
        assert names(folder) == {"file"}
        assert (folder / "file").read_bytes() == b"old"


@pytest.mark.parametrize("fails", [False, True])
def test_windows_is_asked_for_nothing_that_it_cannot_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """There folders have no handles, and a file that is open is neither renamed nor removed."""
    opened = []
    replace, unlink, open_handle = Path.replace, Path.unlink, os.open

    def check(path: Path) -> None:
        if path.name.endswith(".new") and not opened[0].closed:
            raise PermissionError(13, "open in another program", str(path))

    def open_file(path: str | Path, *rest: int, **options: int) -> int:
        if Path(path).is_dir():
            raise PermissionError(13, "is a folder", str(path))
        return open_handle(path, *rest, **options)

    monkeypatch.setattr(atomic, "ON_WINDOWS", True)
    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(Path, "replace", lambda path, to: (check(path), replace(path, to))[1])
    monkeypatch.setattr(Path, "unlink", lambda path: (check(path), unlink(path))[1])

    def write() -> None:
        with atomic_file(folder / "file") as file:
            opened.append(file)
            file.write(b"content")
            if fails:
                raise ValueError("x")

    if fails:
        with pytest.raises(ValueError, match="x"):
            write()
        assert names(folder) == set()
    else:
        write()
        assert (folder / "file").read_bytes() == b"content"
        assert names(folder) == {"file"}


def test_nothing_is_written_through_links(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write to a folder lays links to a file of ours, where a file will be written."""
    ours = tmp_path / "ours"
    ours.write_bytes(b"precious")
    numbers = iter(range(99))
    monkeypatch.setattr("os.urandom", lambda count: next(numbers).to_bytes(count, "big"))

    def lay(*written: str) -> None:
        for name in written:
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(ours)

    def index(name: str) -> None:
        replace_file(folder / name, b"new")

    lay("index.toml.new", f"index.toml.{0:016x}.new")
    with pytest.raises(StorageError, match=r"index\.toml"):  # even where its name was foreseen
        index("index.toml")
    index("index.toml")
    assert (folder / "index.toml").read_bytes() == b"new"
    lay("index.toml")  # the file itself is replaced, not what it leads to
    index("index.toml")
    assert not (folder / "index.toml").is_symlink()
    with HashTable.create(folder / "table", buckets=2, dim=1) as table:
        (folder / "table" / "manifest.json.new").symlink_to(ours)
        table.add([[0]], [[1]])
    archive = folder / "numbers.npz"
    np.savez_compressed(archive, data=np.zeros(9))
    copied = cache._cached_path(archive, "data", None)
    lay(f"{copied.name}.{os.getpid()}.part", f"{copied.name}.new")
    assert cache.uncompressed(archive, "data", None).tolist() == [0] * 9
    lay("big.tar.part")
    for resumed in (False, True):
        with pytest.raises(OSError, match="symbolic links"):
            _opened(folder / "big.tar.part", resumed)
    assert ours.read_bytes() == b"precious"


def test_the_next_writer_removes_what_one_that_was_killed_has_left(folder: Path) -> None:
    stray = "file.0123456789abcdef.new"
    # A user's own file may end so, too.
    others = ["file.new", "other.new", "file.0123.new", "file.txt.new", f"{stray}.txt"]
    for name in (stray, *others):
        (folder / name).write_bytes(b"left")
    replace_file(folder / "file", b"new")
    assert names(folder) == {"file", *others}


@pytest.mark.parametrize("name", ["manifest.json", "index.toml"])
def test_what_older_versions_have_left_is_removed_where_it_is_ours(folder: Path, name: str) -> None:
    for stray in (f"{name}.new", f"{name}.0123456789abcdef.new"):
        (folder / stray).write_bytes(b"left")
    replace_file(folder / name, b"new")
    assert names(folder) == {name}


@pytest.mark.parametrize("when", ["before the lock", "while it locks", "always"])
def test_one_who_cleans_up_as_a_file_is_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """To others a file that is not locked yet is one that was left; so the writer makes another."""
    lock = atomic._lock
    met: list[int] = []

    def lock_late(handle: int) -> bool | None:
        (name,) = (entry for entry in folder.iterdir() if entry.name != "file")
        if not met or when == "always":
            met.append(handle)
            if when != "while it locks":
                with monkeypatch.context() as patch:
                    patch.setattr(atomic, "_lock", lock)
                    remove_strays(folder / "file")
                assert not name.exists()
                return lock(handle)
            theirs = os.open(name, os.O_RDONLY)
            try:
                assert lock(theirs)
                found = lock(handle)
                name.unlink()
            finally:
                os.close(theirs)
            return found
        return lock(handle)

    monkeypatch.setattr(atomic, "_lock", lock_late)
    if when == "always":  # which is an error, but has an end
        with pytest.raises(StorageError, match=r"file: No such file"):
            replace_file(folder / "file", b"new")
    else:
        replace_file(folder / "file", b"new")
        assert (folder / "file").read_bytes() == b"new"
        assert names(folder) == {"file"}


def test_it_leaves_alone_what_somebody_is_writing(folder: Path) -> None:
    with atomic_file(folder / "file") as file:
        file.write(b"slow")
        remove_strays(folder / "file")
        replace_file(folder / "file", b"quick")
        assert (folder / "file").read_bytes() == b"quick"
        assert len(names(folder)) == 2
    assert (folder / "file").read_bytes() == b"slow"
    assert names(folder) == {"file"}


def test_bulk_work_knows_the_plan_that_one_that_was_killed_was_writing(folder: Path) -> None:
    for name in (work.LOCK, f"{work.PLAN}.new", f"{work.PLAN}.0123456789abcdef.new", "notes.txt"):
        (folder / name).write_bytes(b"left")
    assert work._not_ours(folder) == [folder / "notes.txt"]
    found = {entry.name for kind in work.STRAYS for entry in folder.glob(kind)}
    assert found == {f"{work.PLAN}.new", f"{work.PLAN}.0123456789abcdef.new"}


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a pipe"),
        (lambda path: path.symlink_to("/dev/null"), "a device"),
        (lambda path: path.mkdir(), "a folder"),
    ],
)
def test_only_files_are_opened(
    folder: Path, make: Callable[[Path], None], kind: str
) -> None:  # and nobody waits
    make(folder / "it")
    with pytest.raises(DamagedFileError, match=f"it is {kind}; expected a file"):
        open_regular_file(folder / "it")
    (folder / "file").write_bytes(b"x")
    (folder / "link").symlink_to(folder / "file")
    with open_regular_file(folder / "link") as file:
        assert file.read() == b"x"
    with pytest.raises(FileNotFoundError):
        open_regular_file(folder / "nothing")
