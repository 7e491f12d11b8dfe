"""What a batch of queries asks a server for, and what comes back, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import Cursor

from flowhash.engines.exact import Candidates
from flowhash.engines.given import Asked
from flowhash.table import Hits

Wish = tuple[int, int, int | None]  # the list of a query in a bucket, of this length or all of it


@dataclass(frozen=True, eq=False)
class Measured:
    """The nearest rows of some buckets, each for one query, with exact distances.

    Attributes:
        wishes: what was asked for, one list each.
        sizes: rows of each list.
        ends: the distance of its last row, as the server has it [l]; 0 where it has none.
        candidates: all rows, without their embeddings, which are of no more use.
        distances: of the rows [m].
    """

    wishes: Sequence[Wish]
    sizes: list[int]
    ends: list[float]
    candidates: Candidates
    distances: NDArray[np.float64]

    def cut(self) -> list[tuple[Wish, float]]:
        """The lists behind whose end the bucket may hold more, and those ends."""
        return [
            (wish, end)
            for wish, size, end in zip(self.wishes, self.sizes, self.ends, strict=True)
            if size == wish[2]
        ]


@dataclass(eq=False)
class Part:
    """Some lists on their way.

    Attributes:
        wishes: what is asked for.
        results: the server's answers, one for each; None until it is asked.
        measured: what came of them; None until they are read.
    """

    wishes: Sequence[Wish]
    results: Cursor[tuple[Any, ...]] | None = None
    measured: Measured | None = None


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
        np.concatenate([piece.opened for piece in pieces]),
        texts,
    )


def all_of(pieces: Sequence[Measured]) -> tuple[Candidates, NDArray[np.float64]]:
    """The rows of all pieces, and their distances."""
    given = [piece.candidates for piece in pieces]
    payloads = None
    if given[0].payloads is not None:
        payloads = [payload for one in given for payload in one.payloads or ()]
    return (
        Candidates(
            np.concatenate([one.queries for one in given]),
            np.concatenate([one.ids for one in given]),
            given[0].embeddings,
            payloads,
        ),
        np.concatenate([piece.distances for piece in pieces]),
    )
