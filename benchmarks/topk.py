"""Claim: ``topk_codes`` is at least 3 times as fast as ``np.argpartition`` (1M × 256, k = 4).

    python benchmarks/topk.py [--rows 1000000]

Both run in this process, turn by turn, one thread; ours also on all cores.
"""

from __future__ import annotations

import argparse

from measure import RESULTS, machine, median, seconds  # isort: skip  (sets the number of threads first)

import numpy as np

from flowhash.codes import topk_codes

ROWS, SIZE, ACTIVE, REPEATS = 1_000_000, 256, 4, 5
PAGE = """\
# Top-k codes, measured

Written by `python benchmarks/topk.py` (part of `make bench`); do not edit by hand.
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
    theirs, one, all_cores = [], [], []
    for _ in range(REPEATS):
        theirs.append(seconds(lambda: np.argpartition(values, partition, axis=1)[:, partition:]))
        one.append(seconds(lambda: topk_codes(values, ACTIVE, threads=1)))
        all_cores.append(seconds(lambda: topk_codes(values, ACTIVE)))
    expected = np.sort(np.argpartition(values[:5000], partition, axis=1)[:, partition:], axis=1)
    assert np.array_equal(topk_codes(values[:5000], ACTIVE), expected)
    runs = (("np.argpartition", theirs), ("topk_codes, 1 thread", one), ("all cores", all_cores))
    table = "\n".join(
        f"| {name} | {median(times):.3f} | {median(theirs) / median(times):.1f}× |"
        for name, times in runs
    )
    text = PAGE.format(rows=rows, machine=machine(), table=table)
    print(text)
    if rows == ROWS:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "topk.md").write_text(text)


if __name__ == "__main__":
    main()
