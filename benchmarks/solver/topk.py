"""Claim: ``topk_codes`` is at least 3 times as fast as ``np.argpartition`` (1M × 256, k = 4).

    python -m benchmarks.solver.topk [--rows 1000000]

Both run in this process, turn by turn, one thread; ours also on all cores.
"""

from __future__ import annotations

import argparse
from statistics import median

import numpy as np

from benchmarks.measurement import RESULTS, in_turns, machine
from flowhash.codes import topk_codes

ROWS, SIZE, ACTIVE, REPEATS = 1_000_000, 256, 4, 5
PAGE = """\
# Top-k codes, measured

Written by `python -m benchmarks.solver.topk` (part of `make bench`); do not edit by hand.
{rows} × 256 float32, k = 4, medians of 5 runs, turn by turn. The bar is 3 times `np.argpartition`.
Machine: {machine}.

| | seconds | faster |
|---|---:|---:|
{table}
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    rows = parser.parse_args().rows
    values = np.random.default_rng(0).standard_normal((rows, SIZE), dtype=np.float32)
    partition = SIZE - ACTIVE
    topk_codes(values[:1], ACTIVE)  # compile
    works = {
        "np.argpartition": lambda: np.argpartition(values, partition, axis=1)[:, partition:],
        "topk_codes, 1 thread": lambda: topk_codes(values, ACTIVE, threads=1),
        "all cores": lambda: topk_codes(values, ACTIVE),
    }
    turns = in_turns(tuple(works.values()), REPEATS, warm_up=0)
    times = [median(column) for column in zip(*turns, strict=True)]
    expected = np.sort(np.argpartition(values[:5000], partition, axis=1)[:, partition:], axis=1)
    assert np.array_equal(topk_codes(values[:5000], ACTIVE), expected)
    table = "\n".join(
        f"| {name} | {time:.3f} | {times[0] / time:.1f}× |"
        for name, time in zip(works, times, strict=True)
    )
    text = PAGE.format(rows=rows, machine=machine(), table=table)
    print(text)
    if rows == ROWS:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "topk.md").write_text(text)


if __name__ == "__main__":
    main()
