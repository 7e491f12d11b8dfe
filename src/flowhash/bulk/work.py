"""A folder of work: a plan, and the parts that are done. The same command goes on with the rest."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from flowhash.bars import shown
from flowhash.bulk.job import Job, Runner
from flowhash.errors import DamagedFileError, InputError, LockedTableError, StorageError
from flowhash.table.files import naming, replace_file

# Readers of parquet folders pass over names that begin with an underscore or a dot.
PLAN, LOCK = "_plan.json", "_lock"
ENCODED = "_encoded"  # queries that were encoded for a search lie in its folder
STRAYS = (".part-*", ".order.npy.*", "_*.json.new")
FORMAT, VERSION = "flowhash-bulk", 1


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C; the message says how far it was."""


@dataclass(frozen=True)
class Plan:
    """What is done, to know it again.

    Attributes:
        command: encode, index, search or neighbours.
        inputs: what tells the inputs from others, and from themselves before they changed.
        settings: whatever else the result depends on.
        sizes: the rows of each part.
        finished: whether nothing is left to do.
    """

    command: str
    inputs: dict[str, Any]
    settings: dict[str, Any]
    sizes: list[int]
    finished: bool = False

    @property
    def rows(self) -> int:
        """Of all parts."""
        return sum(self.sizes)


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
        self, folder: Path, plan: Plan, suffix: str = ".parquet", restart: bool = False,
        takes_over: bool = False,
    ) -> None:  # fmt: skip
        self.folder, self.plan, self.suffix = folder, plan, suffix
        known = read_plan(folder)
        if known is None and folder.exists() and any(_not_ours(folder)):
            raise InputError(
                f"{folder} holds other things; give a new or empty folder, or the one in which "
                "this work was begun"
            )
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(folder)
        try:
            self._claim(read_plan(folder), restart, takes_over)
        except BaseException:
            self.close()
            raise
        self.before = self.done = self.plan.rows - sum(self.plan.sizes[p] for p in self.missing())

    def _claim(self, known: Plan | None, restart: bool, takes_over: bool) -> None:
        same = known is not None and replace(known, finished=False) == self.plan
        over = known is not None and known.finished and takes_over and not same
        if known is not None and (restart or over):
            self.clear()
            known = None
        if known is None:
            self.note(self.plan)
        elif same:
            self.plan = known
        else:
            raise InputError(
                f"{self.folder} holds {_difference(known, self.plan)}; give another folder, or "
                "--restart to drop what is there and begin anew"
            )
        self.remove_strays()

    def path(self, part: int) -> Path:
        """Where a part is once it is done."""
        return self.folder / f"{part_name(part)}{self.suffix}"

    def missing(self) -> list[int]:
        """The parts that are not done."""
        there = {entry.name for entry in self.folder.iterdir()}
        return [part for part in range(len(self.plan.sizes)) if self.path(part).name not in there]

    def carry_out(self, job: Job, runner: Runner, what: str, show: bool) -> None:
        """Do what is missing.

        Args:
            job: does the parts.
            runner: where.
            what: the bar's title.
            show: whether to show a bar.

        Raises:
            Interrupted: Ctrl-C; the message says how far it is.
        """
        missing = self.missing()
        left = sum(self.plan.sizes[part] for part in missing)
        try:
            for done in shown(runner.run(job, missing), what, left, show):
                self.done += done.rows
        except KeyboardInterrupt:
            words = f"{self.done:,} of {self.plan.rows:,} rows are done"
            raise Interrupted(words) from None
        if still := self.missing():
            raise StorageError(
                f"{self.path(still[0])} was written by a worker, but is not seen here; every node "
                "of the cluster must see the same folder, on a shared file system"
            )

    def finish(self) -> None:
        """Note that nothing is left to do."""
        self.note(replace(self.plan, finished=True))

    def note(self, plan: Plan) -> None:
        """Keep the plan."""
        body = {"format": FORMAT, "version": VERSION, **asdict(plan)}
        replace_file(self.folder / PLAN, json.dumps(body, indent=1).encode() + b"\n")
        self.plan = plan

    def clear(self) -> None:
        """Remove every part and the plan; nothing that is not ours."""
        (self.folder / PLAN).unlink(missing_ok=True)  # first: without it, parts are worth nothing
        self.remove_strays()
        for entry in [*self.folder.glob("part-*"), *self.folder.glob("_queries")]:
            _remove(entry)

    def remove_strays(self) -> None:
        """Remove what workers, or drivers, that were killed have left."""
        for kind in STRAYS:
            for entry in self.folder.glob(kind):
                _remove(entry)

    def close(self) -> None:
        """Give the folder back."""
        self._lock.close()

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def part_name(part: int) -> str:
    """What a part is called."""
    return f"part-{part:06d}"


def unfinished_name(path: Path) -> Path:
    """A name beside ``path`` that no other worker takes, for as long as it is written."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}")


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


def read_plan(folder: Path) -> Plan | None:
    """The plan of a folder, or None if it has none.

    Raises:
        DamagedFileError: there is one that cannot be read.
        StorageError: it was written by a newer FlowHash.
    """
    path = folder / PLAN
    try:
        body = json.loads(path.read_bytes())
        kind, version = body.pop("format"), body.pop("version")
        if kind != FORMAT or not isinstance(version, int):
            raise ValueError("it is not of FlowHash")
        if version > VERSION:
            raise StorageError(
                f"{path} has format version {version}; this FlowHash reads up to {VERSION}. "
                "Install a newer one"
            )
        return Plan(**body)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except StorageError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        raise DamagedFileError(
            f"{path} is damaged ({error}); remove the folder and begin anew"
        ) from error


def _not_ours(folder: Path) -> list[Path]:
    ours = (LOCK, ENCODED, f"{PLAN}.new")
    return [entry for entry in folder.iterdir() if entry.name not in ours]


def _difference(known: Plan, plan: Plan) -> str:
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


def _take_lock(folder: Path) -> IO[bytes]:
    import fcntl

    file = (folder / LOCK).open("ab")
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise LockedTableError(
            f"another process is at work in {folder}; wait for its end, or give another folder"
        ) from error
    return file


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
