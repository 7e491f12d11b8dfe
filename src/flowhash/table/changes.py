"""Changes of a table: add, delete, merge, compact, recode and adopt make one state of another."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import InputError
from flowhash.table.arguments import NewRows, read_codes
from flowhash.table.ids import INT64, Ids, last_of_each, pack_strings
from flowhash.table.segments.arrays import LAYOUTS
from flowhash.table.segments.segment import NO_ROWS, LiveSegment, Segment, TableState
from flowhash.table.segments.segment_draft import SegmentDraft, draft, given, in_memory, stored
from flowhash.table.storage.manifest import LARGEST_SEGMENT
from flowhash.table.storage.table_folder import TableFolder
from flowhash.table.table_settings import TableSettings

FAN = 8  # so many segments of like size are merged into one
RECODED_BYTES = 1 << 24  # of embeddings whose new codes are asked for at once, about


# Of the changes that take ``notes``: all of the table's, committed in the same step; None leaves
# them as they are.
Notes = dict[str, Any] | None

# Codes [n, k] of embeddings [n, dim].
CodesOf = Callable[[NDArray[np.float32]], NDArray[np.int32]]


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
    for group in _groups(state):
        plane = LAYOUTS[settings.dtype].is_quantised(settings.dim)
        if len(group) > 1 or any(
            len(part.alive) or (plane and not part.segment.is_quantised) for part in group
        ):
            state = _merge(settings, folder, state, group)
    return state


def _groups(state: TableState) -> list[list[LiveSegment]]:
    """Neighbouring parts that fit into one segment."""
    groups: list[list[LiveSegment]] = [[]]
    for part in state.parts:
        if sum(other.live for other in groups[-1]) + part.live >= LARGEST_SEGMENT:
            groups.append([])
        groups[-1].append(part)
    return groups


def recode(
    settings: TableSettings,
    folder: TableFolder | None,
    state: TableState,
    codes_of: CodesOf,
    encoder: str | None,
    notes: Notes,
) -> TableState:
    """The state with a new code for every live row, in as few segments as ``compact`` makes.

    One group after another is laid out and written, so that the codes of one are in memory, and of
    its embeddings a block. All of them are committed at once.
    """

    def plan(group: Sequence[LiveSegment]) -> SegmentDraft:
        return _joined(settings, group, lambda part: _recoded(settings, part, codes_of))

    groups = [group for group in _groups(state) if any(part.live for part in group)]
    if folder is None:
        parts = tuple(_part_in_memory(plan(group)) for group in groups)
        return replace(state, parts=parts, encoder=encoder)
    with folder.transaction():
        parts = tuple(folder.write_segment(plan(group)) for group in groups)
        after = replace(state, parts=parts, encoder=encoder)
        folder.commit(after, notes)
    return after


def _recoded(settings: TableSettings, part: LiveSegment, codes_of: CodesOf) -> NDArray[np.int32]:
    """The new codes of a part's live rows [live, k]."""
    codes = np.empty((part.live, settings.active), np.int32)
    step = max(1, RECODED_BYTES // (4 * settings.dim))
    done = 0
    for start in range(0, part.segment.rows, step):
        stop = min(part.segment.rows, start + step)
        alive = part.alive[start:stop] == 1
        if len(alive) and not alive.any():
            continue
        embeddings = part.segment.sound_embeddings(start, stop)
        if len(alive):
            embeddings = embeddings[alive]
        count = len(embeddings)
        made = codes_of(embeddings)
        try:
            codes[done : done + count] = read_codes(settings, made, count)
        except InputError as error:
            raise InputError(f"what codes_of gave cannot be used: {error}") from error
        done += count
    return codes


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
    plan = _joined(settings, old, lambda part: part.segment.codes_at(part.live_rows()))
    kept = replace(state, parts=tuple(part for part in state.parts if part not in old))
    return _store(folder, state, kept, plan, state.next_id)


def _joined(
    settings: TableSettings,
    old: Sequence[LiveSegment],
    codes_of: Callable[[LiveSegment], NDArray[np.int32]],
) -> SegmentDraft:
    """A segment of the live rows of some parts, with the codes that ``codes_of`` gives a part's."""
    rows, keys, codes = [], [], []
    for part in old:
        segment, live = part.segment, part.live_rows()
        segment.ensure("ids", "names", "name_offsets", "payloads", "payload_offsets")
        rows.append(live)
        keys.append(segment.arrays.ids[live])
        codes.append(codes_of(part))
    all_keys = np.concatenate(keys)
    return draft(
        [stored(part.segment) for part in old],
        np.repeat(np.arange(len(old), dtype=np.int32), [part.live for part in old]),
        np.concatenate(rows),
        all_keys,
        np.concatenate(codes),
        np.argsort(all_keys, kind="stable"),
        settings,
    )


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
        return replace(kept, parts=(*kept.parts, _part_in_memory(plan)), next_id=next_id)
    with folder.transaction():
        part = folder.write_segment(plan)
        kept = _write_deletions(folder, before, kept)
        state = replace(kept, parts=(*kept.parts, part), next_id=next_id)
        folder.commit(state, notes)
    return state


def _part_in_memory(plan: SegmentDraft) -> LiveSegment:
    segment = in_memory(plan)
    return LiveSegment(segment, NO_ROWS, segment.rows)


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
