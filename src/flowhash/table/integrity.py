"""A table's check-up: read every byte, and see that what is stored fits together."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flowhash.errors import DamagedFileError
from flowhash.progress_bars import tracked
from flowhash.table.distance_metrics import (
    LARGEST_SQUARE,
    METRICS,
    SMALLEST_SQUARE,
    UNIT,
    compares_directions,
)
from flowhash.table.ids import INT64, STRING, no_ids, string_keys
from flowhash.table.segments.arrays import BLOCK, block_checksums, least_bucket
from flowhash.table.segments.segment import LiveSegment, Segment, TableState, texts_fit
from flowhash.table.segments.segment_draft import bucket_lists
from flowhash.table.storage.manifest import read_manifest
from flowhash.table.storage.table_folder import TableFolder
from flowhash.table.table_settings import TableSettings

MOST = 20  # lines for one file
PIECE = 1 << 22  # numbers that are computed again at once


def folder_faults(path: Path, progress: bool = True) -> list[str]:
    """Everything that is wrong with a stored table, a line for each fault.

    Raises:
        StorageError: there is no table at ``path``, or its manifest cannot be read.
    """
    folder = TableFolder(path, writable=False)
    settings = folder.manifest.settings
    faults = []
    parts = []
    for entry in folder.manifest.segments:
        try:
            parts.append(folder.load_part(entry))
        except DamagedFileError as error:  # noqa: PERF203
            # A writer may have replaced the files since the manifest was read.
            if read_manifest(path).generation != folder.manifest.generation:
                return folder_faults(path, progress)
            faults.append(str(error))
    state = TableState(tuple(parts), folder.manifest.next_id, settings.encoder)
    return faults + state_faults(settings, state, progress)


def state_faults(settings: TableSettings, state: TableState, progress: bool = True) -> list[str]:
    """Everything that is wrong with a state, a line for each fault."""
    faults: list[str] = []
    parts = tracked(state.parts, "check segments", len(state.parts), progress)
    for number, part in enumerate(parts):
        name = part.segment.file or f"segment {number}"
        blocks = _damaged_blocks(part.segment)
        faults += [
            f"{name}: bytes {block * BLOCK} to {(block + 1) * BLOCK} of its data "
            f"({part.segment.arrays_at(block)}) do not match their checksum; restore the file from "
            "a copy"
            for block in blocks[:MOST]
        ]
        if len(blocks) > MOST:
            faults.append(f"{name}: {len(blocks) - MOST} more damaged blocks")
        if not blocks:
            faults += [f"{name}: {fault}" for fault in _inconsistencies(settings, part)]
    if not faults:
        ids = [part.segment.ids_at(part.live_rows()) for part in state.parts]
        if len(set(np.concatenate([no_ids(settings.ids), *ids]).tolist())) != state.live:
            faults.append("an id is in the table twice")
        ends = [int(one.max()) for one in ids if len(one)] if settings.ids == INT64 else []
        if ends and max(ends) >= state.next_id:
            faults.append(f"the next id would be {state.next_id}, but there is {max(ends)} already")
    return faults


def _damaged_blocks(segment: Segment) -> list[int]:
    """Every damaged block of a segment's file, by reading all of it.

    Afresh: a block that was intact when it was read before may be damaged by now.
    """
    sums = np.empty_like(segment.arrays.sums)
    block_checksums(segment.arrays.words, sums)
    damaged: list[int] = np.flatnonzero(sums != segment.arrays.sums).tolist()
    return damaged


def _inconsistencies(settings: TableSettings, part: LiveSegment) -> list[str]:
    """What does not fit together in a segment whose checksums are right."""
    segment = part.segment
    arrays = segment.arrays
    faults = []
    rows = np.arange(segment.rows)
    if not np.array_equal(np.sort(segment.order), rows):
        faults.append("the order of its ids is not an order of its rows")
    else:
        ordered = arrays.ids[segment.order]
        if (ordered[1:] < ordered[:-1]).any():
            faults.append("its ids are not in order")
    codes = arrays.codes
    if len(codes) and not (codes.min() >= least_bucket(arrays) and codes.max() < settings.buckets):
        return [*faults, "a code names a bucket that does not exist"]
    before, after = codes[:, :-1], codes[:, 1:]
    if ((after >= 0) & ((after <= before) | (before < 0))).any() or (codes[:, 0] < 0).any():
        faults.append("a code is not in order, or names a bucket twice, or none")
    codes = segment.codes_at(rows)
    offsets, postings = bucket_lists(np.ascontiguousarray(codes), settings.buckets)
    if not np.array_equal(offsets, arrays.offsets) or not np.array_equal(postings, arrays.postings):
        faults.append("its bucket lists do not match its codes")
    for name, texts in (("id", segment.names), ("payload", segment.payloads)):
        if not texts_fit(texts):
            return [*faults, f"its {name} texts do not fit their offsets"]
    if settings.ids == STRING:
        keys = string_keys(segment.names.content, segment.names.offsets)
        if not np.array_equal(keys, arrays.ids):
            faults.append("its string ids do not match their keys")
    try:
        segment.ids_at(rows)
    except DamagedFileError:
        return [*faults, "an id is no text"]
    try:
        if len(segment.payloads.offsets):
            for row in rows.tolist():
                segment.payload_at(row)
    except DamagedFileError:
        faults.append("a payload is not JSON, or cannot be read")
    with np.errstate(all="ignore"):  # infinities and NaNs are what is looked for
        return faults + _embedding_faults(METRICS[settings.metric], segment)


def _embedding_faults(metric: int, segment: Segment) -> list[str]:
    """Embeddings must be such as ``add`` takes, and what was computed of them must be right.

    Sums were in float32, in whatever order was quickest on the machine that wrote them: they are
    right within ``UNIT`` for each number of a row, and a few more.
    """
    arrays = segment.arrays
    directed = compares_directions(metric)
    share = 1.05 * UNIT * (arrays.highs.shape[1] + 8)
    step = max(1, PIECE // arrays.highs.shape[1])
    for start in range(0, segment.rows, step):
        rows = slice(start, start + step)
        embeddings = segment.embeddings(rows).astype(np.float64)
        squares = np.square(embeddings).sum(axis=1)
        lengths = np.sqrt(squares)
        if not (lengths <= segment.largest).all() or (squares > (1 + share) * LARGEST_SQUARE).any():
            return ["an embedding is not finite, or longer than its segment says"]
        if directed and (squares < (1 - share) * SMALLEST_SQUARE).any():
            return ["an embedding has no direction, which cosine compares"]
        norms = 1 / lengths if directed else squares
        tiny = 0.0 if directed else 2.0**-148 * embeddings.shape[1]
        stored = arrays.norms[rows].astype(np.float64)
        if not (np.abs(stored - norms) <= share * norms + tiny).all():
            return ["its norms are not those of its embeddings"]
        if segment.layout.is_split:
            uppers = arrays.highs[rows].astype(np.uint32) << np.uint32(16)
            rests = np.linalg.norm(embeddings - uppers.view(np.float32), axis=1)
            if not (rests <= segment.residual).all():
                return ["the upper halves of an embedding leave out more than its segment says"]
        if len(arrays.quantised):
            quanta = (arrays.quanta[rows].astype(np.uint32) << np.uint32(16)).view(np.float32)
            steps = arrays.quantised[rows] * quanta[:, :1].astype(np.float64)
            if not (np.linalg.norm(embeddings - steps, axis=1) <= quanta[:, 1]).all():
                return ["its quantised plane leaves out more of an embedding than it says"]
    return []
