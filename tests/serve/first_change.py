"""A script: warms servers up, then changes their tables in every way; nothing is compiled then.

Nor where so much was added, or is left, that searches take other kernels than before.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
from numba.core.dispatcher import Dispatcher

from flowhash.serve import create_app
from flowhash.table import HashTable
from tests.serve.servers import ACTIVE, BUCKETS, DIM, ITEMS, raw_items
from tests.serve.test_limits import ask


def compiled() -> set[tuple[str, str]]:
    """Every kernel with the types it was compiled for."""
    return {
        (f"{kernel.py_func.__module__}.{kernel.py_func.__name__}", str(types))
        for kernel in gc.get_objects()
        if isinstance(kernel, Dispatcher)
        for types in kernel.overloads
    }


def change(folder: str, ids: str, dtype: str) -> None:
    """The first changes of a table."""
    chosen: dict[str, Any] = {"ids": ids, "dtype": dtype}
    table = HashTable.create(folder, buckets=BUCKETS, dim=DIM, active=ACTIVE, **chosen)
    app = create_app(table)
    app.state.service.warm_up()
    assert len(table) == 0
    before = compiled()
    assert before
    names: list[Any] = [1, 2] if ids == "int64" else ["1", "2"]
    items = [{"embedding": [1, 2, 3, 4], "code": [1, 2], "id": name} for name in names]
    for given in (items, items[::-1], [*items, *items]):
        assert ask(app, "POST", "/items", json={"items": given}).status_code == 201
    assert ask(app, "DELETE", "/items/1").status_code == 200
    codes, embeddings = raw_items(0)
    for first in range(0, ITEMS, 30):  # until segments are merged
        rows = slice(first, first + 30)
        made = None if ids == "int64" else [f"row {row}" for row in range(ITEMS)[rows]]
        table.add(codes[rows], embeddings[rows], made, [{"row": 1}] * 30)
    assert not compiled() - before, compiled() - before


def grow(first: int, second: int, top: int) -> None:
    """A search of a table of long rows after ``second`` are there beside the ``first``."""
    random = np.random.default_rng(0)
    table = HashTable.create(buckets=2, dim=128)
    for count in (first, second):
        table.add(random.integers(0, 2, (count, 1)), random.normal(size=(count, 128)))
        if count == first:
            app = create_app(table)
            app.state.service.warm_up()
            before = compiled()
    asked = {"embedding": random.normal(size=128).tolist(), "buckets": [1, 0], "top": top}
    assert ask(app, "POST", "/search", json=asked).status_code == 200
    assert not compiled() - before, compiled() - before


if __name__ == "__main__":
    if len(sys.argv) > 2:
        grow(*(int(number) for number in sys.argv[2:]))
        sys.exit()
    # One after the other: what strings and halves need is not compiled by the first.
    change(f"{sys.argv[1]}/numbers", "int64", "float32")
    change(f"{sys.argv[1]}/strings", "string", "float16")
