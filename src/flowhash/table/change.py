"""Changes: from one state of a table to the next, in memory or in its folder.

Every function returns the new state and leaves the old one as it was. If it raises, nothing
happened, on disk neither.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence

import numpy as np

from flowhash.table.arguments import Items
from flowhash.table.arrays import METRICS
from flowhash.table.draft import Draft, draft, given, in_memory, stored
from flowhash.table.folder import Folder
from flowhash.table.ids import INT64, last_of_each
from flowhash.table.manifest import LARGEST_SEGMENT, Settings
from flowhash.table.state import Part, State, new_part

FAN = 8  # so many segments of like size are merged into one


def add(settings: Settings, folder: Folder | None, state: State, items: Items) -> State:
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
    plan = draft(
        [source], nobody, rows, keys, codes, ascending, settings.buckets, METRICS[settings.metric]
    )
    next_id = state.next_id
    if settings.ids == INT64:
        next_id = max(next_id, int(keys.max()) + 1)
    return _store(settings, folder, state, kept, plan, next_id)


def store_deleted(folder: Folder | None, before: State, after: State) -> State:
    """Make a state that differs in deleted rows only the table's."""
    if folder is None:
        return after
    try:
        stored = _write_deletions(folder, before, after)
        folder.commit(stored)
    except BaseException:
        folder.remove_uncommitted()
        raise
    return stored


def tidy(settings: Settings, folder: Folder | None, state: State) -> State:
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


def compact(settings: Settings, folder: Folder | None, state: State) -> State:
    """All live rows in one segment, or in as few as their size allows."""
    groups: list[list[Part]] = [[]]
    for part in state.parts:
        if sum(other.live for other in groups[-1]) + part.live >= LARGEST_SEGMENT:
            groups.append([])
        groups[-1].append(part)
    for group in groups:
        if len(group) > 1 or any(len(part.alive) for part in group):
            state = _merge(settings, folder, state, group)
    return state


def _crowd(state: State) -> list[Part]:
    """Parts that should become one: FAN of a size, or one that is mostly deleted."""
    tiers: dict[int, list[Part]] = {}
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


def _merge(settings: Settings, folder: Folder | None, state: State, old: Sequence[Part]) -> State:
    """The state with the live rows of some parts in one new part."""
    sources, rows, origins, keys, codes = [], [], [], [], []
    for number, part in enumerate(old):
        segment = part.segment
        segment.ensure("ids", "codes", "names", "name_offsets", "payloads", "payload_offsets")
        live = part.live_rows()
        sources.append(stored(segment))
        rows.append(live)
        origins.append(np.full(len(live), number, np.int32))
        keys.append(segment.arrays.ids[live])
        codes.append(segment.codes_at(live))
    all_keys = np.concatenate(keys)
    plan = draft(
        sources,
        np.concatenate(origins),
        np.concatenate(rows),
        all_keys,
        np.concatenate(codes),
        np.argsort(all_keys, kind="stable"),
        settings.buckets,
        METRICS[settings.metric],
    )
    return _store(settings, folder, state, state.merged(old, None), plan, state.next_id)


def _store(
    settings: Settings, folder: Folder | None, before: State, kept: State, plan: Draft, next_id: int
) -> State:  # fmt: skip
    """The kept parts and a new one, made from a draft; committed if there is a folder."""
    halves = settings.dtype == "float16"
    if folder is None:
        return kept.with_part(new_part(in_memory(plan, halves)), next_id)
    try:
        part = folder.write_segment(plan, halves)
        state = _write_deletions(folder, before, kept).with_part(part, next_id)
        folder.commit(state)
    except BaseException:
        folder.remove_uncommitted()
        raise
    return state


def _write_deletions(folder: Folder, before: State, after: State) -> State:
    """``after``, with files for the deletions that ``before`` does not have."""
    known = {id(part) for part in before.parts}
    parts = [part if id(part) in known else folder.write_deleted(part) for part in after.parts]
    return State(tuple(parts), after.next_id)
