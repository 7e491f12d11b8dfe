"""The file of a segment: checksums as zlib has them, arrays as safetensors reads them."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flowhash import HashTable
from flowhash.table.distance_metrics import LARGEST_SQUARE
from flowhash.table.segments.arrays import BLOCK, block_checksums, copy_embedding, first_damaged
from flowhash.table.segments.segment import Segment
from flowhash.table.segments.segment_draft import split_row


@given(st.binary(max_size=400).map(lambda data: (data * 9)[: len(data) * 9 // 8 * 8]))
def test_checksums_are_those_of_zlib(data: bytes) -> None:
    words = np.frombuffer(bytearray(data), np.uint64)
    sums = np.empty(-(-len(data) // BLOCK), np.uint32)
    block_checksums(words, sums)
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
    assert sums.tolist() == [zlib.crc32(block) for block in blocks]


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
