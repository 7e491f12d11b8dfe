"""A state of a table: which segments it has and which of their rows are alive.

States never change. A search takes the state of the moment it starts and sees nothing else; an
``add`` makes a new state and puts it in the old one's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowhash.table.ids import Ids
from flowhash.table.manifest import SegmentFile
from flowhash.table.segment import NO_ROWS, Segment


@dataclass(frozen=True, eq=False)
class Part:
    """A segment and its live rows.

    Attributes:
        segment: the rows.
        alive: 1 for live rows [n] uint8; empty if all are.
        live: how many.
        file: its entry in the manifest; None in memory.
    """

    segment: Segment
    alive: NDArray[np.uint8]
    live: int
    file: SegmentFile | None = None

    def without(self, rows: NDArray[np.int64]) -> Part:
        """This part with more rows deleted; each of ``rows`` is alive and named once."""
        alive = self.alive.copy() if len(self.alive) else np.ones(self.segment.rows, np.uint8)
        alive[rows] = 0
        return Part(self.segment, alive, self.live - len(rows), self.file)

    def live_rows(self) -> NDArray[np.int64]:
        """The rows that are alive, ascending."""
        return np.flatnonzero(self.alive) if len(self.alive) else np.arange(self.segment.rows)


def new_part(segment: Segment, file: SegmentFile | None = None) -> Part:
    """A part whose rows are all alive."""
    return Part(segment, NO_ROWS, segment.rows, file)


@dataclass(frozen=True, eq=False)
class State:
    """Parts, and the next id to assign."""

    parts: tuple[Part, ...] = ()
    next_id: int = 0

    @cached_property
    def live(self) -> int:
        """How many items there are."""
        return sum(part.live for part in self.parts)

    @cached_property
    def largest(self) -> float:
        """The largest |x| of all rows."""
        return max((part.segment.largest for part in self.parts), default=0.0)

    @cached_property
    def residual(self) -> float:
        """The largest length of what upper halves leave out of a row."""
        return max((part.segment.residual for part in self.parts), default=0.0)

    def locate(self, ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The part and row of each id; both -1 where there is none."""
        parts = np.full(len(ids), -1, np.int64)
        rows = np.full(len(ids), -1, np.int64)
        for number, part in enumerate(self.parts):
            found = part.segment.find(ids, part.alive)
            here = found >= 0
            parts[here] = number
            rows[here] = found[here]
        return parts, rows

    def without(self, parts: NDArray[np.int64], rows: NDArray[np.int64]) -> State:
        """The state after deleting located rows; places of -1 are left out."""
        changed = list(self.parts)
        for number in np.unique(parts[parts >= 0]).tolist():
            changed[number] = changed[number].without(np.unique(rows[parts == number]))
        return State(tuple(part for part in changed if part.live), self.next_id)

    def with_part(self, part: Part, next_id: int) -> State:
        """The state with one more part."""
        return State((*self.parts, part), next_id)

    def merged(self, old: Sequence[Part], new: Part | None) -> State:
        """The state with some parts replaced by one that holds their live rows."""
        kept = tuple(part for part in self.parts if not any(part is other for other in old))
        return State(kept if new is None else (*kept, new), self.next_id)
