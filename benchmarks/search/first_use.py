"""What people feel first: the first calls of a fresh installation, the command's help, add on disk.

    python -m benchmarks.search.first_use [OTHER CLONES ...]

Each in a process of its own, this clone and others in turns; medians of seconds by the clock and of
processor time. The first calls compile into an empty folder, the others do not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.measurement import ROOT

TURNS = 3
HELP = "import runpy, sys; sys.argv[1:] = ['--help']; runpy.run_module('flowhash.cli')"
IMPORTS = "import typer, rich"
DATA = """
import json, sys, time
import numpy as np
from flowhash.table import HashTable
rng = np.random.default_rng(0)
taken = {}
def take(name, work):
    start, used = time.perf_counter(), time.process_time()
    work()
    taken[name] = time.perf_counter() - start, time.process_time() - used
def items(count):
    return rng.integers(0, 512, (count, 1)), rng.standard_normal((count, 64), dtype=np.float32)
"""
FIRST = f"""{DATA}
table = HashTable.create(buckets=512, dim=64)
codes, rows = items(20_000)
take("first add", lambda: table.add(codes, rows))
take("first single search", lambda: table.search(codes[:1], rows[:1]))
take("first batch search", lambda: table.search(codes[:1000], rows[:1000]))
print(json.dumps(taken))
"""
ADD = f"""{DATA}
HashTable.create(sys.argv[1] + "/small", buckets=512, dim=64).add(*items(5000))
table = HashTable.create(sys.argv[1] + "/large", buckets=512, dim=64)
codes, rows = items(1_000_000)
take("add a million rows on disk", lambda: table.add(codes, rows))
print(json.dumps(taken))
"""


def run(code: str, clone: Path, cache: str) -> dict[str, tuple[float, float]]:
    """What a script takes, by its own clock, or that of its process."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": str(clone / "src"), "NUMBA_CACHE_DIR": cache,
                 "FLOWHASH_QUIET": "1"},
        )  # fmt: skip
        after = os.times()
    if code in (HELP, IMPORTS):
        used = sum(after[2:4]) - sum(before[2:4])
        return {"--help" if code == HELP else IMPORTS: (after.elapsed - before.elapsed, used)}
    taken: dict[str, tuple[float, float]] = json.loads(done.stdout)
    return taken


def main() -> None:
    """Measure and print."""
    clones = [ROOT, *map(Path, sys.argv[1:])]
    found: dict[tuple[Path, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as kept:
        for turn in range(TURNS):
            for number, clone in enumerate(clones):
                with tempfile.TemporaryDirectory() as empty:
                    taken = run(FIRST, clone, empty)
                for code in (HELP, IMPORTS, ADD):
                    if turn == 0:
                        run(code, clone, f"{kept}/{number}")
                    taken |= run(code, clone, f"{kept}/{number}")
                for name, both in taken.items():
                    found.setdefault((clone, name), []).append((both[0], both[1]))
    for (clone, name), turns in found.items():
        clock, processor = (median(one) for one in zip(*turns, strict=True))
        print(f"{clone}  {name}: {clock:.2f} s, {processor:.2f} s of the processor")


if __name__ == "__main__":
    main()
