"""What the numbers say, in one sentence a searched table."""

from __future__ import annotations

from collections.abc import Sequence

from flowhash.evaluate.report.merged import Entry, active_counts

SPACE = "\N{NO-BREAK SPACE}"  # a number does not leave its unit at the end of a line
WHERE = {
    "train": "Among training items",
    "test": "Among test items",
    "unseen": "Among classes that training had not",
}


def summarise(entries: Sequence[Entry]) -> str | None:
    """The sentence of one searched table, at the smallest k of FlowHash.

    A baseline with a higher Pr@1 is named: the summary is for those who read nothing else, and
    must not leave out the rival.
    """
    exhaustive = next((entry for entry in entries if entry.k is None), None)
    ours = [entry for entry in entries if entry.method == "flowhash"]
    counts = active_counts(ours)
    if not entries:
        return None
    where = WHERE.get(entries[0].table, f"In the {entries[0].table} table")
    if not counts:
        return None if exhaustive is None else (
            f"{where}, exhaustive search has Pr@1 {_per_cent(exhaustive)}."
        )  # fmt: skip
    k = counts[0]
    best = next(entry for entry in ours if entry.k == k)
    words = (
        f"{where}, FlowHash with k{SPACE}={SPACE}{k} scans {_speed_up(best):,.1f}× fewer items "
        f"at Pr@1 {_per_cent(best)}"
    )
    if exhaustive is not None:
        words += f", exhaustive search has {_per_cent(exhaustive)}"
    return words + _rivals(best, [entry for entry in entries if entry.k == k]) + "."


def _rivals(ours: Entry, same: Sequence[Entry]) -> str:
    """What other methods of the same k do better, or that none does."""
    others = [entry for entry in same if entry is not ours]
    if not others:
        return ""
    ahead = [entry for entry in others if _precision(entry) > _precision(ours)]
    if not ahead:
        return "; no other method has a higher Pr@1 at this k"
    ahead.sort(key=_precision, reverse=True)
    named = ", ".join(
        f"{entry.label} ({_per_cent(entry)} at {_speed_up(entry):,.1f}×)" for entry in ahead
    )
    return f"; a higher Pr@1 at this k: {named}"


def _per_cent(entry: Entry) -> str:
    return f"{_precision(entry):.1f}{SPACE}%"


def _precision(entry: Entry) -> float:
    return entry.mean(lambda row: row.pr1) or 0.0


def _speed_up(entry: Entry) -> float:
    return entry.mean(lambda row: row.suf) or 0.0
