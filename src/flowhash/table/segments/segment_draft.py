"""``SegmentDraft``, a segment in the making: rows by code, numbers in planes, buckets' lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import (
    empty,
    filter_kernel,
    half_to_float,
    high_to_float,
    inner_kernel,
    join_planes,
    kernel,
    prefetch,
    zeros,
)
from flowhash.errors import InputError
from flowhash.table.distance_metrics import (
    METRICS,
    compares_directions,
    has_norm,
    is_usable,
    kept_norm,
    square,
)
from flowhash.table.ids import NO_STRINGS, Ids, Strings
from flowhash.table.segments.arrays import BROKEN, LAYOUTS, Arrays, PlaneLayout, damaged_rows
from flowhash.table.segments.quantised_plane import empty_quantised, quantise
from flowhash.table.segments.segment import Segment
from flowhash.table.table_settings import TableSettings
from flowhash.threads import in_shards

AHEAD = 8  # rows to fetch before they are needed; they come from all over the input
LINE = 16  # float32 numbers that memory delivers at once


@dataclass(frozen=True, eq=False)
class RowSource:
    """Where embeddings, names and payloads come from: the arguments of ``add``, or a segment.

    Attributes:
        arrays: of the segment; what was given as float16 is in its ``highs``.
        vectors: what was given as float32 [n, dim]; otherwise without rows.
        names: the ids, if they are strings.
        payloads: JSON texts.
        segment: None for what was given.
    """

    arrays: Arrays
    vectors: NDArray[np.float32]
    names: Strings
    payloads: Strings
    segment: Segment | None = None


def stored(segment: Segment) -> RowSource:
    """A segment as a source."""
    nothing = np.empty((0, segment.arrays.highs.shape[1]), np.float32)
    return RowSource(segment.arrays, nothing, segment.names, segment.payloads, segment)


def given(embeddings: NDArray[Any], ids: Ids, payloads: Strings) -> RowSource:
    """The arguments of ``add`` as a source; ``embeddings`` are rounded to a layout's dtype."""
    nothing = np.empty((0, embeddings.shape[1]), np.uint16)
    halves, vectors = nothing, embeddings
    if embeddings.dtype == np.float16:
        halves, vectors = embeddings.view(np.uint16), np.empty(nothing.shape, np.float32)
    arrays = Arrays(halves, nothing, np.empty(0, np.float32), ids.keys, np.empty(0, np.int64))
    return RowSource(arrays, vectors, ids.names, payloads)


@dataclass(frozen=True, eq=False)
class SegmentDraft:
    """The layout of a new segment; row i of it is row ``rows[i]`` of source ``origins[i]``.

    Attributes:
        sources: where the rows come from.
        origins: the source of each row; empty if there is only one [n] int32.
        rows: its row there [n] int64.
        keys: its key [n] int64.
        order: rows in the order of their keys [n] int32.
        codes: -1 behind the last bucket of a row [n, k] int32; without rows with k = 1.
        offsets: where each bucket starts [d + 1] int64.
        postings: the rows of each bucket; empty with k = 1.
        settings: of the table; the metric decides which norm is kept.
    """

    sources: Sequence[RowSource]
    origins: NDArray[np.int32]
    rows: NDArray[np.int64]
    keys: NDArray[np.int64]
    order: NDArray[np.int32]
    codes: NDArray[np.int32]
    offsets: NDArray[np.int64]
    postings: NDArray[np.int32]
    settings: TableSettings

    @property
    def layout(self) -> PlaneLayout:
        """How embeddings will be stored."""
        return LAYOUTS[self.settings.dtype]

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
        largest, metric = np.zeros(2), METRICS[self.settings.metric]
        for source, rows in self._shares(start, stop):
            bad, fault = copy_rows(
                source.arrays, source.vectors, source.vectors.view(np.uint32), rows, metric,
                source.segment is not None, highs, lows, norms, largest,
            )  # fmt: skip
            if source.segment is not None:
                source.segment.check(fault)
            if bad != -1:
                _refuse(source, int(rows[bad]), metric)
        return largest

    def copy_lows(self, start: int, stop: int, lows: NDArray[np.uint16]) -> None:
        """Copy lower halves alone, of rows that ``copy_range`` has copied before."""
        for source, rows in self._shares(start, stop):
            copy_lows(source.arrays, source.vectors.view(np.uint32), rows, lows)

    def copy_quantised(
        self, start: int, stop: int, quantised: NDArray[np.int8], quanta: NDArray[np.uint16]
    ) -> None:
        """Quantise rows that ``copy_range`` has copied before."""
        highs, lows = self.layout.empty_planes(stop - start, self.settings.dim)
        self.copy_range(start, stop, highs, lows, np.empty(stop - start, np.float32))
        quantise(highs, lows, quantised, quanta)

    def _shares(self, start: int, stop: int) -> Iterator[tuple[RowSource, NDArray[np.int64]]]:
        """Each source, and its row for each place of a range; -1 where it is another's."""
        for number, source in enumerate(self.sources):
            rows = self.rows[start:stop]
            if len(self.sources) > 1:
                rows = np.where(self.origins[start:stop] == number, rows, -1)
            yield source, rows

    def strings(self, name: str) -> Strings:
        """Names or payloads of all rows, in their new order; empty if no source has any."""
        lengths = np.zeros(len(self.rows), np.int64)
        chosen: list[tuple[Strings, NDArray[np.int64]]] = []
        for source, rows in self._shares(0, len(self.rows)):
            strings: Strings = getattr(source, name)
            if len(strings.offsets):
                here = rows >= 0
                lengths[here] = np.diff(strings.offsets)[rows[here]]
                chosen.append((strings, rows))
        if not chosen:
            return NO_STRINGS
        offsets = np.zeros(len(self.rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        content = np.empty(int(offsets[-1]), np.uint8)
        for strings, rows in chosen:
            take_bytes(strings.content, strings.offsets, rows, offsets, content)
        return Strings(content, offsets)


def draft(
    sources: Sequence[RowSource],
    origins: NDArray[np.int32],
    rows: NDArray[np.int64] | None,
    keys: NDArray[np.int64],
    codes: NDArray[np.int32],
    ascending: NDArray[np.int64] | None,
    settings: TableSettings,
) -> SegmentDraft:
    """Lay out a segment, from what its draft has, of rows in any order.

    ``rows`` is None if they are all rows of the only source, as they come; ``ascending`` has their
    indices in the order of their keys, or is None if they are in that order.
    """
    sorted_rows = sort_by_code(codes, settings.buckets)
    if codes.shape[1] > 1:
        codes = codes[sorted_rows]
    offsets, postings = bucket_lists(codes, settings.buckets)
    places = np.empty(len(keys), np.int32)
    places[sorted_rows] = np.arange(len(keys), dtype=np.int32)
    return SegmentDraft(
        sources,
        origins[sorted_rows] if len(origins) else origins,
        sorted_rows if rows is None else rows[sorted_rows],
        keys[sorted_rows],
        places if ascending is None else places[ascending],
        codes if codes.shape[1] > 1 else np.empty((0, 1), np.int32),
        offsets,
        postings,
        settings,
    )


def in_memory(plan: SegmentDraft) -> Segment:
    """Make the segment in memory."""
    count, dim = len(plan.rows), plan.settings.dim
    highs, lows = plan.layout.empty_planes(count, dim)
    norms = np.empty(count, np.float32)
    planned = count if plan.layout.is_quantised(dim) else 0
    quantised, quanta = empty_quantised(planned, dim)

    def work(start: int, stop: int) -> NDArray[np.float64]:
        part = slice(start, stop)
        squares = plan.copy_range(start, stop, highs[part], lows[part], norms[part])
        if planned:
            quantise(highs[part], lows[part], quantised[part], quanta[part])
        return squares

    limits = upper_roots(np.max(in_shards(work, count), axis=0), dim)
    arrays = Arrays(
        highs, lows, norms, plan.keys, plan.offsets, plan.postings, plan.codes,
        quantised=quantised, quanta=quanta,
    )  # fmt: skip
    return Segment(arrays, plan.order, plan.strings("names"), plan.strings("payloads"), *limits)


def upper_roots(squares: NDArray[np.float64], dim: int) -> tuple[float, float]:
    """Lengths that no row exceeds, given their squares as float32 summed them.

    Each of ``dim`` additions rounds by 2^-24 at the most, and squares below 2^-149 are lost.
    """
    lengths = np.sqrt(squares) * (1 + 1e-6 + dim * 2.0**-23) + np.sqrt(dim) * 2.0**-74
    return float(lengths[0]), float(lengths[1])


def _refuse(source: RowSource, row: int, metric: int) -> None:
    """Say what is wrong with a given embedding."""
    line = source.vectors[row] if len(source.vectors) else source.arrays.highs[row].view(np.float16)
    layout = LAYOUTS[line.dtype.name]
    if not np.isfinite(line).all():
        column = int(np.flatnonzero(~np.isfinite(line))[0])
        raise InputError(
            f"embeddings[{row}, {column}] is {line[column]}; every value must be finite; "
            f"{layout.dtype} holds numbers up to {layout.limit}. Look for a division by zero, or "
            "drop those rows"
        )
    length = float(np.linalg.norm(line.astype(np.float64)))
    if compares_directions(metric) and length < 1.0:
        raise InputError(
            f"embeddings[{row}] has length {length:g}; its direction, which cosine compares, "
            "cannot be told. Drop such rows, or use another metric"
        )
    raise InputError(
        f"embeddings[{row}] has length {length:g}; distances of such embeddings overflow. Divide "
        "all embeddings and queries by the same number"
    )


@kernel
def first_wrong_code(codes: NDArray[np.int32], buckets: int) -> int:
    """The first code that is out of range, names a bucket twice or has none, or -1.

    Behind the last bucket of a code, and only there, may be -1.
    """
    for row in range(codes.shape[0]):
        for column in range(codes.shape[1]):
            bucket = codes[row, column]
            if bucket == -1 and column > 0:
                continue
            if bucket < 0 or bucket >= buckets or (column > 0 and codes[row, column - 1] < 0):
                return row
            for other in range(column):
                if codes[row, other] == bucket:
                    return row
    return -1


@kernel
def sort_by_code(codes: NDArray[np.int32], buckets: int) -> NDArray[np.int64]:
    """The rows in the order of their codes, equal codes as they came (radix sort) [n].

    Items of one class share codes, so their rows come to lie together, also with k > 1. Where a
    code has ended, it comes before those that go on.
    """
    rows, active = codes.shape
    sources = empty(rows, np.int64)
    for row in range(rows):
        sources[row] = row
    spare = empty(rows if active > 1 else 0, np.int64)
    for column in range(active - 1, -1, -1):
        following = zeros(buckets + 2, np.int64)  # -1 has the first place
        for row in range(rows):
            following[codes[row, column] + 2] += 1
        for bucket in range(buckets + 1):
            following[bucket + 1] += following[bucket]
        if column == active - 1:  # the rows are still in their first order
            target = sources if active == 1 else spare
            for row in range(rows):
                place = codes[row, column] + 1
                target[following[place]] = row
                following[place] += 1
        else:
            target = spare
            for row in sources:
                place = codes[row, column] + 1
                target[following[place]] = row
                following[place] += 1
        if active > 1:
            sources, spare = spare, sources
    return sources


@kernel
def bucket_lists(
    codes: NDArray[np.int32], buckets: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Where each bucket starts [d + 1], and the rows of each bucket; none with k = 1."""
    rows, active = codes.shape
    offsets = zeros(buckets + 1, np.int64)
    for row in range(rows):
        for column in range(active):
            if codes[row, column] >= 0:
                offsets[codes[row, column] + 1] += 1
    for bucket in range(buckets):
        offsets[bucket + 1] += offsets[bucket]
    postings = empty(offsets[buckets] if active > 1 else 0, np.int32)
    if active > 1:
        following = empty(buckets, np.int64)
        for bucket in range(buckets):
            following[bucket] = offsets[bucket]
        for row in range(rows):
            for column in range(active):
                bucket = codes[row, column]
                if bucket >= 0:
                    postings[following[bucket]] = row
                    following[bucket] += 1
    return offsets, postings


@filter_kernel
def stored_square(highs: NDArray[np.uint16], lows: NDArray[np.uint16], row: int) -> float:
    """|x|² of a stored row."""
    total = np.float32(0.0)
    if lows.shape[0] > 0:
        for column in range(highs.shape[1]):
            value = join_planes(highs[row, column], lows[row, column])
            total += value * value
    else:
        for column in range(highs.shape[1]):
            value = half_to_float(highs[row, column])
            total += value * value
    return total


@filter_kernel
def residual_square(highs: NDArray[np.uint16], lows: NDArray[np.uint16], row: int) -> float:
    """|x - y|², where y is what the upper halves of a row alone say."""
    total = np.float32(0.0)
    for column in range(highs.shape[1]):
        high = highs[row, column]
        rest = join_planes(high, lows[row, column]) - high_to_float(high)
        total += rest * rest
    return total


@inner_kernel
def split_row(
    bits: NDArray[np.uint32], row: int, highs: NDArray[np.uint16], lows: NDArray[np.uint16],
    place: int,
) -> None:  # fmt: skip
    """Split a row of float32, given as its bits, into upper halves, rounded, and lower halves."""
    for column in range(bits.shape[1]):
        word = bits[row, column]
        highs[place, column] = (word + np.uint32(0x8000)) >> np.uint32(16)
        lows[place, column] = word & np.uint32(0xFFFF)


@inner_kernel
def copy_rows(
    source: Arrays,
    vectors: NDArray[np.float32],
    bits: NDArray[np.uint32],
    rows: NDArray[np.int64],
    metric: int,
    stored: bool,
    highs: NDArray[np.uint16],
    lows: NDArray[np.uint16],
    norms: NDArray[np.float32],
    largest: NDArray[np.float64],
) -> tuple[int, int]:
    """Copy rows of one source to their places, and compute their norms.

    They are in ``source``, or were given as ``vectors`` of float32, whose ``bits`` are given too;
    ``stored`` ones come from a segment, where they were found usable. ``rows`` has the row for each
    place of the result, negative for rows of another source. ``largest`` becomes the largest |x|²
    and ``residual_square`` seen [2].

    Returns:
        The first place whose embedding cannot be used, or -1; and the damaged block, BROKEN or -1.
    """
    given = vectors.shape[0] > 0
    for place in range(rows.shape[0]):
        row = rows[place]
        if row < 0:
            continue
        if given:
            later = rows[min(place + AHEAD, rows.shape[0] - 1)]
            for column in range(0, vectors.shape[1], LINE):
                prefetch(vectors, later, column)
            length = np.float64(square(vectors, row))
            split_row(bits, row, highs, lows, place)
        else:
            fault = damaged_rows(source, row, row + 1, False)
            if fault != -1:
                return -1, fault
            for column in range(highs.shape[1]):
                highs[place, column] = source.highs[row, column]
            for column in range(highs.shape[1] if lows.shape[0] > 0 else 0):
                lows[place, column] = source.lows[row, column]
            length = np.float64(stored_square(source.highs, source.lows, row))
        if not stored and not is_usable(metric, length):
            return place, -1
        if not has_norm(metric, length):
            return -1, BROKEN
        if length > largest[0]:
            largest[0] = length
        if lows.shape[0] > 0:
            rest = np.float64(residual_square(highs, lows, place))
            if rest > largest[1]:
                largest[1] = rest
        norms[place] = kept_norm(metric, length)
    return -1, -1


@inner_kernel
def copy_lows(
    source: Arrays, bits: NDArray[np.uint32], rows: NDArray[np.int64], lows: NDArray[np.uint16]
) -> None:
    """Copy lower halves of rows that ``copy_rows`` has copied before, and hence checked."""
    for place in range(rows.shape[0]):
        row = rows[place]
        if row < 0:
            continue
        if bits.shape[0] > 0:
            later = rows[min(place + AHEAD, rows.shape[0] - 1)]
            for column in range(0, bits.shape[1], LINE):
                prefetch(bits, later, column)
            for column in range(bits.shape[1]):
                lows[place, column] = bits[row, column] & np.uint32(0xFFFF)
        else:
            for column in range(lows.shape[1]):
                lows[place, column] = source.lows[row, column]


@kernel
def take_bytes(
    content: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
    target: NDArray[np.uint8],
) -> None:
    """Copy the byte strings of ``rows`` to their places in ``target``; negative rows are left."""
    for index in range(rows.shape[0]):
        row = rows[index]
        if row >= 0:
            start = offsets[row]
            for position in range(offsets[row + 1] - start):
                target[places[index] + position] = content[start + position]
