"""Writes the stored tables of format version 1: ``python tests/format/make_v1.py``.

Only for a new format version. Tables that were released must open for ever; never write them again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from flowhash import HashTable

HERE = Path(__file__).resolve().parent


def questions(table: HashTable) -> tuple[np.ndarray, np.ndarray]:
    """Three queries with the buckets that they open."""
    generator = np.random.default_rng(7)
    order = np.array([generator.permutation(table.buckets) for _ in range(3)])
    return order, generator.integers(-4, 5, size=(3, table.dim)) + 0.25


def answers(table: HashTable) -> dict[str, Any]:
    """What a stored table must say for ever."""
    hits = table.search(*questions(table), top=6, probe=4, payloads=True)
    items = {
        str(name): [table[name].code.tolist(), table[name].embedding.tolist(), table[name].payload]
        for name in table
    }
    return {
        "ids": hits.ids.tolist(),
        "distances": hits.distances.tolist(),
        "counts": hits.counts.tolist(),
        "scanned": hits.scanned.tolist(),
        "payloads": hits.payloads,
        "items": items,
        "encoder": table.encoder,
    }


def write(name: str, **settings: Any) -> None:
    """Write a table with two segments, deletions and payloads, and its answers."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    generator = np.random.default_rng(1)
    with HashTable.create(folder / "table", encoder="a fingerprint", **settings) as table:
        for first in (0, 20):
            codes = np.argsort(generator.random((20, table.buckets)), axis=1)[:, : table.active]
            embeddings = generator.integers(-4, 5, size=(20, table.dim)) + 0.5
            numbers = range(first, first + 20)
            ids = [f"näme {n}" for n in numbers] if table.id_kind == "string" else list(numbers)
            payloads = [{"number": n} if n % 3 else None for n in numbers]
            table.add(codes, embeddings, ids, payloads)
        table.delete(ids[:3])
        (folder / "expected.json").write_text(json.dumps(answers(table), indent=1) + "\n")
    (folder / "table" / "writer.lock").unlink()


if __name__ == "__main__":
    write("v1-int64", buckets=8, dim=5, active=2)
    write("v1-strings", buckets=6, dim=3, metric="cosine", dtype="float16", ids="string")
