"""Each claim of the paper with what the method preset showed of it: docs/results/paper-claims.md.

python -m benchmarks.paper.claims

Reads docs/results/cifar100-<loss>-method.json and -method-objective.csv, which
``flowhash reproduce cifar100 --preset method`` writes. A difference counts where its 95 % interval
excludes zero.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.measurement import RESULTS
from flowhash.evaluate import (
    METHODS,
    Row,
    between,
    group_seeds,
    lead_over,
    paper_rows,
    read_rows,
    signed,
)

LOSSES = ("triplet", "npairs")
TABLES = ("train", "test")
FALLEN = 0.95  # of what it was: less is a fall
SHOWN, NOT_SHOWN, CONTRADICTED = "shown", "not shown", "contradicted"
Groups = Mapping[tuple[str, str, int | None], Sequence[Row]]


@dataclass(frozen=True)
class Claim:
    """What the paper says, what was found, what that rests on, and what repeats it."""

    says: str
    verdict: str
    figure: str
    command: str
    basis: str = "intervals"


def command(loss: str) -> str:
    """What trains and measures one loss."""
    return f"`flowhash reproduce cifar100 --loss {loss} --preset method`"


def verdict(leads: Sequence[tuple[float, float] | None]) -> str:
    """All intervals above zero: shown; all below: contradicted; else not shown."""
    known = [lead for lead in leads if lead is not None]
    if not known or len(known) < len(leads):
        return NOT_SHOWN
    if all(low > 0 for low, _ in known):
        return SHOWN
    return CONTRADICTED if all(high < 0 for _, high in known) else NOT_SHOWN


def by_values(held: Sequence[bool]) -> str:
    """Of values without intervals: all of them, none of them, or some."""
    if held and all(held):
        return SHOWN
    return CONTRADICTED if held and not any(held) else NOT_SHOWN


def mean(rows: Sequence[Row], field: str) -> float:
    """Over seeds."""
    return float(np.mean([getattr(row, field) for row in rows]))


def lengths(groups: Groups) -> list[str]:
    """Exhaustive search by the base embedding, and by its other length."""
    names = ("exhaustive", "exhaustive-raw", "exhaustive-unit")
    return [name for name in names if (name, "test", None) in groups]


def precision_claim(loss: str, groups: Groups, k: int) -> Claim:
    """FlowHash is more precise than exhaustive search at this k, by raw and by unit vectors."""
    leads, words = [], []
    for table in TABLES:
        ours = groups["flowhash", table, k]
        for rival in lengths(groups):
            for field in ("pr1", "pr4", "pr16"):
                lead = lead_over(ours, rival, field)
                leads.append(lead)
                gap = mean(ours, field) - mean(groups[rival, table, None], field)
                name = f"Pr@{field.removeprefix('pr')}"
                shown = "" if lead is None else f" ({between(*lead)})"
                words.append(f"{table} {name} − {METHODS[rival]} {signed(gap)}{shown}")
    return Claim(
        f"{loss}, k = {k}: more precise than exhaustive search (Tables 1 and 2)",
        verdict(leads), "; ".join(words), command(loss),
    )  # fmt: skip


def speed_claim(loss: str, groups: Groups, k: int, paper: Mapping[tuple[str, int], float]) -> Claim:
    """SUF at least the paper's."""
    found = {table: mean(groups["flowhash", table, k], "suf") for table in TABLES}
    words = "; ".join(
        f"{table} {found[table]:.2f} (paper {paper[table, k]:.2f})" for table in TABLES
    )
    return Claim(
        f"{loss}, k = {k}: at least the speed-up factor of Tables 1 and 2",
        by_values([found[table] >= paper[table, k] for table in TABLES]), words, command(loss),
        "values",
    )  # fmt: skip


def expected_claim(loss: str, groups: Groups) -> Claim:
    """Figure 4: the measured SUF follows Eq. 9."""
    words, close = [], []
    for (method, table, k), rows in groups.items():
        if method == "flowhash" and table == "test" and rows[0].expected:
            ratio = mean(rows, "suf") / rows[0].expected
            close.append(abs(ratio - 1) < 0.1)
            words.append(f"k = {k}: {ratio:.2f}")
    return Claim(
        f"{loss}: the speed-up factor follows Eq. 9, within a tenth (Figure 4)", by_values(close),
        "measured over expected, test: " + "; ".join(words), command(loss), "values",
    )  # fmt: skip


def rival_claim(loss: str, groups: Groups, k: int, field: str) -> Claim:
    """FlowHash is ahead of Th and VQ at this k, by raw and by unit vectors."""
    leads, behind = [], []
    rivals = [name for name in ("th", "vq", "vq-raw", "vq-unit") if (name, "test", k) in groups]
    for table in TABLES:
        ours = groups["flowhash", table, k]
        for rival in rivals:
            lead = lead_over(ours, rival, field)
            leads.append(lead)
            if lead is None or lead[0] <= 0:
                theirs = mean(groups[rival, table, k], field)
                behind.append(f"{table} {METHODS[rival]} {theirs:.2f} to {mean(ours, field):.2f}")
    name = "SUF" if field == "suf" else f"Pr@{field.removeprefix('pr')}"
    return Claim(
        f"{loss}, k = {k}: a larger {name} than Th and VQ",
        verdict(leads), "ahead of all" if not behind else "not ahead of: " + "; ".join(behind),
        command(loss),
    )  # fmt: skip


def clusters_claim(loss: str, groups: Groups) -> Claim:
    """Table 5: a higher NMI than Th and VQ, by raw and by unit vectors."""
    words, ahead = [], []
    names = ("flowhash", "th", "vq", "vq-raw", "vq-unit", "classifier")
    for table in TABLES:
        values = {
            name: mean(groups[name, table, 1], "nmi")
            for name in names
            if (name, table, 1) in groups
        }
        rivals = [value for name, value in values.items() if name in names[1:5]]
        ahead.append(values["flowhash"] > max(rivals))
        words.append(f"{table} " + ", ".join(f"{METHODS[n]} {v:.2f}" for n, v in values.items()))
    return Claim(
        f"{loss}: a higher NMI than Th and VQ (Table 5)", by_values(ahead), "; ".join(words),
        command(loss), "values",
    )  # fmt: skip


def flow_claim(loss: str, groups: Groups, k: int) -> Claim:
    """What the penalty, and so the flow, adds to SUF."""
    leads, words = [], []
    for table in TABLES:
        ours, free = groups["flowhash", table, k], groups["flowhash-free", table, k]
        lead = lead_over(ours, "flowhash-free", "suf")
        leads.append(lead)
        shown = "" if lead is None else f" ({between(*lead)})"
        words.append(f"{table} {mean(ours, 'suf'):.2f} against {mean(free, 'suf'):.2f}{shown}")
    return Claim(
        f"{loss}, k = {k}: codes by minimum-cost flow spread over the buckets (λ against λ = 0)",
        verdict(leads), "SUF " + "; ".join(words), command(loss),
    )  # fmt: skip


def gap_claim(loss: str, path: Path) -> Claim:
    """M(θ) falls while the network learns, and not only because outputs get shorter."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    with path.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            gap, whole = float(line["bound_gap"]), abs(float(line["item_objective"]))
            found.setdefault(line["training"], []).append((int(line["step"]), gap, gap / whole))
    words, falls = [], []
    for name, points in found.items():
        values = np.array([point[1:] for point in sorted(points)])
        tenth = max(1, len(values) // 10)
        first, last = values[:tenth].mean(axis=0), values[-tenth:].mean(axis=0)
        falls.append(bool((last < FALLEN * first).all()))
        words.append(
            f"{name}: {first[0]:.1f} to {last[0]:.1f}, over |g| {first[1]:.2f} to {last[1]:.2f}"
        )
    return Claim(
        f"{loss}: M(θ) falls during training", by_values(falls),
        "seed 0, first against last tenth of the steps: " + "; ".join(words), command(loss),
        "values",
    )  # fmt: skip


FIXED = (
    Claim(
        "The flow gives the optimal codes of a batch (Theorem 1)", SHOWN,
        "equal to OR-Tools and to brute force on every case, with a certificate for each",
        "`pytest tests/codes`", "tests",
    ),
    Claim(
        "OR-Tools' time for the flow is about linear in classes and buckets (Figure 2)", SHOWN,
        "exponents of about 1.1 in both; this project's solver grows less with the buckets "
        "([growth](solver.md))", "`make bench`", "values",
    ),
    Claim(
        "ImageNet32: 478 times fewer items at a higher precision (Tables 3 and 4)", NOT_SHOWN,
        "not run here: it takes GPUs; the command is tested on small files of the same layout",
        "`flowhash reproduce imagenet32 --preset paper`", "nothing",
    ),
)  # fmt: skip


def claims(read: Mapping[str, Sequence[Row]], folder: Path) -> list[Claim]:
    """All of them, with what was measured."""
    found = list(FIXED[:2])
    for loss, rows in read.items():
        groups = group_seeds(rows)
        paper = {
            (row.table, row.k): row.suf
            for row in paper_rows("cifar100", loss)
            if row.method == "flowhash" and row.k is not None
        }
        counts = sorted({k for name, _, k in groups if name == "flowhash" and k is not None})
        for k in counts:
            found.append(precision_claim(loss, groups, k))
            found.append(speed_claim(loss, groups, k, paper))
            found += [rival_claim(loss, groups, k, field) for field in ("suf", "pr1")]
            found.append(flow_claim(loss, groups, k))
        found += [expected_claim(loss, groups), clusters_claim(loss, groups)]
        found.append(gap_claim(loss, folder / f"cifar100-{loss}-method-objective.csv"))
    return [*found, *FIXED[2:]]


HEAD = """\
# What the paper claims, and what was found here

Written by `python -m benchmarks.paper.claims`; do not edit by hand. The paper's method on the real
CIFAR-100, with a smaller network and fewer steps than the paper's (how it differs: {pages}),
{seeds}. Where a verdict rests on *intervals*: shown means that every difference the claim is about
has a 95 % interval above zero, contradicted that every one lies below. Where it rests on *values*,
which have no interval: shown means that all of them are as claimed, contradicted that none is.
Anything else is not shown.

| the paper says | here | rests on | figures | command |
|---|---|---|---|---|
"""


def page(found: Sequence[Claim], losses: Iterable[str], seeds: int) -> str:
    """As Markdown."""
    lines = [
        f"| {each.says} | **{each.verdict}** | {each.basis} | {each.figure} | {each.command} |"
        for each in found
    ]
    head = HEAD.format(
        pages=", ".join(f"[{loss}](cifar100-{loss}-method.md)" for loss in losses),
        seeds="one seed" if seeds == 1 else f"{seeds} seeds",
    )
    return head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    files = {loss: RESULTS / f"cifar100-{loss}-method.json" for loss in LOSSES}
    read = {loss: read_rows(file) for loss, file in files.items() if file.exists()}
    seeds = max(len({row.seed for row in rows}) for rows in read.values())
    (RESULTS / "paper-claims.md").write_text(page(claims(read, RESULTS), read, seeds), "utf-8")
