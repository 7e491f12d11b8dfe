"""Items for people to look at: not more of them than fit into memory."""

from __future__ import annotations

from flowhash.engines import BrowsedEngine
from flowhash.serve.errors import ProblemError
from flowhash.table import HashTable, state_of


def readable(table: BrowsedEngine, size: int) -> int:
    """How many payloads of a table have about ``size`` bytes, by their mean; at least one."""
    if not isinstance(table, HashTable):
        return size
    segments = [part.segment for part in state_of(table).parts]
    rows = sum(segment.rows for segment in segments)
    stored = sum(len(segment.payloads.content) for segment in segments)
    return max(1, size * rows // max(1, stored))


def check_count(table: BrowsedEngine, count: int, largest: int) -> None:
    """Refuse to read more payloads at once than an answer can hold.

    Raises:
        ProblemError: 413, with how many would do.
    """
    most = readable(table, largest)
    if min(count, len(table)) > most:
        raise ProblemError(
            413,
            f"count is {count}, and the payloads of {most} items fill an answer of {largest} "
            f"bytes, the most this server sends; ask for at most {most}",
            "answer_too_large",
        )
