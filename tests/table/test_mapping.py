"""Tables larger than memory: mapped, never read whole, never charged to memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from flowhash import HashTable
from flowhash.table.storage.segment_file import map_file


def test_a_file_larger_than_memory_can_be_mapped(tmp_path: Path) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(4 * memory)
        file.seek(3 * memory)
        file.write(b"here")
    with path.open("rb") as file:
        buffer = map_file(file)
    array = np.frombuffer(buffer, np.uint8)
    del buffer  # the array alone keeps the mapping
    assert array[3 * memory : 3 * memory + 4].tobytes() == b"here"
    assert array.flags.writeable  # kernels are compiled once, for writable arrays


def test_opening_reads_little(tmp_path: Path) -> None:
    with HashTable.create(tmp_path / "table", buckets=16, dim=64) as table:
        codes = np.random.default_rng(0).integers(16, size=(20_000, 1))
        table.add(codes, np.random.default_rng(1).normal(size=(20_000, 64)))
    with HashTable.open(tmp_path / "table") as table:
        (part,) = table._open_state().parts
        verified = part.segment.arrays.verified
        assert verified.sum() <= 2  # the offsets
        table.search([[3]], np.zeros((1, 64)))
        assert 0.02 < verified.mean() < 0.2  # one bucket of sixteen, and a few ids
