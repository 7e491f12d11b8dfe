"""Claim: ``topk_codes`` is at least 3 times as fast as ``np.argpartition`` (1M × 256, k = 4).

    python benchmarks/topk.py [--rows 1000000]

Both run in this process, turn by turn, one thread; ours also on all cores.
"""

from __future__ import annotations

import argparse

from measure import machine, median, seconds  # isort: skip  (sets the number of threads first)

import numpy as np

from flowhash.codes import topk_codes

SIZE, ACTIVE, REPEATS = 256, 4, 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    values = np.random.default_rng(0).standard_normal((rows, SIZE), dtype=np.float32)
    partition = SIZE - ACTIVE
    topk_codes(values[:1], ACTIVE)  # compile
    theirs, one, all_cores = [], [], []
    for _ in range(REPEATS):
        theirs.append(seconds(lambda: np.argpartition(values, partition, axis=1)[:, partition:]))
        one.append(seconds(lambda: topk_codes(values, ACTIVE, threads=1)))
        all_cores.append(seconds(lambda: topk_codes(values, ACTIVE)))
    expected = np.sort(np.argpartition(values[:5000], partition, axis=1)[:, partition:], axis=1)
    assert np.array_equal(topk_codes(values[:5000], ACTIVE), expected)
    print(f"{rows} × {SIZE} float32, k = {ACTIVE}; {machine()}; median of {REPEATS}")
    print(f"np.argpartition       {median(theirs):7.3f} s")
    for name, times in (("topk_codes, 1 thread ", one), ("topk_codes, all cores", all_cores)):
        ratio = median(theirs) / median(times)
        print(f"{name} {median(times):7.3f} s   {ratio:5.1f} times as fast")


if __name__ == "__main__":
    main()
