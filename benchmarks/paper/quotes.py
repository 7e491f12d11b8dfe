"""Copy measured CIFAR-100 rows from docs/results/ into the README and the documents.

python -m benchmarks.paper.quotes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measurement import RESULTS, ROOT, put
from benchmarks.paper.claims import (
    CONTRADICTED,
    SHOWN,
    TABLES,
    counts,
    difference,
    flow_claim,
    mean,
    measured,
    paper_speeds,
    precision_claim,
    seeds_words,
    speed_claim,
)
from flowhash.evaluate import (
    METHODS,
    Row,
    between,
    group_seeds,
    lead_over,
    leads_all,
    paper_rows,
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

METHOD = """\
**The paper's own method**, with a smaller network, a fifteenth of its steps in stage 1, a thirty-fifth in stage 2, and three times its rate
in stage 2 and in npairs' stage 1 ([claim by claim](docs/results/paper-claims.md), [how to repeat it](docs/evaluation.md)); all at k = 1 and on the
test images, where nothing else is said; the classifier and λ = 0 are of one seed:
"""  # noqa: E501
METHOD_LOSS = """\
- {loss}, d = {buckets}, {seeds} ([all rows](docs/results/cifar100-{loss}-method.md)). Pr@1 at SUF: FlowHash {flowhash}, searching everything
  {exhaustive}, k-means of as many buckets on the table {vq}, as many of its lists as come nearest to FlowHash's scan {ivf}, a classifier that is
  fine-tuned from the same base in as many steps {classifier}, FlowHash with λ = 0 {flowhash_free}; the
  paper's FlowHash {paper}. FlowHash's Pr@1 less that of searching everything is {less}.
  Of k = {least} to {most}: that FlowHash is more precise than searching everything (Pr@1, 4 and 16, train and test) is shown at
  {precise}, a SUF of at least the paper's at {fast}, that the flow adds to SUF at {flow}."""  # noqa: E501


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


def method(read: Mapping[str, Sequence[Row]]) -> str:
    """The README's words on the paper's own method; of several seeds the mean."""
    return METHOD + "\n" + "\n".join(_method(loss, rows) for loss, rows in read.items())


def _method(loss: str, rows: Sequence[Row]) -> str:
    groups = group_seeds(rows)
    found = {
        name: _precision_at(groups[name, "test", None if name == "exhaustive" else 1])
        for name in ("flowhash", "exhaustive", "vq", "ivf", "classifier", "flowhash-free")
    }
    paper = group_seeds(paper_rows("cifar100", loss))
    ks, speeds = counts(groups), paper_speeds(loss)
    return METHOD_LOSS.format(
        loss=loss, buckets=LOSSES[loss], seeds=seeds_words(rows),
        **{name.replace("-", "_"): words for name, words in found.items()},
        paper=_precision_at(paper["flowhash", "test", 1]),
        less=_less_exhaustive(rows), least=ks[0], most=ks[-1],
        precise=_where({k: precision_claim(loss, groups, k).verdict for k in ks}),
        fast=_where({k: speed_claim(loss, groups, k, speeds).verdict for k in ks}),
        flow=_where({k: flow_claim(loss, groups, k).verdict for k in ks}),
    )  # fmt: skip


def _precision_at(rows: Sequence[Row]) -> str:
    return f"{mean(rows, 'pr1'):.1f} at {mean(rows, 'suf'):.1f}"


def _where(verdicts: Mapping[int, str]) -> str:
    """At which k a claim is shown, and at which the opposite is."""
    shown = [str(k) for k, verdict in verdicts.items() if verdict == SHOWN]
    against = [str(k) for k, verdict in verdicts.items() if verdict == CONTRADICTED]
    words = f"k = {', '.join(shown)} only"
    if not shown or len(shown) == len(verdicts):
        words = "every k" if shown else "no k"
    return words + (f" (contradicted at k = {', '.join(against)})" if against else "")


def method_exhaustive(read: Mapping[str, Sequence[Row]]) -> str:
    """By the paper's method, within a sentence: FlowHash at k = 1 less exhaustive search."""
    return "; ".join(
        f"{_less_exhaustive(rows)} ({loss}, {seeds_words(rows)})" for loss, rows in read.items()
    )


def _less_exhaustive(rows: Sequence[Row]) -> str:
    groups = group_seeds(rows)
    found = [
        difference(groups["flowhash", table, 1], groups["exhaustive", table, None], "pr1")[1]
        for table in TABLES
    ]
    return " and ".join(f"{words} on {table}" for words, table in zip(found, TABLES, strict=True))


def method_classifier(read: Mapping[str, Sequence[Row]]) -> str:
    """By the paper's method, within a sentence: the classifier less FlowHash at k = 1, on test."""
    words = []
    for loss, rows in read.items():
        groups = group_seeds(rows)
        ours, theirs = groups["flowhash", "test", 1], groups["classifier", "test", 1]
        found = []
        for field in ("pr1", "suf"):
            lead = lead_over(ours, "classifier", field)
            ahead = signed(mean(theirs, field) - mean(ours, field))
            found.append(ahead if lead is None else f"{ahead} ({between(-lead[1], -lead[0])})")
        words.append("{} in Pr@1 and {} in SUF".format(*found) + f" ({loss}, {seeds_words(rows)})")
    return "; ".join(words)


def method_speed_up(read: Mapping[str, Sequence[Row]]) -> str:
    """The SUF of the paper's method with triplet, k = 2, on test."""
    return f"{mean(group_seeds(read['triplet'])['flowhash', 'test', 2], 'suf'):.1f}"


def write(root: Path) -> None:
    """Put all of it into the pages of a clone."""
    read = {
        loss: read_rows(RESULTS / f"cifar100-{loss}-refined-classifier.json") for loss in LOSSES
    }
    readme, index, how = root / "README.md", root / "docs/index.md", root / "docs/how-it-works.md"
    put(readme, "results", results(read))
    starts = speed_ups(read["triplet"], LOSSES["triplet"])
    if starts is None:
        print("no start with zero steps among the rows: docs/how-it-works.md keeps those it has")
    else:
        put(how, "start", starts)
    of_method = measured()
    put(readme, "method", method(of_method))
    put(readme, "method exhaustive", method_exhaustive(of_method), inline=True)
    for page in (readme, index, how):
        put(page, "method classifier", method_classifier(of_method), inline=True)
    put(how, "method SUF", method_speed_up(of_method), inline=True)


if __name__ == "__main__":
    write(ROOT)
