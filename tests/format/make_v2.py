"""Writes the stored table of format version 2, which has notes: ``python -m tests.format.make_v2``.

Only for a new format version. Tables that were released must open for ever; never write them again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from flowhash import HashTable
from tests.format.make_v1 import HERE, answers

NOTES = {"index-0123456789abcdef": {"done": 37, "crc32": 1}, "ü": [1, None, 0.5, {"a": "\0"}]}


def write() -> None:
    """The table of version 1 with notes."""
    folder = HERE / "v2-notes"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "v1-int64" / "table", folder / "table")
    with HashTable.open(folder / "table", "r+") as table:
        for name, value in NOTES.items():
            table.note(name, value)
        expected = {**answers(table), "notes": table.notes()}
        (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    Path(folder, "table", "writer.lock").unlink()


if __name__ == "__main__":
    write()
