"""What the benchmarks share: timing that a noisy machine cannot fool easily, memory, and pages."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
README = ROOT / "README.md"


def use_threads(count: int) -> None:
    """As many threads for BLAS and OpenMP in this process and in those that it starts.

    Numpy, torch and FAISS read these when they are imported, so that a room says it in its
    ``__init__``. Whoever has numpy already, such as a test of a page, measures nothing.
    """
    if "numpy" in sys.modules:
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(count)


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turns(
    works: Sequence[Callable[[], object]], repeats: int, warm_up: int = 1
) -> list[list[float]]:
    """Seconds of each work, one list a turn: what else the machine does then meets all of them.

    Each turn begins with the next of them, because threads of the one before may still spin, or
    memory be given back. The first ``warm_up`` turns compile and fill caches, and do not count.
    """
    times = []
    for turn in range(warm_up + repeats):
        taken = [0.0] * len(works)
        for place in range(len(works)):
            number = (turn + place) % len(works)
            taken[number] = seconds(works[number])
        times.append(taken)
    return times[warm_up:]


def peak_memory() -> int:
    """Bytes that this process had in memory at the most, mapped files too."""
    return _status("VmHWM")


def present_memory() -> int:
    """Bytes that this process has in memory, mapped files too."""
    return _status("VmRSS")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {field} in /proc/self/status; this benchmark needs Linux")


def machine() -> str:
    """The processor, and what ran on it."""
    from flowhash.evaluate import machine as described  # loads torch: not before what is timed

    return described()


def put(path: Path, mark: str, body: str, inline: bool = False) -> None:
    """Replace what stands between ``<!-- mark: … -->`` and ``<!-- /mark -->`` on a page.

    The body gets lines of its own, or is ``inline``, within a sentence or a cell.
    """
    apart = "" if inline else "\n"
    start, end = rf"(<!-- {re.escape(mark)}: [^>]*-->)", f"<!-- /{mark} -->"
    text, count = re.subn(
        rf"{start}.*?{re.escape(end)}",
        lambda found: f"{found[1]}{apart}{body}{apart}{end}",
        path.read_text(),
        flags=re.S,
    )
    if not count:
        raise SystemExit(f"{path.name} has no <!-- {mark}: … -->")
    path.write_text(text)
