"""Items by their place, counted through all segments in the order in which they are stored."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flowhash.table.hits import Stored
from flowhash.table.table import HashTable


def stored_between(table: HashTable, first: int, last: int) -> Iterator[Stored]:
    """The items at places ``first`` to ``last``, a piece for each segment; without payloads.

    Inside a segment items lie in the order of their codes, so that neighbours share buckets.
    """
    for part in table._open_state().parts:
        low, high = max(0, first), min(part.live, last)
        if low < high:
            rows = part.live_rows()[low:high] if len(part.alive) else np.arange(low, high)
            segment, start = part.segment, int(rows[0])
            vectors = segment.sound_embeddings(start, int(rows[-1]) + 1)[rows - start]
            yield Stored(segment.ids_at(rows), segment.codes_at(rows), vectors, [None] * len(rows))
        first, last = first - part.live, last - part.live
