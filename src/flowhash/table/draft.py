"""A segment in the making: rows from an ``add`` or from older segments, put in order.

Everything but the embeddings is laid out at once. Embeddings are copied range by range by whoever
needs them: all at once into memory, or piece by piece into a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import InputError
from flowhash.table.arrays import COSINE, Arrays
from flowhash.table.build import (
    bucket_lists,
    copy_lows,
    copy_rows,
    put_in_order,
    sort_by_code,
    take_bytes,
)
from flowhash.table.ids import NO_STRINGS, Ids, Strings
from flowhash.table.segment import Segment
from flowhash.threads import in_shards

PLAIN = np.zeros(6, np.int64)


@dataclass(frozen=True, eq=False)
class Source:
    """Where embeddings, names and payloads come from: the arguments of ``add``, or a segment."""

    arrays: Arrays
    vectors: NDArray[np.float32]
    names: Strings
    payloads: Strings
    segment: Segment | None = None


def stored(segment: Segment) -> Source:
    """A segment as a source."""
    nothing = np.empty((0, segment.arrays.highs.shape[1]), np.float32)
    return Source(segment.arrays, nothing, segment.names, segment.payloads, segment)


def given(embeddings: NDArray[Any], ids: Ids, payloads: Strings) -> Source:
    """The arguments of ``add`` as a source; ``embeddings`` are float32 or float16."""
    dim = embeddings.shape[1]
    halves = embeddings.dtype == np.float16
    nothing = np.empty((0, dim), np.uint16)
    arrays = Arrays(
        highs=embeddings.view(np.uint16) if halves else nothing,
        lows=nothing,
        norms=np.empty(0, np.float32),
        ids=ids.keys,
        offsets=np.empty(0, np.int64),
        postings=np.empty(0, np.int32),
        codes=np.empty((0, 1), np.int32),
        words=np.empty(0, np.uint64),
        sums=np.empty(0, np.uint32),
        verified=np.empty(0, np.uint8),
        starts=PLAIN,
    )
    vectors = np.empty((0, dim), np.float32) if halves else embeddings
    return Source(arrays, vectors, ids.names, payloads)


@dataclass(frozen=True, eq=False)
class Draft:
    """The layout of a new segment; row i of it is row ``rows[i]`` of source ``origins[i]``.

    Attributes:
        sources: where the rows come from.
        origins: the source of each row; empty if there is only one [n] int32.
        rows: its row there [n] int64.
        keys: its key [n] int64.
        order: rows in the order of their keys [n] int32.
        codes: [n, k] int32; without rows with k = 1.
        offsets: where each bucket starts [d + 1] int64.
        postings: the rows of each bucket; empty with k = 1.
        metric: decides which norm is kept.
    """

    sources: Sequence[Source]
    origins: NDArray[np.int32]
    rows: NDArray[np.int64]
    keys: NDArray[np.int64]
    order: NDArray[np.int32]
    codes: NDArray[np.int32]
    offsets: NDArray[np.int64]
    postings: NDArray[np.int32]
    metric: int

    def copy_range(
        self,
        start: int,
        stop: int,
        highs: NDArray[np.uint16],
        lows: NDArray[np.uint16],
        norms: NDArray[np.float32],
    ) -> NDArray[np.float64]:
        """Copy embeddings of rows ``start`` to ``stop`` and compute norms.

        Returns:
            The largest |x|², and the largest square of what upper halves leave out of a row.

        Raises:
            InputError: an embedding that was given cannot be used.
            DamagedFileError: one that was stored is damaged.
        """
        largest = np.zeros(2)
        for source, rows in self._shares(start, stop):
            bad, fault = copy_rows(
                source.arrays, source.vectors, source.vectors.view(np.uint32), rows, self.metric,
                source.segment is not None, highs, lows, norms, largest,
            )  # fmt: skip
            if fault != -1 and source.segment is not None:
                source.segment.fail(fault)
            if bad != -1:
                _refuse(source, int(rows[bad]), self.metric)
        return largest

    def copy_lows(self, start: int, stop: int, lows: NDArray[np.uint16]) -> None:
        """Copy lower halves alone, of rows that ``copy_range`` has copied before."""
        for source, rows in self._shares(start, stop):
            copy_lows(source.arrays, source.vectors.view(np.uint32), rows, lows)

    def _shares(self, start: int, stop: int) -> Iterator[tuple[Source, NDArray[np.int64]]]:
        """Each source, and its row for each place of a range; -1 where it is another's."""
        for number, source in enumerate(self.sources):
            rows = self.rows[start:stop]
            if len(self.sources) > 1:
                rows = np.where(self.origins[start:stop] == number, rows, -1)
            yield source, rows

    def strings(self, name: str) -> Strings:
        """Names or payloads of all rows, in their new order; empty if no source has any."""
        found: list[Strings] = [getattr(source, name) for source in self.sources]
        if not any(len(strings.offsets) for strings in found):
            return NO_STRINGS
        lengths = np.zeros(len(self.rows), np.int64)
        chosen = []
        for number, strings in enumerate(found):
            mine = self.rows
            if len(self.sources) > 1:
                mine = np.where(self.origins == number, mine, -1)
            if not len(strings.offsets):
                mine = np.full_like(mine, -1)
            here = mine >= 0
            lengths[here] = np.diff(strings.offsets)[mine[here]] if here.any() else 0
            chosen.append(mine)
        offsets = np.zeros(len(self.rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        content = np.empty(int(offsets[-1]), np.uint8)
        for strings, mine in zip(found, chosen, strict=True):
            if len(strings.offsets):
                take_bytes(strings.content, strings.offsets, mine, offsets, content)
        return Strings(content, offsets)


def draft(
    sources: Sequence[Source],
    origins: NDArray[np.int32],
    rows: NDArray[np.int64] | None,
    keys: NDArray[np.int64],
    codes: NDArray[np.int32],
    ascending: NDArray[np.int64] | None,
    buckets: int,
    metric: int,
) -> Draft:
    """Lay out a segment.

    Args:
        sources: where the rows come from.
        origins: the source of each row; empty if there is only one.
        rows: its row there; None if they are all rows of the only source, as they come.
        keys: its key.
        codes: its code, ascending.
        ascending: indices of the rows in the order of their keys, or None if they are in order.
        buckets: d.
        metric: decides which norm is kept.
    """
    sorted_rows = sort_by_code(codes, buckets)
    if codes.shape[1] > 1:
        codes = codes[sorted_rows]
    offsets, postings = bucket_lists(codes, buckets)
    ordered_keys = np.empty_like(keys)
    places = np.empty(len(keys), np.int32)
    put_in_order(sorted_rows, keys, ordered_keys, places)
    return Draft(
        sources,
        origins[sorted_rows] if len(origins) else origins,
        sorted_rows if rows is None else rows[sorted_rows],
        ordered_keys,
        places if ascending is None else places[ascending],
        codes if codes.shape[1] > 1 else np.empty((0, 1), np.int32),
        offsets,
        postings,
        metric,
    )


def in_memory(plan: Draft, halves: bool, threads: int | None = None) -> Segment:
    """Make the segment in memory."""
    count = len(plan.rows)
    dim = plan.sources[0].vectors.shape[1]
    highs = np.empty((count, dim), np.uint16)
    lows = np.empty((0 if halves else count, dim), np.uint16)
    norms = np.empty(count, np.float32)

    def work(start: int, stop: int) -> NDArray[np.float64]:
        part = slice(start, stop)
        return plan.copy_range(start, stop, highs[part], lows[part], norms[part])

    largest = np.max(in_shards(work, count, threads), axis=0)
    arrays = Arrays(
        highs=highs,
        lows=lows,
        norms=norms,
        ids=plan.keys,
        offsets=plan.offsets,
        postings=plan.postings,
        codes=plan.codes,
        words=np.empty(0, np.uint64),
        sums=np.empty(0, np.uint32),
        verified=np.empty(0, np.uint8),
        starts=PLAIN,
    )
    return Segment(
        arrays,
        plan.order,
        plan.strings("names"),
        plan.strings("payloads"),
        *upper_roots(largest, dim),
    )


def upper_roots(squares: NDArray[np.float64], dim: int) -> tuple[float, float]:
    """Lengths that no row exceeds, given their squares as float32 summed them.

    Each of ``dim`` additions rounds by 2^-24 at the most, and squares below 2^-149 are lost.
    """
    lengths = np.sqrt(squares) * (1 + 1e-6 + dim * 2.0**-23) + np.sqrt(dim) * 2.0**-74
    return float(lengths[0]), float(lengths[1])


def _refuse(source: Source, row: int, metric: int) -> None:
    """Say what is wrong with a given embedding."""
    halves = len(source.vectors) == 0
    line = source.arrays.highs[row].view(np.float16) if halves else source.vectors[row]
    if not np.isfinite(line).all():
        column = int(np.flatnonzero(~np.isfinite(line))[0])
        more = f"; {'float16' if halves else 'float32'} holds numbers up to "
        more += "65504" if halves else "3.4e38"
        raise InputError(
            f"embeddings[{row}, {column}] is {line[column]}; every value must be finite{more}. "
            "Look for a division by zero, or drop those rows"
        )
    length = float(np.linalg.norm(line.astype(np.float64)))
    if metric == COSINE and length < 1.0:
        raise InputError(
            f"embeddings[{row}] has length {length:g}; its direction, which cosine compares, "
            "cannot be told. Drop such rows, or use another metric"
        )
    raise InputError(
        f"embeddings[{row}] has length {length:g}; distances of such embeddings overflow. Divide "
        "all embeddings and queries by the same number"
    )
