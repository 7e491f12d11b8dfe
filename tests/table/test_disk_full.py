"""Writes that fail: the error names the file, the table is as it was, and works on.

Once with steps that fail on purpose, each in its turn; once with a disk that is really full: a
small tmpfs in a namespace of a child's own, where the system allows that.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.durable_files import STRAY
from flowhash.errors import StorageError
from flowhash.table import HashTable
from flowhash.table.integrity import folder_faults
from tests.table.writer import KINDS, Kind, Model, Operation, added, operation, strays

ROOT = Path(__file__).resolve().parents[2]


class Failing:
    """Makes the steps of writing fail: step ``number`` alone, or all steps from it on."""

    def __init__(self, number: int, lasting: bool) -> None:
        self.number = number
        self.lasting = lasting
        self.count = 0
        self.done: list[str] = []
        self.failed: list[str] = []

    def step(self, what: str, name: Any = None) -> None:
        number, self.count = self.count, self.count + 1
        if number == self.number or (self.lasting and number > self.number):
            self.failed.append(what)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        self.done.append(what)


class FailingFile:
    """A file whose writes may stop halfway."""

    def __init__(self, file: Any, failing: Failing) -> None:
        self.file = file
        self.failing = failing

    def __enter__(self) -> FailingFile:
        return self

    def __exit__(self, *details: Any) -> None:
        self.file.close()

    def write(self, data: Any) -> int:
        try:
            self.failing.step(f"write {Path(self.file.name).name}")
        except OSError:
            self.file.write(bytes(data)[: len(bytes(data)) // 2])
            raise
        return int(self.file.write(data))

    def flush(self) -> None:
        self.failing.step(f"flush {Path(self.file.name).name}")
        self.file.flush()

    def fileno(self) -> int:
        return int(self.file.fileno())


@contextlib.contextmanager
def failing_at(number: int, lasting: bool = False) -> Iterator[Failing]:
    """Let a step of writing fail: making, writing, flushing or renaming a file."""
    failing = Failing(number, lasting)
    real_open, real_flush, real_rename = io.open, os.fsync, os.replace

    def open_file(path: Any, mode: str = "r", *others: Any, **options: Any) -> Any:
        if isinstance(path, int) or not set(mode) & set("wxa+"):  # the lock, and what is read
            return real_open(path, mode, *others, **options)
        failing.step(f"open {Path(path).name}", str(path))
        return FailingFile(real_open(path, mode, *others, **options), failing)

    def flush(handle: int) -> None:
        failing.step(f"fsync {Path(f'/proc/self/fd/{handle}').resolve().name}")
        real_flush(handle)

    def rename(source: Any, target: Any) -> None:
        failing.step(f"rename {Path(source).name}", str(source))
        real_rename(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", open_file)
        patch.setattr(os, "fsync", flush)
        patch.setattr(os, "replace", rename)
        yield failing


def renamed(failing: Failing) -> bool:
    """Whether the new manifest had taken its place before the first failure."""
    return any(step.startswith("rename") for step in failing.done)


def prepared(kind: Kind, path: Path) -> Model:
    """A table of a few segments with deletions; adds to it merge nothing."""
    rng = np.random.default_rng(7)
    model = Model(kind)
    with kind.create(path) as table:
        for first in (0, 6, 9):
            ids = [_id(kind, one) for one in range(first, first + 8)]
            change = added(kind, rng, ids, 8)
            change.run(table)
            model = model.after(change)
        change = Operation("delete", [_id(kind, 2)])
        change.run(table)
    return model.after(change)


def _id(kind: Kind, number: int) -> Any:
    return number if kind.ids == "int64" else f"item {number}"


def changes(kind: Kind) -> dict[str, Operation]:
    rng = np.random.default_rng(8)
    return {
        "add": added(kind, rng, [_id(kind, one) for one in (1, 7, 30, 31)], 4),
        "delete": Operation("delete", [_id(kind, one) for one in (0, 7, 16)]),
        "compact": Operation("compact"),
        "recode": Operation("recode", encoder="another"),
    }


def must_be(path: Path, *models: Model) -> Model:
    """A stored table is whole and has the content of one of these."""
    assert folder_faults(path) == []
    with HashTable.open(path) as table:
        found = next((one for one in models[:-1] if one.differences(table) == []), models[-1])
        assert found.differences(table) == []
        assert found.wrong_answers(table) == []
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("what", ["add", "delete", "compact", "recode"])
@pytest.mark.parametrize("name", ["listed", pytest.param("halves", marks=pytest.mark.slow)])
def test_every_step_may_fail(tmp_path: Path, name: str, what: str, lasting: bool) -> None:
    kind = KINDS[name]
    base, path = tmp_path / "base", tmp_path / "table"
    model = prepared(kind, base)
    change = changes(kind)[what]
    number = 0
    while True:
        shutil.copytree(base, path)
        with HashTable.open(path, "r+") as table:
            try:
                with failing_at(number, lasting) as failing:
                    change.run(table)
                break
            except StorageError as error:
                message = str(error)
            # The file's name; a folder that cannot be flushed has only its own.
            file = failing.failed[0].split()[1]
            assert str(path) in message, failing.failed
            assert "space" in message
            file = re.sub(f"{STRAY}$", "", file)
            assert file in message, f"{failing.failed} said {message}"
            # As it was: in memory, on disk, and for the next who opens it. Only if the new manifest
            # is in its place, and the old one cannot be put back, may the change be there after
            # all; whole even then, and in memory as on disk.
            later = model.after(change)
            stuck = lasting and failing.failed[0] == "fsync table" and renamed(failing)
            possible = [model, later] if stuck else [model]
            now = next(one for one in possible if one.differences(table) == [])
            assert now.wrong_answers(table) == []
            must_be(path, now)
            change.run(table)  # the disk has room again
            assert later.differences(table) == []
            must_be(path, later)
        HashTable.open(path, "r+").close()
        assert strays(path) == set()
        must_be(path, later)
        shutil.rmtree(path)
        number += 1
    assert failing.failed == []
    assert number == failing.count > 6


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_after_a_failure_the_next_who_opens_it_cleans_up(tmp_path: Path, lasting: bool) -> None:
    kind = KINDS["listed"]
    base, path = tmp_path / "base", tmp_path / "table"
    model = prepared(kind, base)
    change = changes(kind)["add"]
    for number in range(1000):
        shutil.copytree(base, path)
        table = HashTable.open(path, "r+")
        with (
            failing_at(number, lasting) as failing,
            pytest.MonkeyPatch.context() as patch,
            contextlib.suppress(StorageError),
        ):
            patch.setattr(os, "unlink", lambda *_, **__: failing.step("unlink"))  # neither that
            change.run(table)
        table.close()
        if not failing.failed:
            break
        later = model.after(change)
        HashTable.open(path, "r+").close()
        assert strays(path) == set()
        if failing.failed[0] == "unlink":  # done; only tidying up was left
            must_be(path, later)
        elif lasting and renamed(failing):
            must_be(path, model, later)
        else:
            must_be(path, model)
        shutil.rmtree(path)
    assert number > 6


def seven_segments(path: Path) -> tuple[Model, Operation, Operation]:
    """Make a table that merges its segments at the next add; its content, and two adds."""
    kind = KINDS["listed"]
    rng = np.random.default_rng(3)
    model = Model(kind)
    with kind.create(path) as table:
        for number in range(7):
            change = added(kind, rng, [2 * number, 2 * number + 1], 2)
            change.run(table)
            model = model.after(change)
    return model, added(kind, rng, [100, 1], 2), added(kind, rng, [200], 1)


def test_a_merge_that_fails_is_only_put_off(tmp_path: Path) -> None:
    base, path = tmp_path / "base", tmp_path / "table"
    first, eighth, ninth = seven_segments(base)
    put_off = number = 0
    while True:
        shutil.copytree(base, path)
        table, model = HashTable.open(path, "r+"), first
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with failing_at(number) as failing:
                    eighth.run(table)
                model = model.after(eighth)
            except StorageError:
                assert not caught  # it was the add itself
        if not failing.failed:
            break
        if caught:
            (warning,) = caught
            assert warning.category is RuntimeWarning
            assert "could not be merged now" in str(warning.message)
            assert "space" in str(warning.message)
            put_off += 1
        assert model.differences(table) == []
        must_be(path, model)
        ninth.run(table)  # merges what was put off
        model = model.after(ninth)
        assert len(list(path.glob("segment-*"))) <= 2
        table.close()
        HashTable.open(path, "r+").close()
        assert strays(path) == set()
        must_be(path, model)
        shutil.rmtree(path)
        number += 1
    table.close()
    assert len(list(path.glob("segment-*"))) == 1
    assert number // 3 < put_off < number


# A disk that is really full.


def fill_up(folder: Path) -> None:
    """Add, delete and compact on a small disk until it is full, and go on; prints what happened."""
    kind = KINDS["listed"]
    path = folder / "table"
    model = Model(kind)
    counts = {"done": 0, "refused": 0, "problems": []}
    rng = np.random.default_rng(0)
    table = kind.create(path)
    for number in range(120):
        change = operation(kind, 11, number)
        if number % 3 == 0:  # ever more, and larger than what is left in the end
            ids = rng.integers(10**6, size=150).tolist()
            change = added(kind, rng, ids, 150)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # merges that were put off
                change.run(table)
            model = model.after(change)
            counts["done"] += 1
        except StorageError as error:
            counts["refused"] += 1
            if str(path) not in str(error):
                counts["problems"].append(f"{number} {change.name}: {error}")
        except Exception as error:
            counts["problems"].append(f"{number} {change.name}: {type(error).__name__} {error}")
        if number % 20 == 19:
            counts["problems"] += model.differences(table) + folder_faults(path)
            table.close()
            table = HashTable.open(path, "r+")
            counts["problems"] += model.differences(table) + model.wrong_answers(table)
            counts["problems"] += [f"stray {name}" for name in strays(path)]
    counts["full"] = counts["refused"] > 0
    # Room again: deleting and compacting work when the ballast is gone.
    for entry in folder.glob("ballast*"):
        entry.unlink()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    table.delete(sorted(model.items)[::2])
    table.compact()
    model = model.after(Operation("delete", sorted(model.items)[::2]))
    counts["problems"] += model.differences(table) + table.check()
    print(json.dumps(counts))


def run_child(prepare: str, folder: Path, *before: str) -> dict[str, Any]:
    script = f"""
from pathlib import Path
import os, resource, signal, subprocess
from tests.table.test_disk_full import fill_up
folder = Path({str(folder)!r})
{prepare}
fill_up(folder)
"""
    run = subprocess.run(
        [*before, sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


NAMESPACE = ("unshare", "--map-root-user", "--mount")


def namespaces_work() -> bool:
    mount = "mount -t tmpfs -o size=64k tmpfs /mnt"
    if shutil.which("unshare") is None:
        return False
    run = subprocess.run([*NAMESPACE, "sh", "-c", mount], capture_output=True, check=False)
    return run.returncode == 0


def judge(result: dict[str, Any]) -> None:
    assert result["problems"] == []
    assert result["refused"] > 10
    assert result["done"] > 20


@pytest.mark.skipif(not namespaces_work(), reason="the system allows no small disk to be mounted")
def test_a_small_disk(tmp_path: Path) -> None:
    prepare = """
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], check=True)
(folder / "ballast").write_bytes(bytes(256 * 1024))
"""
    judge(run_child(prepare, tmp_path, *NAMESPACE))
    assert list(tmp_path.iterdir()) == []  # it was all on the small disk


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    prepare = f"""
signal.signal(signal.{signal.SIGXFSZ.name}, signal.SIG_IGN)  # or the system would end the process
folder.mkdir(exist_ok=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, resource.RLIM_INFINITY))
"""
    judge(run_child(prepare, tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to the superuser")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    prepared(KINDS["listed"], tmp_path / "table")
    with HashTable.open(tmp_path / "table", "r+") as table:
        (tmp_path / "table").chmod(0o500)
        try:
            with pytest.raises(StorageError, match="segment-"):
                table.compact()
        finally:
            (tmp_path / "table").chmod(0o700)


def test_creating_a_table_may_fail(tmp_path: Path) -> None:
    kind, path = KINDS["listed"], tmp_path / "table"
    with failing_at(10**9) as counting:
        kind.create(path).close()
    assert counting.count > 4
    shutil.rmtree(path)
    for number in range(counting.count):  # again and again in the same place
        with failing_at(number), pytest.raises(StorageError, match="space"):
            kind.create(path)
        assert {entry.name for entry in path.iterdir()} <= {"writer.lock"}
    (path / "manifest.json.0123456789abcdef.new").write_bytes(b"left by a process that was killed")
    kind.create(path).close()
    assert strays(path) == set()
    must_be(path, Model(kind))


# No descriptor is left.


class Descriptors:
    """Takes every descriptor that the process may have, as its other threads might."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def take(self) -> None:
        highest = os.dup(0)
        os.close(highest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 64, self.limits[1]))
        with contextlib.suppress(OSError):
            while True:
                self.taken.append(os.open(os.devnull, os.O_RDONLY))

    def give_back(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)
        while self.taken:
            os.close(self.taken.pop())


@pytest.fixture
def descriptors() -> Iterator[Descriptors]:
    found = Descriptors()
    yield found
    found.give_back()


@pytest.mark.parametrize("what", ["add", "delete", "compact", "recode"])
def test_no_descriptor_is_left_after_the_rename(
    tmp_path: Path, descriptors: Descriptors, what: str
) -> None:
    kind, path = KINDS["listed"], tmp_path / "table"
    model = prepared(kind, path)
    change, rename = changes(kind)[what], os.replace

    def refuse(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def rename_and_take(source: Any, target: Any) -> None:
        rename(source, target)
        descriptors.take()
        patch.setattr(os, "open", refuse)  # whoever closes one does not get it back

    with HashTable.open(path, "r+") as table, HashTable.open(path) as reader:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", rename_and_take)
            change.run(table)  # it is stored, so it must not say anything else
        descriptors.give_back()
        model = model.after(change)
        assert model.differences(table) == []
        must_be(path, model)
        assert reader.refresh()
        assert model.differences(reader) == []


def test_a_reader_sees_what_follows_a_change_that_nobody_could_take_back(
    tmp_path: Path,
) -> None:
    """The disk fails after the rename, and no descriptor is left to look at what is on it."""
    kind, path = KINDS["listed"], tmp_path / "table"
    model = prepared(kind, path)
    first, second = changes(kind)["add"], changes(kind)["delete"]
    rename = os.replace

    def rename_and_fail(source: Any, target: Any) -> None:
        rename(source, target)
        patch.setattr(os, "fsync", fail)
        patch.setattr(os, "open", fail)

    def fail(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with HashTable.open(path, "r+") as table, HashTable.open(path) as reader:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", rename_and_fail)
            with pytest.raises(StorageError):
                first.run(table)
        assert reader.refresh()  # it is there for whoever looks now
        assert model.differences(table) == []
        second.run(table)
        model = model.after(second)
        assert reader.refresh()
        assert model.differences(reader) == model.differences(table) == []
    must_be(path, model)


@pytest.mark.parametrize("spare", range(5))
def test_few_descriptors_are_left(tmp_path: Path, descriptors: Descriptors, spare: int) -> None:
    kind, path = KINDS["listed"], tmp_path / "table"
    model = prepared(kind, path)
    change = changes(kind)["add"]
    with HashTable.open(path, "r+") as table:
        descriptors.take()
        for _ in range(spare):
            os.close(descriptors.taken.pop())
        try:
            change.run(table)
            model = model.after(change)
        except StorageError:
            assert spare < 3
        finally:
            descriptors.give_back()
        assert model.differences(table) == []
        must_be(path, model)
