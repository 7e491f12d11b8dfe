"""What the numbers say, in one sentence a searched table."""

from __future__ import annotations

from collections.abc import Sequence

from flowhash.evaluate.grid import SPACE, between
from flowhash.evaluate.report.merged import Entry, active_counts

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
        words += f", exhaustive search has {_per_cent(exhaustive)}{_between(best)}"
    return words + _rivals(best, [entry for entry in entries if entry.k == k]) + "."


def _between(ours: Entry) -> str:
    """The interval of the difference to exhaustive search, the widest of all seeds."""
    ends = [(row.pr1_low, row.pr1_high) for row in ours.rows]
    low = min((low for low, _ in ends if low is not None), default=None)
    high = max((high for _, high in ends if high is not None), default=None)
    if low is None or high is None:
        return ""
    return f" (a difference of {between(low, high)} points)"


def _rivals(ours: Entry, same: Sequence[Entry]) -> str:
    """What other methods of the same k do better or as well as can be told, or that none does."""
    others = [entry for entry in same if entry is not ours]
    if not others:
        return ""
    ahead = [entry for entry in others if _precision(entry) > _precision(ours)]
    level = [entry for entry in others if entry not in ahead and _level(ours, entry)]
    if not ahead and not level:
        return "; no other method has a higher Pr@1 at this k"
    words = _named("; a higher Pr@1 at this k", ahead)
    return words + _named("; level, as far as these queries can tell", level)


def _named(words: str, entries: Sequence[Entry]) -> str:
    ordered = sorted(entries, key=_precision, reverse=True)
    named = ", ".join(
        f"{entry.label} ({_per_cent(entry)} at {_speed_up(entry):,.1f}×)" for entry in ordered
    )
    return f"{words}: {named}" if named else ""


def _level(ours: Entry, other: Entry) -> bool:
    """Whether the interval of the difference in Pr@1 reaches zero in any seed."""
    leads = [row.leads.get(other.method) for row in ours.rows]
    return any(lead is not None and lead["pr1"][0] <= 0 for lead in leads)


def _per_cent(entry: Entry) -> str:
    return f"{_precision(entry):.1f}{SPACE}%"


def _precision(entry: Entry) -> float:
    return entry.mean(lambda row: row.pr1) or 0.0


def _speed_up(entry: Entry) -> float:
    return entry.mean(lambda row: row.suf) or 0.0
