"""Copy measured CIFAR-100 rows from docs/results/ into the README and docs/how-it-works.md.

python -m benchmarks.paper.quotes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.measurement import README, RESULTS, ROOT, put
from flowhash.evaluate import (
    METHODS,
    Row,
    between,
    group_seeds,
    leads_all,
    read_rows,
    signed,
)
from flowhash.quality import expected_speed_up

LOSSES = {"triplet": 256, "npairs": 64}  # and the buckets d of its table
# What no row may be read without.
WORDS = """\
Every row stands on one network, trained by **cross-entropy** on the 100 classes and then **frozen**; its features are the mean
over an image and its **mirror image**. The first rows of a table never saw triplet or npairs: they have the base's own vectors, as
many numbers as there are buckets, and its own classifier. In *FlowHash* the hash layer alone is learned by Algorithm 1, with
**100 classes in a batch**: by triplet from a start **at that classifier** (d = 256), by npairs with the authors' **masked product**
instead of the paper's distance, from a random start (d = 64). {seeds} {bold}"""  # noqa: E501
BOLD = (
    "Bold is FlowHash where it leads every other method of its table by a 95 % interval above "
    "zero (paired bootstrap over the queries)."
)
NO_BOLD = "Nothing is bold: these rows were measured without intervals, and a lead may be chance."


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def line(loss: str, row: Row, rows: Mapping[tuple[str, str, int | None], Sequence[Row]]) -> str:
    """One row of the README's table."""
    name = METHODS[row.method]
    if row.method.startswith(("flowhash", "start")):
        name = f"{name} ({loss})"

    def shown(field: str) -> str:
        value = _number(getattr(row, field))
        return f"**{value}**" if leads_all(field, rows, (row.method, row.table, row.k)) else value

    cells = [str(LOSSES[loss]), name, *map(shown, ("pr1", "pr4", "pr16", "suf", "nmi"))]
    if row.pr1_low is not None and row.pr1_high is not None:
        exhaustive = rows["exhaustive", row.table, None][0]
        less = f"{signed(row.pr1 - exhaustive.pr1)} ({between(row.pr1_low, row.pr1_high)})"
        cells.append("" if row.k is None else less)
    return f"| {' | '.join(cells)} |"


def results(read: Mapping[str, Sequence[Row]]) -> str:
    """The README's tables of both losses: test images among themselves, k = 1, and their words."""
    # By the base's other length exhaustive search and VQ stand on the results' pages.
    chosen = {
        loss: [
            row
            for row in rows
            if row.table == "test" and row.k in (None, 1) and row.seed == 0
            and not row.method.endswith(("-raw", "-unit"))
        ]
        for loss, rows in read.items()
    }  # fmt: skip
    known = all(row.pr1_low is not None for rows in chosen.values() for row in rows)
    heads = ["d", "search", "Pr@1", "Pr@4", "Pr@16", "SUF", "NMI"]
    heads += ["Pr@1 − exhaustive, 95 %"] if known else []
    lines = [f"| {' | '.join(heads)} |", f"|---:|---|{'---:|' * (len(heads) - 2)}"]
    for loss, rows in chosen.items():
        lines += [line(loss, row, group_seeds(rows)) for row in rows]
    count = max(len({row.seed for row in rows}) for rows in read.values())
    seeds = "One seed." if count == 1 else f"Seed 0 of {count}."
    words = WORDS.format(seeds=seeds, bold=BOLD if known else NO_BOLD)
    return f"{words}\n\n" + "\n".join(lines)


def speed_ups(rows: Sequence[Row], buckets: int) -> str | None:
    """SUF and Pr@1 by k: before training, after it, and the classifier; None without a start."""
    found = {(row.method, row.k): row for row in rows if row.table == "test" and row.seed == 0}
    counts = sorted({k for method, k in found if method == "start" and k is not None})
    if not counts:
        return None
    lines = [
        f"| d = {buckets}, test images | {' | '.join(f'k = {k}' for k in counts)} |",
        f"|---|{'---:|' * len(counts)}",
        _speed_ups("independent, even codes: SUF", [expected_speed_up(buckets, k) for k in counts]),
    ]
    for method in ("start", "flowhash", "classifier"):
        of_k = [found[method, k] for k in counts]
        lines.append(_speed_ups(f"{METHODS[method]}: SUF", [row.suf for row in of_k]))
        lines.append(_speed_ups(f"{METHODS[method]}: Pr@1", [row.pr1 for row in of_k]))
    return "\n".join(lines)


def _speed_ups(name: str, values: Sequence[float]) -> str:
    return f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |"


if __name__ == "__main__":
    read = {
        loss: read_rows(RESULTS / f"cifar100-{loss}-refined-classifier.json") for loss in LOSSES
    }
    put(README, "results", results(read))
    measured = speed_ups(read["triplet"], LOSSES["triplet"])
    if measured is None:
        print("no start with zero steps among the rows: docs/how-it-works.md is left as it is")
    else:
        put(ROOT / "docs" / "how-it-works.md", "start", measured)
