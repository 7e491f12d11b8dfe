"""Changes of a table: add, delete, merge, compact and adopt make one state from another."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import InputError
from flowhash.table.arguments import NewRows
from flowhash.table.ids import INT64, Ids, last_of_each, pack_strings
from flowhash.table.segments.segment import NO_ROWS, LiveSegment, Segment, TableState
from flowhash.table.segments.segment_draft import SegmentDraft, draft, given, in_memory, stored
from flowhash.table.storage.manifest import LARGEST_SEGMENT
from flowhash.table.storage.table_folder import TableFolder
from flowhash.table.table_settings import TableSettings

FAN = 8  # so many segments of like size are merged into one


# Of the changes that take ``notes``: all of the table's, committed in the same step; None leaves
# them as they are.
Notes = dict[str, Any] | None


def add(
    settings: TableSettings,
    folder: TableFolder | None,
    state: TableState,
    items: NewRows,
    notes: Notes = None,
) -> TableState:
    """The state with new items; older ones with the same ids are gone."""
    ids = items.ids
    assert ids is not None
    rows = None
    ascending = None
    keys, codes = ids.keys, items.codes
    kept = state
    if not items.assigned:
        if not (keys[1:] > keys[:-1]).all():
            ascending = np.argsort(keys, kind="stable")
            last = last_of_each(ascending, keys, ids.names)
            if not last.all():
                rows = np.flatnonzero(last)
                keys, codes = keys[rows], codes[rows]
                ascending = np.argsort(keys, kind="stable")
        kept = state.without(*state.locate(ids))
    source = given(items.embeddings, ids, items.payloads)
    nobody = np.empty(0, np.int32)
    plan = draft([source], nobody, rows, keys, codes, ascending, settings)
    next_id = state.next_id
    if settings.ids == INT64:
        next_id = max(next_id, int(keys.max()) + 1)
    return _store(folder, state, kept, plan, next_id, notes)


def store(
    folder: TableFolder | None, before: TableState, after: TableState, notes: Notes = None
) -> TableState:
    """Make a state that differs in deleted rows or notes only the table's."""
    if folder is None:
        return after
    with folder.transaction():
        after = _write_deletions(folder, before, after)
        folder.commit(after, notes)
    return after


def tidy(settings: TableSettings, folder: TableFolder | None, state: TableState) -> TableState:
    """Merge segments where many of like size have gathered, or where most rows are deleted.

    The change that led here is done already; what fails now is only put off.
    """
    try:
        while True:
            chosen = _crowd(state)
            if not chosen:
                return state
            state = _merge(settings, folder, state, chosen)
    except Exception as error:
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors, too
            text = f"segments could not be merged now: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        return state if folder is None else folder.load(state)


def compact(settings: TableSettings, folder: TableFolder | None, state: TableState) -> TableState:
    """All live rows in one segment, or in as few as their size allows."""
    groups: list[list[LiveSegment]] = [[]]
    for part in state.parts:
        if sum(other.live for other in groups[-1]) + part.live >= LARGEST_SEGMENT:
            groups.append([])
        groups[-1].append(part)
    for group in groups:
        if len(group) > 1 or any(len(part.alive) for part in group):
            state = _merge(settings, folder, state, group)
    return state


def _crowd(state: TableState) -> list[LiveSegment]:
    """Parts that should become one: FAN of a size, or one that is mostly deleted."""
    tiers: dict[int, list[LiveSegment]] = {}
    for part in state.parts:
        if 2 * part.live < part.segment.rows:
            return [part]
        size = 0
        while FAN ** (size + 1) <= part.live:
            size += 1
        tiers.setdefault(size, []).append(part)
    for parts in tiers.values():
        if len(parts) >= FAN and sum(part.live for part in parts) < LARGEST_SEGMENT:
            return parts
    return []


def _merge(
    settings: TableSettings,
    folder: TableFolder | None,
    state: TableState,
    old: Sequence[LiveSegment],
) -> TableState:
    """The state with the live rows of some parts in one new part."""
    rows, keys, codes = [], [], []
    for part in old:
        segment, live = part.segment, part.live_rows()
        segment.ensure("ids", "codes", "names", "name_offsets", "payloads", "payload_offsets")
        rows.append(live)
        keys.append(segment.arrays.ids[live])
        codes.append(segment.codes_at(live))
    all_keys = np.concatenate(keys)
    plan = draft(
        [stored(part.segment) for part in old],
        np.repeat(np.arange(len(old), dtype=np.int32), [part.live for part in old]),
        np.concatenate(rows),
        all_keys,
        np.concatenate(codes),
        np.argsort(all_keys, kind="stable"),
        settings,
    )
    kept = replace(state, parts=tuple(part for part in state.parts if part not in old))
    return _store(folder, state, kept, plan, state.next_id)


def _store(
    folder: TableFolder | None,
    before: TableState,
    kept: TableState,
    plan: SegmentDraft,
    next_id: int,
    notes: Notes = None,
) -> TableState:
    """The kept parts and a new one, made from a draft; committed if there is a folder."""
    if folder is None:
        segment = in_memory(plan)
        part = LiveSegment(segment, NO_ROWS, segment.rows)
        return replace(kept, parts=(*kept.parts, part), next_id=next_id)
    with folder.transaction():
        part = folder.write_segment(plan)
        kept = _write_deletions(folder, before, kept)
        state = replace(kept, parts=(*kept.parts, part), next_id=next_id)
        folder.commit(state, notes)
    return state


def _write_deletions(folder: TableFolder, before: TableState, after: TableState) -> TableState:
    """``after``, with files for the deletions that ``before`` does not have."""
    known = {id(part) for part in before.parts}
    parts = [part if id(part) in known else folder.write_deleted(part) for part in after.parts]
    return replace(after, parts=tuple(parts))


def adopt(
    settings: TableSettings,
    folder: TableFolder,
    state: TableState,
    folders: Sequence[Path],
    notes: Notes,
) -> tuple[TableState, int]:
    """The state with the segments of other tables, and how many items these have.

    The result is that of adding their items one table after another, but nothing is written again:
    the files are linked into the table's folder, and one manifest names all of them.
    """
    old, new = _replaced(state, _parts_of(folder, folders))
    next_id = state.next_id
    if settings.ids == INT64:
        ends = [int(part.segment.arrays.ids.max(initial=-1)) + 1 for part in new.parts]
        next_id = max([next_id, *ends])
    with folder.transaction():
        taken = [folder.take_segment(part) for part in new.parts]
        known = replace(state, parts=(*state.parts, *taken))
        changed = [
            replace(fresh, alive=part.alive, live=part.live) if len(part.alive) else fresh
            for part, fresh in zip(new.parts, taken, strict=True)
        ]
        after = replace(state, parts=(*old.parts, *changed), next_id=next_id)
        after = _write_deletions(folder, known, after)
        folder.commit(after, notes)
    return after, sum(part.live for part in changed)


def _parts_of(folder: TableFolder, others: Sequence[Path]) -> list[LiveSegment]:
    """The parts of other tables."""
    found: list[LiveSegment] = []
    for path in others:
        other = TableFolder(path, writable=False)
        parts = other.load().parts  # before its settings: it may find a newer manifest
        if other.manifest.settings != folder.manifest.settings:
            raise InputError(
                f"{path} has other settings than {folder.path}; tables that become one need the "
                "same buckets, dim, active, metric, dtype, ids and encoder"
            )
        found += parts
    return found


def _replaced(state: TableState, parts: Sequence[LiveSegment]) -> tuple[TableState, TableState]:
    """The old parts and the new ones, each without the rows that a later one replaces."""
    for part in parts:
        part.segment.ensure("ids", "names", "name_offsets")
    repeated = _repeated([part.segment.arrays.ids[part.live_rows()] for part in parts])
    old, new = state, TableState()
    for part in parts:
        ids = _ids_at(part.segment, part.live_rows())
        old = old.without(*old.locate(ids))
        if len(repeated):  # only these can be in another new part, too
            again = np.flatnonzero(np.isin(ids.keys, repeated))
            some = _ids_at(part.segment, part.live_rows()[again])
            new = new.without(*new.locate(some))
        new = TableState((*new.parts, part))
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
        names = pack_strings(names.at(row) for row in rows.tolist())
    return Ids(segment.arrays.ids[rows], names)
