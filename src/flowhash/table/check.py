"""A table's check-up: read every byte, and see that what is stored fits together."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flowhash.bars import tracked
from flowhash.errors import DamagedFileError
from flowhash.table import manifest as manifests
from flowhash.table.answers import no_ids
from flowhash.table.blocks import BLOCK
from flowhash.table.build import bucket_lists
from flowhash.table.folder import Folder
from flowhash.table.ids import STRING, string_keys
from flowhash.table.manifest import Settings
from flowhash.table.mapped import damaged_blocks
from flowhash.table.segment import Segment, texts_fit
from flowhash.table.state import Part, State

MOST = 20  # lines for one file


def folder_faults(path: Path) -> list[str]:
    """Everything that is wrong with a stored table, a line for each fault.

    Raises:
        StorageError: there is no table at ``path``, or its manifest cannot be read.
    """
    folder = Folder(path, writable=False)
    settings = folder.manifest.settings
    faults = []
    parts = []
    for entry in folder.manifest.segments:
        try:
            parts.append(folder.load_part(entry))
        except DamagedFileError as error:  # noqa: PERF203
            # A writer may have replaced the files since the manifest was read.
            if manifests.load(path).generation != folder.manifest.generation:
                return folder_faults(path)
            faults.append(str(error))
    return faults + state_faults(settings, State(tuple(parts)))


def state_faults(settings: Settings, state: State) -> list[str]:
    """Everything that is wrong with a state, a line for each fault."""
    faults: list[str] = []
    parts = tracked(state.parts, "check segments", len(state.parts))
    for number, part in enumerate(parts):
        name = part.segment.file or f"segment {number}"
        blocks = damaged_blocks(part.segment)
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
    return faults


def _inconsistencies(settings: Settings, part: Part) -> list[str]:
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
    if len(codes) and not (codes.min() >= 0 and codes.max() < settings.buckets):
        return [*faults, "a code names a bucket that does not exist"]
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
        if len(segment.payloads.offsets):
            for row in rows.tolist():
                segment.payload_at(row)
    except DamagedFileError:
        faults.append("a payload is not JSON")
    return faults + _embedding_faults(segment)


def _embedding_faults(segment: Segment) -> list[str]:
    """Embeddings must be finite and not longer than the segment says."""
    for start in range(0, segment.rows, 1 << 16):
        embeddings = segment.embeddings(start, start + (1 << 16))
        lengths = np.linalg.norm(embeddings.astype(np.float64), axis=1)
        if not (lengths <= segment.largest).all():
            return ["an embedding is not finite, or longer than its segment says"]
    return []
