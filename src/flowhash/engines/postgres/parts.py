"""Parts of a batch of queries on their way to the server and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import Cursor

from flowhash.engines.exact import SPARE
from flowhash.engines.given import Asked
from flowhash.engines.postgres.connecting import Vector
from flowhash.table import Hits

Wish = tuple[int, int, int | None]  # the list of a query in a bucket, of this length or all of it


@dataclass(frozen=True)
class Listed:
    """The nearest rows of one bucket for one query, as the server ranks them.

    Attributes:
        query: its number.
        bucket: the bucket.
        limit: rows asked for; None for all.
        rows: id, embedding as bytes, distance, and, where asked for, payload.
    """

    query: int
    bucket: int
    limit: int | None
    rows: list[tuple[Any, ...]]

    @property
    def cut(self) -> bool:
        """Whether the bucket may hold more."""
        return self.limit is not None and len(self.rows) == self.limit


class Part:
    """Some queries of a batch on their way, with what has come for them so far."""

    def __init__(
        self, asked: Asked, useful: Sequence[Sequence[int]], scanned: NDArray[np.int64]
    ) -> None:
        self.asked = asked
        self.scanned = scanned
        self.vectors = [Vector(query) for query in asked.queries]
        self.lengths = np.linalg.norm(asked.queries.astype(np.float64), axis=1)
        self.lists: Cursor[tuple[Any, ...]] | None = None  # one result for each wish
        self.found: dict[tuple[int, int], Listed] = {}
        self.hits: Hits | None = None
        self.wanted: list[Wish] = [
            (query, bucket, asked.top + SPARE)
            for query, line in enumerate(useful)
            for bucket in line
        ]


def some_of(asked: Asked, part: slice) -> Asked:
    """Some of the queries."""
    return Asked(asked.order[part], asked.queries[part], asked.top, asked.probe, asked.at_least)


def joined(pieces: Sequence[Hits]) -> Hits:
    """The answers of parts, in their order."""
    if len(pieces) == 1:
        return pieces[0]
    texts = None
    if pieces[0].payloads is not None:
        texts = [line for piece in pieces for line in piece.payloads or ()]
    return Hits(
        np.concatenate([piece.ids for piece in pieces]),
        np.concatenate([piece.distances for piece in pieces]),
        np.concatenate([piece.counts for piece in pieces]),
        np.concatenate([piece.scanned for piece in pieces]),
        texts,
    )
