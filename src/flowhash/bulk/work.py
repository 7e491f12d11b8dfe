"""A folder of work: a plan, and the parts that are done. The same command goes on with the rest."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

from flowhash.bulk.job import Job, Runner
from flowhash.bulk.plan import FORMAT, PLAN, VERSION, Place, Plan, difference, part_name, read_plan
from flowhash.durable_files import OLD_STRAY, naming, replace_file
from flowhash.errors import InputError, LockedTableError, StorageError
from flowhash.progress_bars import shown

# Readers of parquet folders pass over names that begin with an underscore or a dot.
LOCK = "_lock"
DROPPED = "_dropped.json"  # the plan of work that is being removed
ADOPTING = "_adopting.json"  # which files become a table's
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
        self, folder: Path, plan: Plan, suffix: str = ".parquet", restart: bool = False,
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

    def _claim(self, known: Plan | None, restart: bool, takes_over: bool) -> None:
        same = known is not None and known.same(self.plan)
        over = known is not None and known.finished and takes_over and not same
        if known is None or restart or over:
            self.clear()
            known = None
        if known is None:
            self.note(self.plan.begun())
        elif same:
            self.plan = known
        else:
            raise InputError(
                f"{self.folder} holds {difference(known, self.plan)}; give another folder, or "
                "--restart to drop what is there and begin anew"
            )
        self.remove_strays()

    @property
    def place(self) -> Place:
        """Where the parts go, for workers."""
        return Place(self.folder.absolute(), self.plan.token, self._scratch.name)

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

    def note(self, plan: Plan) -> None:
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
    import fcntl

    if (folder / LOCK).exists() and not (folder / LOCK).is_file():  # a pipe would be waited for
        raise StorageError(f"{folder / LOCK} is no file; remove it, or give another folder")
    file = (folder / LOCK).open("ab")
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise LockedTableError(
            f"another process is at work in {folder}; wait for its end, or give another folder"
        ) from error
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
