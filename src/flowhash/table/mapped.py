"""Segments in files: which arrays a file has, and a segment from a mapped file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import DamagedFileError
from flowhash.table.arrays import Arrays
from flowhash.table.blocks import BLOCK, first_damaged
from flowhash.table.container import PADDING, Container, Entry, Written, map_container, whole
from flowhash.table.draft import Draft, upper_roots
from flowhash.table.ids import NO_STRINGS, STRING, Strings
from flowhash.table.manifest import SegmentFile, Settings
from flowhash.table.segment import Segment

PIECE_BYTES = 1 << 24  # embeddings are copied and written in pieces of about this size


def segment_entries(
    plan: Draft, halves: bool
) -> tuple[list[Entry], Callable[[], tuple[float, float]]]:
    """The arrays of a segment's file in their order, and a function for when they are written.

    The function returns what ``upper_roots`` says of the embeddings.

    Norms come behind the embeddings because they are computed while those are copied.
    """
    count, dim = len(plan.rows), plan.sources[0].vectors.shape[1]
    norms = np.empty(count, np.float32)
    largest = np.zeros(2)

    step = max(1, PIECE_BYTES // (dim * 2))
    ranges = [(start, min(count, start + step)) for start in range(0, count, step)]

    def uppers() -> Iterator[NDArray[Any]]:
        for start, stop in ranges:
            highs = np.empty((stop - start, dim), np.uint16)
            lows = np.empty((0 if halves else stop - start, dim), np.uint16)
            squares = plan.copy_range(start, stop, highs, lows, norms[start:stop])
            np.maximum(largest, squares, out=largest)
            yield highs.view(np.float16) if halves else highs

    def lowers() -> Iterator[NDArray[Any]]:
        # Taken once more from where they come from: kept, they would take half of the memory that
        # the whole segment does.
        for start, stop in ranges:
            lows = np.empty((stop - start, dim), np.uint16)
            plan.copy_lows(start, stop, lows)
            yield lows

    entries = [
        whole("ids", plan.keys),
        whole("order", plan.order),
        whole("offsets", plan.offsets),
    ]
    if halves:
        entries.append(Entry("embeddings", np.dtype(np.float16), (count, dim), uppers()))
    else:
        entries.append(Entry("highs", np.dtype(np.uint16), (count, dim), uppers()))
        entries.append(Entry("lows", np.dtype(np.uint16), (count, dim), lowers()))
    entries.append(whole("norms", norms))
    if len(plan.codes):
        entries += [whole("codes", plan.codes), whole("postings", plan.postings)]
    for name in ("name", "payload"):
        strings = plan.strings(f"{name}s")
        if len(strings.offsets):
            entries += [
                whole(f"{name}_offsets", strings.offsets),
                whole(f"{name}s", strings.content),
            ]
    return entries, lambda: upper_roots(largest, dim)


def map_segment(path: Path, written: Written, entry: SegmentFile, settings: Settings) -> Segment:
    """A segment from its file; nothing is read but the header, the checksums and the offsets.

    Raises:
        DamagedFileError: the file is not what was written.
    """
    container = map_container(path, written)
    verified = np.zeros(len(container.sums), np.uint8)
    _check_arrays(path, container, entry.rows, settings)
    halves = settings.dtype == "float16"
    highs = container.arrays["embeddings" if halves else "highs"].view(np.uint16)
    spans = container.spans
    names = ("embeddings" if halves else "highs", "lows", "norms", "ids", "postings", "codes")
    empty = (0, 0)
    arrays = Arrays(
        highs=highs,
        lows=container.arrays.get("lows", np.empty((0, settings.dim), np.uint16)),
        norms=container.arrays["norms"],
        ids=container.arrays["ids"],
        offsets=container.arrays["offsets"],
        postings=container.arrays.get("postings", np.empty(0, np.int32)),
        codes=container.arrays.get("codes", np.empty((0, 1), np.int32)),
        words=container.words,
        sums=container.sums,
        verified=verified,
        starts=np.array([spans.get(name, empty)[0] for name in names]),
    )
    strings = {
        name: Strings(container.arrays[f"{name}s"], container.arrays[f"{name}_offsets"])
        if f"{name}s" in container.arrays
        else NO_STRINGS
        for name in ("name", "payload")
    }
    segment = Segment(
        arrays,
        container.arrays["order"],
        strings["name"],
        strings["payload"],
        float(entry.largest),
        float(entry.residual),
        file=str(path),
        spans=spans,
    )
    _check_offsets(segment, settings)
    return segment


def _check_arrays(path: Path, container: Container, rows: int, settings: Settings) -> None:
    """A header that was changed together with its checksum must not lead out of the arrays.

    Each is there, of the right kind and shape, and no other: kernels tell by an array that is there
    what a segment is like.
    """
    halves = settings.dtype == "float16"
    expected: dict[str, tuple[tuple[int, ...], type]] = {
        "ids": ((rows,), np.int64),
        "order": ((rows,), np.int32),
        "offsets": ((settings.buckets + 1,), np.int64),
        "norms": ((rows,), np.float32),
    }
    for name in ("embeddings",) if halves else ("highs", "lows"):
        expected[name] = ((rows, settings.dim), np.float16 if halves else np.uint16)
    if settings.active > 1:
        expected["codes"] = ((rows, settings.active), np.int32)
        expected["postings"] = ((rows * settings.active,), np.int32)
    texts = {"name": settings.ids == STRING, "payload": "payloads" in container.arrays}
    for name in [name for name, there in texts.items() if there]:
        content = container.arrays.get(f"{name}s", np.empty(0))
        expected[f"{name}_offsets"] = ((rows + 1,), np.int64)
        expected[f"{name}s"] = ((content.size,), np.uint8)
    for name, (shape, dtype) in expected.items():
        array = container.arrays.get(name)
        if array is None or array.shape != shape or array.dtype != dtype:
            raise DamagedFileError(
                f"{path}: {name} should be {np.dtype(dtype)} {shape}, as the manifest says; "
                "restore the file from a copy"
            )
    others = [name for name in container.arrays.keys() - expected if not name.startswith(PADDING)]
    if others:
        raise DamagedFileError(
            f"{path}: it has an array {others[0]!r:.80}, which no such table has; restore the file "
            "from a copy"
        )


def _check_offsets(segment: Segment, settings: Settings) -> None:
    """The offsets are read at once: every search needs them, and they lead everywhere."""
    segment.ensure("offsets")
    offsets = segment.arrays.offsets
    total = segment.rows * settings.active
    # Compared, not subtracted: a difference may be so large that its sign is lost.
    if offsets[0] != 0 or offsets[-1] != total or (offsets[1:] < offsets[:-1]).any():
        raise DamagedFileError(
            f"{segment.file}: its bucket offsets make no sense; restore the file from a copy"
        )


def damaged_blocks(segment: Segment) -> list[int]:
    """Every damaged block of a segment's file, by reading all of it."""
    arrays = segment.arrays
    found: list[int] = []
    start, end = 0, arrays.words.nbytes
    while start < end:
        # Verified afresh: a block that was intact when it was read may be damaged by now.
        fault = first_damaged(arrays.words, arrays.sums, np.zeros_like(arrays.verified), start, end)
        if fault < 0:
            break
        found.append(int(fault))
        start = (fault + 1) * BLOCK
    return found
