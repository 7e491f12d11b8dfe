"""Segments that were built elsewhere, as tables of their own, become segments of one table.

The result is that of adding their items one table after another, but nothing is written again: the
files are linked into the table's folder, and one manifest names all of them.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flowhash.durable_files import naming
from flowhash.errors import InputError
from flowhash.table import change
from flowhash.table.folder import Folder
from flowhash.table.ids import INT64, NO_STRINGS, Ids, Strings, pack
from flowhash.table.manifest import SegmentFile
from flowhash.table.segment import Segment
from flowhash.table.state import Part, State
from flowhash.table.table import HashTable

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)


def adopt(
    table: HashTable,
    folders: Sequence[Path],
    before_commit: Callable[[list[SegmentFile]], None] = lambda files: None,
) -> int:
    """Take over the segments of other tables, in one step; later ones replace earlier ids.

    Args:
        table: on disk, opened to be changed. What it has under the same ids is replaced.
        folders: of tables with the same settings; they stay as they are. Files are copied only
            where the file system has no links.
        before_commit: called with the new files when they are in the folder and not yet in the
            table, so that a caller who dies then can tell later whether they got there.

    Returns:
        How many items were taken over, those that later ones replace not counted.

    Raises:
        InputError: a table has other settings.
        StorageError: the files could not be taken over; the table is as it was.
    """
    with table._changing() as state:
        folder = table._folder
        if folder is None:
            raise InputError(
                "a table in memory has no folder to take files into; create it on disk"
            )
        old, new = _replaced(state, _parts(folder, folders))
        next_id = state.next_id
        if table.id_kind == INT64:
            ends = [int(part.segment.arrays.ids.max(initial=-1)) + 1 for part in new.parts]
            next_id = max([next_id, *ends])
        try:
            taken = [_take(folder, part) for part in new.parts]
            known = State((*state.parts, *taken))
            changed = [
                replace(fresh, alive=part.alive, live=part.live) if len(part.alive) else fresh
                for part, fresh in zip(new.parts, taken, strict=True)
            ]
            after = State((*old.parts, *changed), next_id)
            after = change._write_deletions(folder, known, after)
            before_commit([part.file for part in after.parts[len(old.parts) :] if part.file])
            folder.commit(after)
        except BaseException:
            folder.remove_uncommitted()
            raise
        table._state = after
    return sum(part.live for part in changed)


def holds(table: HashTable, files: Sequence[SegmentFile]) -> bool:
    """Whether any of these files, as they were told before a commit, belongs to the table."""
    assert table._folder is not None
    known = {replace(entry, deleted=None) for entry in table._folder.manifest.segments}
    return any(replace(entry, deleted=None) in known for entry in files)


def tidy(table: HashTable) -> None:
    """Merge segments where many of like size have gathered, as ``add`` does."""
    with table._changing() as state:
        table._state = change.tidy(table._settings, table._folder, state)


def _parts(folder: Folder, others: Sequence[Path]) -> list[Part]:
    """The parts of other tables."""
    found: list[Part] = []
    for path in others:
        other = Folder(path, writable=False)
        if other.manifest.settings != folder.manifest.settings:
            raise InputError(
                f"{path} has other settings than {folder.path}; tables that become one need the "
                "same buckets, dim, active, metric, dtype, ids and encoder"
            )
        found += other.load().parts
    return found


def _replaced(state: State, parts: Sequence[Part]) -> tuple[State, State]:
    """The old parts and the new ones, each without the rows that a later one replaces."""
    for part in parts:
        part.segment.ensure("ids", "names", "name_offsets")
    repeated = _repeated([part.segment.arrays.ids[part.live_rows()] for part in parts])
    old, new = State(state.parts), State()
    for part in parts:
        ids = _ids_at(part.segment, part.live_rows())
        old = old.without(*old.locate(ids))
        if len(repeated):  # only these can be in another new part, too
            again = np.flatnonzero(np.isin(ids.keys, repeated))
            some = _ids_at(part.segment, part.live_rows()[again])
            new = new.without(*new.locate(some))
        new = State((*new.parts, part))
    return old, new


def _repeated(keys: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The keys that more than one of these arrays has, ascending; each has a key once."""
    found = [np.empty(0, np.int64)]
    for group in _overlapping(keys):
        together = np.sort(np.concatenate(group))
        found.append(together[1:][together[1:] == together[:-1]])
    return np.unique(np.concatenate(found))


def _overlapping(keys: Sequence[NDArray[np.int64]]) -> list[list[NDArray[np.int64]]]:
    """Arrays in groups whose ranges touch; numbers of rows, which ascend, make no group at all."""
    ranges = sorted(
        (int(some.min()), int(some.max()), number) for number, some in enumerate(keys) if len(some)
    )
    groups: list[list[NDArray[np.int64]]] = []
    end = 0
    for low, high, number in ranges:
        if not groups or low > end:
            groups.append([])
            end = high
        groups[-1].append(keys[number])
        end = max(end, high)
    return [group for group in groups if len(group) > 1]


def _ids_at(segment: Segment, rows: NDArray[np.int64]) -> Ids:
    names = segment.names
    if len(names.offsets) and len(rows) < segment.rows:
        names = pack(names.at(row) for row in rows.tolist())
    elif not len(names.offsets):
        names = NO_STRINGS
    return Ids(segment.arrays.ids[rows], Strings(*names))


def _take(folder: Folder, part: Part) -> Part:
    """The file of a part under a name of its own in this folder; all of its rows alive."""
    assert part.file is not None
    name = f"segment-{folder._take_number():010d}.safetensors"
    path = folder.path / name
    folder._new.add(name)
    with naming(path):
        try:
            os.link(part.segment.file, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            _copy(Path(part.segment.file), path)
    return folder.load_part(replace(part.file, file=name, deleted=None))


def _copy(source: Path, path: Path) -> None:
    """For file systems without links. The original stays, in case that nothing is committed."""
    with source.open("rb") as original, path.open("xb") as file:
        shutil.copyfileobj(original, file, 1 << 24)
        file.flush()
        os.fsync(file.fileno())
