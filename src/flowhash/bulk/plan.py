"""What is done in a folder: the plan of a work, its inputs, and the names of its parts."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowhash.durable_files import naming
from flowhash.errors import DamagedFileError, StorageError, reason

PLAN = "_plan.json"
FORMAT, VERSION = "flowhash-bulk", 1
MOST_ROWS = 1 << 40  # of a part


@dataclass(frozen=True)
class Plan:
    """What is done, to know it again.

    Attributes:
        command: encode, index, search or neighbours.
        inputs: what tells the inputs from others, and from themselves before they changed.
        settings: whatever else the result depends on.
        sizes: the rows of each part.
        finished: whether nothing is left to do.
        token: random; tells this work from the same work that is begun anew.
    """

    command: str
    inputs: dict[str, Any]
    settings: dict[str, Any]
    sizes: list[int]
    finished: bool = False
    token: str = ""

    def same(self, other: Plan) -> bool:
        """Whether the work is the same, however far it is."""
        return replace(self, finished=False, token="") == replace(other, finished=False, token="")

    def begun(self) -> Plan:
        """This plan with a token of its own."""
        return replace(self, token=secrets.token_hex(6))

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

    Attributes:
        folder: of the work, as every node sees it.
        token: of its plan.
        scratch: the name of the folder in it for what is not finished.
    """

    folder: Path
    token: str
    scratch: str

    def unfinished(self, path: Path) -> Path:
        """A name for ``path`` that no other worker takes, for as long as it is written.

        Raises:
            StorageError: the work was begun anew, ended, or removed.
        """
        self.check()
        return self.folder / self.scratch / f"{path.name}.{secrets.token_hex(6)}"

    def check(self) -> None:
        """Refuse to go on if the work is no longer there.

        Raises:
            StorageError: it was begun anew, ended, or removed.
        """
        plan = read_plan(self.folder)
        gone = not (self.folder / self.scratch).is_dir()
        if gone or plan is None or plan.token != self.token:
            raise StorageError(
                f"the work in {self.folder} was begun anew, ended or removed while this worker was "
                "at a part of it; nothing is to be done, its part is dropped"
            )


def part_name(part: int) -> str:
    """What a part is called."""
    return f"part-{part:06d}"


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
        return _checked(Plan(**body))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except StorageError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        raise DamagedFileError(
            f"{path} is damaged ({reason(error)}); remove the folder and begin anew"
        ) from error


def _checked(plan: Plan) -> Plan:
    """A plan as it was read, which may be anything.

    Raises:
        TypeError: a field is not of its kind.
    """
    kinds = {"command": str, "inputs": dict, "settings": dict, "sizes": list, "finished": bool,
             "token": str}  # fmt: skip
    for name, kind in kinds.items():
        if not isinstance(getattr(plan, name), kind):
            raise TypeError(f"{name} is {getattr(plan, name)!r:.80}")
    if not all(type(size) is int and 0 <= size < MOST_ROWS for size in plan.sizes):
        raise TypeError(f"sizes is {plan.sizes!r:.80}")
    if plan.command in ("search", "neighbours"):  # what their answers are read by
        for name in ("top", "active"):
            if type(plan.settings.get(name)) is not int or plan.settings[name] < 1:
                raise TypeError(f"{name} is {plan.settings.get(name)!r:.80}")
    return plan


def difference(known: Plan, plan: Plan) -> str:
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
