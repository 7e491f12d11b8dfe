"""The file of a segment: checksums as zlib has them, arrays as safetensors reads them."""

from __future__ import annotations

import io
import json
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flowhash import HashTable
from flowhash.table.distance_metrics import LARGEST_SQUARE
from flowhash.table.segments.arrays import BLOCK, block_checksums, copy_embedding, first_damaged
from flowhash.table.segments.segment import Segment
from flowhash.table.segments.segment_draft import split_row
from flowhash.table.storage.segment_file import ArrayEntry, whole, write_container


@given(st.integers(0, 9 * BLOCK // 8), st.integers(0, 99))
def test_checksums_are_those_of_zlib(count: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(count * 8)
    words = np.frombuffer(bytearray(data), np.uint64)
    sums = np.empty(-(-len(data) // BLOCK), np.uint32)
    block_checksums(words, sums)
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
    assert sums.tolist() == [zlib.crc32(block) for block in blocks]


@given(st.lists(st.integers(0, 3 * BLOCK), max_size=6), st.booleans())
def test_checksums_of_what_comes_in_pieces(sizes: list[int], frozen: bool) -> None:
    content = np.random.default_rng(0).integers(0, 256, sum(sizes) + 1).astype(np.uint8)
    content.flags.writeable = not frozen
    edges = np.cumsum([1, *sizes])  # from 1: not where words begin
    pieces = [content[start:stop] for start, stop in pairwise(edges)]
    file = io.BytesIO()
    entry = ArrayEntry("names", content.dtype, (sum(sizes),), pieces)
    size, header_sum, sums_sum = write_container(file, [whole("ids", np.arange(3)), entry])
    written = file.getvalue()
    start = 8 + int.from_bytes(written[:8], "little")
    fields = json.loads(written[8:start])
    place, end = (start + offset for offset in fields["checksums"]["data_offsets"])
    blocks = [written[one : min(place, one + BLOCK)] for one in range(start, place, BLOCK)]
    assert np.frombuffer(written[place:end], "<u4").tolist() == list(map(zlib.crc32, blocks))
    assert (size, header_sum) == (len(written), zlib.crc32(written[8:start]))
    assert sums_sum == zlib.crc32(written[place:end])
    first = start + fields["names"]["data_offsets"][0]
    assert written[first : first + sum(sizes)] == content[1:].tobytes()


def test_a_changed_byte_is_found_where_it_is_read() -> None:
    data = np.random.default_rng(0).integers(0, 256, size=5 * BLOCK - 64).astype(np.uint8)
    words = data.view(np.uint64)
    sums = np.empty(5, np.uint32)
    block_checksums(words, sums)
    data[3 * BLOCK + 5] ^= 1
    verified = np.zeros(5, np.uint8)
    assert first_damaged(words, sums, verified, 0, 3 * BLOCK) == -1
    assert verified.tolist() == [1, 1, 1, 0, 0]
    assert first_damaged(words, sums, verified, 0, 3 * BLOCK + 1) == 3
    assert first_damaged(words, sums, verified, 4 * BLOCK, 4 * BLOCK + 1) == -1
    assert first_damaged(words, sums, verified, 3 * BLOCK, 3 * BLOCK) == -1  # nothing is read


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_planes_lose_nothing(values: list[float]) -> None:
    row = np.array([values], np.float32)
    row[np.abs(row) > np.sqrt(LARGEST_SQUARE)] = 1.0
    highs, lows = np.empty(row.shape, np.uint16), np.empty(row.shape, np.uint16)
    split_row(row.view(np.uint32), 0, highs, lows, 0)
    joined = np.empty_like(row)
    copy_embedding(highs, lows, 0, joined, 0)
    assert joined.tobytes() == row.tobytes()  # also the sign of zero
    coarse = (highs.astype(np.uint32) << np.uint32(16)).view(np.float32)
    assert (np.abs(coarse.astype(np.float64) - row) <= 2.0**-8 * np.abs(row) + 1e-38).all()


@pytest.mark.parametrize("active", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_safetensors_library_reads_it(tmp_path: Path, active: int, dtype: str) -> None:
    library = pytest.importorskip("safetensors.numpy")
    generator = np.random.default_rng(0)
    codes = np.argsort(generator.random((50, 7)), axis=1)[:, :active]
    embeddings = generator.normal(size=(50, 5)).astype(dtype).astype(np.float32)
    names = [f"item {number}" for number in range(50)]
    path = tmp_path / "table"
    with HashTable.create(
        path, buckets=7, dim=5, active=active, dtype=dtype, ids="string"
    ) as table:
        table.add(codes, embeddings, names, [{"number": number} for number in range(50)])
        segment: Segment = table._open_state().parts[0].segment
        loaded = library.load_file(next(path.glob("segment-*")))
        assert all(
            start % 64 == 0 for name, (start, _) in segment.spans.items() if name[:3] != "pad"
        )
        assert np.array_equal(loaded["ids"], segment.arrays.ids)
        assert np.array_equal(loaded["offsets"], segment.arrays.offsets)
        assert np.array_equal(loaded["norms"], segment.arrays.norms)
        assert np.array_equal(loaded["checksums"], segment.arrays.sums)
        first = "embeddings" if dtype == "float16" else "highs"
        assert loaded[first].tobytes() == segment.arrays.highs.tobytes()
        if active > 1:
            assert np.array_equal(loaded["codes"], segment.arrays.codes)
            assert np.array_equal(loaded["postings"], segment.arrays.postings)
        for row, name in enumerate(segment.ids_at(np.arange(50))):
            assert np.array_equal(segment.embedding_at(row), embeddings[names.index(name)])
