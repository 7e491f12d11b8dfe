"""Copy the measured CIFAR-100 rows at k = 1 from docs/results/ into the README.

python benchmarks/quote_results.py
"""

from __future__ import annotations

import re

from flowhash.evaluate import METHODS, Row, read_rows
from measure import README, RESULTS

START, END = "<!-- results: written by benchmarks/quote_results.py -->", "<!-- /results -->"
LEFT_OUT = ("vq-train",)


def line(loss: str, row: Row) -> str:
    """One row of the README's table."""
    nmi = "" if row.nmi is None else f"{row.nmi:.2f}"
    numbers = f"{row.pr1:.2f} | {row.pr4:.2f} | {row.pr16:.2f} | {row.suf:.2f} | {nmi}"
    return f"| {loss} | {METHODS[row.method]} | {numbers} |"


def block() -> str:
    """The table of both losses: test images among themselves, k = 1."""
    lines = [
        "| loss | search | Pr@1 | Pr@4 | Pr@16 | SUF | NMI |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for loss in ("triplet", "npairs"):
        rows = read_rows(RESULTS / f"cifar100-{loss}.json")
        lines += [
            line(loss, row)
            for row in rows
            if row.table == "test" and row.k in (None, 1) and row.method not in LEFT_OUT
        ]
    return "\n".join([START, *lines, END])


if __name__ == "__main__":
    text = README.read_text()
    README.write_text(re.sub(f"{START}.*?{END}", block(), text, flags=re.S))
