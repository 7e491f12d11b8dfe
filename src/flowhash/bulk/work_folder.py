"""The folder of a job: its plan, its parts, who works on it, and what is done."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, get_origin, get_type_hints

from flowhash.argument_checks import whole_number
from flowhash.bulk.runners import PartJob, Runner
from flowhash.durable_files import OLD_STRAY, flush_folder, hold_lock, naming, replace_file
from flowhash.errors import (
    Argument,
    DamagedFileError,
    InputError,
    LockedTableError,
    StorageError,
    reason,
)
from flowhash.progress_bars import shown
from flowhash.table import HashTable, TableSettings, read_manifest

PLAN = "_plan.json"
FORMAT, VERSION = "flowhash-bulk", 1
MOST_ROWS = 1 << 40  # of a part


@dataclass(frozen=True)
class WorkPlan:
    """What is done, to know it again."""

    command: str  # encode, index, search or neighbours
    inputs: dict[str, Any]  # tells them from others, and from themselves before they changed
    settings: dict[str, Any]  # whatever else the result depends on
    sizes: list[int]  # the rows of each part
    finished: bool = False  # whether nothing is left to do
    token: str = ""  # random; tells this work from the same work that is begun anew

    def same(self, other: WorkPlan) -> bool:
        """Whether the work is the same, however far it is."""
        return replace(self, finished=False, token="") == replace(other, finished=False, token="")

    @property
    def rows(self) -> int:
        """Of all parts."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Place:
    """Where workers put the parts of one work.

    A worker may outlive its driver, and finish a part of work that was begun anew meanwhile. So it
    looks at the plan before it gives a part its name. Whoever begins anew removes the plan first,
    then what has a temporary name, then the parts: a part that was named in between is removed.

    It may also outlive its part, on a node that was given up, and be killed when the work is over.
    So what is not finished lies in a folder of the driver's, which takes it away when the work
    ends: there is no place any more in which such a worker could leave something.
    """

    folder: Path  # of the work, as every node sees it
    token: str  # of its plan
    scratch: str  # the name of the folder in it for what is not finished

    @contextlib.contextmanager
    def new_file(self, path: Path) -> Iterator[Path]:
        """A name to write to; what is there when the block ends is on disk as ``path``, whole."""
        unfinished = self.unfinished(path)
        try:
            with naming(path):
                yield unfinished
                with unfinished.open("rb") as file:
                    os.fsync(file.fileno())
                self.check()
                unfinished.replace(path)
                flush_folder(path.parent)
        finally:
            unfinished.unlink(missing_ok=True)

    def unfinished(self, path: Path) -> Path:
        """A name for ``path`` that no other worker takes, for as long as it is written."""
        self.check()
        return self.folder / self.scratch / f"{path.name}.{secrets.token_hex(6)}"

    def check(self) -> None:
        """Refuse to go on if the work is no longer there."""
        plan = read_plan(self.folder)
        gone = not (self.folder / self.scratch).is_dir()
        if gone or plan is None or plan.token != self.token:
            raise StorageError(
                f"the work in {self.folder} was begun anew, ended or removed while this worker was "
                "at a part of it; nothing is to be done, its part is dropped"
            )


def part_path(folder: Path, part: int, suffix: str = ".parquet") -> Path:
    """Where a part is once it is done."""
    return folder / f"part-{part:06d}{suffix}"


def part_rows(rows: int | None, usual: int) -> int:
    """The rows of a part: what was asked for, or what is usual."""
    return usual if rows is None else whole_number("rows", rows, 1)


def even_sizes(rows: int, most: int) -> list[int]:
    """``rows`` cut into parts of ``most``, the last with what is left."""
    return [min(most, rows - start) for start in range(0, rows, most)]


def identity_of(paths: Iterable[Path]) -> list[list[Any]]:
    """What changes when files are written anew: name, size and time of each."""
    found = []
    for path in paths:
        with naming(path):
            status = path.stat()
        found.append([path.name, status.st_size, status.st_mtime_ns])
    return found


def read_plan(folder: Path) -> WorkPlan | None:
    """The plan of a folder, or None if it has none.

    Raises:
        DamagedFileError: there is one that cannot be read.
        StorageError: it was written by a newer FlowHash.
    """
    path = folder / PLAN
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no file")
        body = json.loads(path.read_bytes())
        kind, version = body.pop("format"), body.pop("version")
        if kind != FORMAT or not isinstance(version, int):
            raise ValueError("it is not of FlowHash")
        if version > VERSION:
            raise StorageError(
                f"{path} has format version {version}; this FlowHash reads up to {VERSION}. "
                "Install a newer one"
            )
        return _checked(WorkPlan(**body))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except StorageError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        raise DamagedFileError(
            f"{path} is damaged ({reason(error)}); remove the folder and begin anew"
        ) from error


def _checked(plan: WorkPlan) -> WorkPlan:
    """A plan as it was read, which may be anything."""
    for name, kind in get_type_hints(WorkPlan).items():
        if not isinstance(getattr(plan, name), get_origin(kind) or kind):
            raise TypeError(f"{name} is {getattr(plan, name)!r:.80}")
    if not all(type(size) is int and 0 <= size < MOST_ROWS for size in plan.sizes):
        raise TypeError(f"sizes is {plan.sizes!r:.80}")
    if plan.command in ("search", "neighbours"):  # what their answers are read by
        for name in ("top", "active"):
            if type(plan.settings.get(name)) is not int or plan.settings[name] < 1:
                raise TypeError(f"{name} is {plan.settings.get(name)!r:.80}")
    return plan


def difference(known: WorkPlan, plan: WorkPlan) -> str:
    """What a folder holds, in the words that tell it from what was asked for."""
    if known.command != plan.command:
        return f"the work of `flowhash bulk {known.command}`, not of `{plan.command}`"
    for what, old, new in (
        ("of other inputs", known.inputs, plan.inputs),
        ("with other settings", known.settings, plan.settings),
    ):
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                shown_values = f"{name}: {old.get(name)!s:.80} there, {new.get(name)!s:.80} now"
                return f"the work of `bulk {known.command}` {what} ({shown_values})"
    return f"the work of `bulk {known.command}` cut into other parts"


# Readers of parquet folders pass over names that begin with an underscore or a dot.
LOCK = "_lock"
DROPPED = "_dropped.json"  # the plan of work that is being removed
ADOPTING = "_adopting.json"  # of earlier versions: which files become a table's
ENCODED = "_encoded"  # queries that were encoded for a search lie in its folder
SCRATCH = ".parts-"  # a folder of what is not finished begins so
# Of earlier versions, and of drivers.
STRAYS = (".part-*", ".order.npy.*", "_*.json.new", "_*.json.*.new")


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C; the message says how far it was."""


class Work:
    """The parts of a plan in a folder, held by one process at a time.

    Args:
        folder: where they go; new, empty, or of the same plan.
        plan: what is to be done.
        suffix: of a part's file; "" where a part is a folder.
        restart: forget what is there, if it is such work.
        takes_over: whether the place of other work may be taken that is finished.

    Raises:
        InputError: the folder holds something else.
        LockedTableError: another process is at work in it.
    """

    def __init__(
        self, folder: Path, plan: WorkPlan, suffix: str = ".parquet", restart: bool = False,
        takes_over: bool = False,
    ) -> None:  # fmt: skip
        self.folder, self.plan, self.suffix = folder, plan, suffix
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; give a new or empty folder")
        if read_plan(folder) is None and folder.exists() and _not_ours(folder):
            raise InputError(
                f"{folder} holds other things; give a new or empty folder, or the one in which "
                "this work was begun"
            )
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(folder)
        self._scratch = folder / f"{SCRATCH}{secrets.token_hex(6)}"
        try:
            self._claim(read_plan(folder), restart, takes_over)
            with naming(self._scratch):
                self._scratch.mkdir()
        except BaseException:
            self.close()
            raise
        self.before = self.done = self.plan.rows - sum(self.plan.sizes[p] for p in self.missing())

    def _claim(self, known: WorkPlan | None, restart: bool, takes_over: bool) -> None:
        same = known is not None and known.same(self.plan)
        over = known is not None and known.finished and takes_over and not same
        if known is None or restart or over:
            self.clear()
            known = None
        if known is None:
            self.note(replace(self.plan, token=secrets.token_hex(6)))
        elif same:
            self.plan = known
        else:
            raise InputError(
                f"{self.folder} holds {difference(known, self.plan)}; give another folder, or, to "
                "drop what is there and begin anew,",
                Argument("restart", "True"),
            )
        self.remove_strays()

    @property
    def place(self) -> Place:
        """Where the parts go, for workers."""
        return Place(self.folder.absolute(), self.plan.token, self._scratch.name)

    def path(self, part: int) -> Path:
        """Where a part is once it is done."""
        return part_path(self.folder, part, self.suffix)

    def missing(self) -> list[int]:
        """The parts that are not done."""
        there = {entry.name for entry in self.folder.iterdir()}
        return [part for part in range(len(self.plan.sizes)) if self.path(part).name not in there]

    def carry_out(self, job: PartJob, runner: Runner, what: str, show: bool) -> None:
        """Do what is missing, under a bar with the title ``what``.

        Raises:
            Interrupted: Ctrl-C; the message says how far it is.
        """
        missing = self.missing()
        left = sum(self.plan.sizes[part] for part in missing)
        try:
            for done in shown(runner.run(job, missing), what, left, show):
                self.done += done.rows
        except KeyboardInterrupt:
            raise Interrupted(f"{self.done:,} of {self.plan.rows:,} rows are done") from None
        finally:
            _take_away(self._scratch)
        if still := self.missing():
            raise StorageError(
                f"{self.path(still[0])} was written by a worker, but is not seen here; every node "
                "of the cluster must see the same folder, on a shared file system"
            )

    def finish(self) -> None:
        """Note that nothing is left to do."""
        self.note(replace(self.plan, finished=True))

    def note(self, plan: WorkPlan) -> None:
        """Keep the plan."""
        body = {"format": FORMAT, "version": VERSION, **asdict(plan)}
        replace_file(self.folder / PLAN, json.dumps(body, indent=1).encode() + b"\n")
        self.plan = plan

    def clear(self) -> None:
        """Remove every part and the plan; nothing that is not ours."""
        # First, because without it parts are worth nothing. The new name lets whoever finds the
        # folder, if this is killed, know that the rest is ours.
        plan, dropped = self.folder / PLAN, self.folder / DROPPED
        if plan.exists():
            plan.replace(dropped)
        if dropped.exists():
            self.remove_strays()
            for kind in ("part-*", "_queries", ADOPTING):
                for entry in self.folder.glob(kind):
                    _remove(entry)
            dropped.unlink()

    def remove_strays(self) -> None:
        """Remove what workers, or drivers, that were killed have left."""
        for kind in STRAYS:
            for entry in self.folder.glob(kind):
                _remove(entry)
        for entry in self.folder.glob(f"{SCRATCH}*"):
            _take_away(entry)

    def close(self) -> None:
        """Give the folder back."""
        _take_away(self._scratch)
        self._lock.close()

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _not_ours(folder: Path) -> list[Path]:
    """What is in a folder without a plan, unless its work was being removed."""
    if (folder / DROPPED).exists():
        return []
    ours = re.compile(f"{LOCK}|{ENCODED}|{re.escape(PLAN)}{OLD_STRAY}")
    return [entry for entry in folder.iterdir() if not ours.fullmatch(entry.name)]


def _take_lock(folder: Path) -> IO[bytes]:
    if (folder / LOCK).exists() and not (folder / LOCK).is_file():
        raise StorageError(f"{folder / LOCK} is no file; remove it, or give another folder")
    file = hold_lock(folder / LOCK)
    if file is None:
        raise LockedTableError(
            f"another process is at work in {folder}; wait for its end, or give another folder"
        )
    return file


def _take_away(scratch: Path) -> None:
    """Remove a folder of what is not finished, with all that dead workers have left in it.

    First its name: a worker that still lives opens nothing there any more, nor does it find what it
    had opened when it comes to name it as a part.
    """
    gone = scratch.with_name(f"{SCRATCH}{secrets.token_hex(6)}")
    with contextlib.suppress(FileNotFoundError):
        scratch.rename(gone)
        _remove(gone)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class StoredTable:
    """A table's folder, and which state of it is meant."""

    path: Path  # as every node sees it
    settings: TableSettings
    name: str  # random; tells it from a table that is made anew in the same folder
    generation: int  # grows with every change

    @classmethod
    def of(cls, path: Path) -> StoredTable:
        """The state of this moment."""
        found = read_manifest(path)
        return cls(path.absolute(), found.settings, found.identity, found.generation)

    def identity(self) -> list[Any]:
        """What a plan keeps of it."""
        return [self.name, self.generation]

    def open(self) -> HashTable:
        """Open it to be searched, if it was not changed since the work began."""
        table = HashTable.open(self.path)
        if table.version != f"{self.name} {self.generation}":
            table.close()
            raise StorageError(
                f"{self.path} was changed while it was searched; change the table before or after, "
                "and begin anew with",
                advice=Argument("restart", "True"),
            )
        return table
