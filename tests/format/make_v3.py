"""Writes the stored table of version 3, with short codes: ``python -m tests.format.make_v3``.

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
    """The table of version 1 with a segment whose items are in one or two buckets."""
    folder = HERE / "v3-short"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "v1-int64" / "table", folder / "table")
    generator = np.random.default_rng(3)
    with HashTable.open(folder / "table", "r+") as table:
        codes = np.argsort(generator.random((20, table.buckets)), axis=1)[:, :2]
        codes[generator.random(20) < 0.6, 1] = -1
        table.add(codes, generator.integers(-4, 5, size=(20, table.dim)) + 0.5)
        table.delete([41, 47])
        (folder / "expected.json").write_text(json.dumps(answers(table), indent=1) + "\n")
    Path(folder, "table", "writer.lock").unlink()


if __name__ == "__main__":
    write()
