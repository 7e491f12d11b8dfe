"""Writes the stored table of version 4, with quantised planes: ``python -m tests.format.make_v4``.

Only for a new format version. Tables that were released must open for ever; never write them again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from flowhash import HashTable
from tests.format.make_v1 import HERE, answers


def write() -> None:
    """A table of rows that are long enough for the plane, in two segments, with deleted rows."""
    folder = HERE / "v4-quantised"
    shutil.rmtree(folder, ignore_errors=True)
    generator = np.random.default_rng(4)
    with HashTable.create(
        folder / "table", buckets=5, dim=96, active=2, encoder="a fingerprint"
    ) as table:
        for count in (20, 12):
            codes = np.argsort(generator.random((count, 5)), axis=1)[:, :2]
            codes[generator.random(count) < 0.3, 1] = -1
            table.add(codes, generator.integers(-400, 500, size=(count, 96)) / 64)
        table.delete([3, 24])
        (folder / "expected.json").write_text(json.dumps(answers(table), indent=1) + "\n")
    Path(folder, "table", "writer.lock").unlink()


if __name__ == "__main__":
    write()
