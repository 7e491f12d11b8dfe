"""Items for people to look at: not more than fit into memory, and around what is damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flowhash.engines import BrowsedEngine
from flowhash.errors import DamagedFileError
from flowhash.serve.problems import ProblemError
from flowhash.table import HashTable
from flowhash.table.browse import state_of

SINGLY = 200  # items that are drawn one by one at the most, where some are damaged

Drawn = TypeVar("Drawn")


def around_damage(
    draw: Callable[[int, int], tuple[int, list[Drawn]]], count: int, seed: int
) -> tuple[int, list[Drawn]]:
    """What ``draw(count, seed)`` gives; where damage stops it, what can be drawn one by one.

    Args:
        draw: gives how many items there are, and some of them.
        count: how many.
        seed: of the draw.

    Raises:
        DamagedFileError: all that was drawn is damaged.
    """
    try:
        return draw(count, seed)
    except DamagedFileError:
        total, found = 0, list[Drawn]()
        for turn in range(min(count, SINGLY)):
            try:
                total, drawn = draw(1, seed + turn)
            except DamagedFileError:
                continue
            found += drawn
        if not found:
            raise
        return total, found


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
