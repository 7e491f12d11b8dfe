"""What the table gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(eq=False, slots=True)  # not frozen: that would slow single queries
class Hits:
    """The answer to a search, one line for each query.

    Attributes:
        ids: nearest first [q, top]: int64, padded with -1, or strings (dtype object), padded with
            None. Equal distances are in the order of the ids (of their hashes, for strings).
        distances: squared Euclidean, 1 - cosine, or minus the inner product; smaller is nearer;
            padded with infinity [q, top] float32.
        counts: how many of ``top`` were found; what is behind them is padding [q] int64.
        scanned: items that were compared with the query: live, in an opened bucket, allowed by
            ``where``, each once [q] int64. SUF is the table's size divided by their mean.
        opened: buckets that were opened, the first so many of the query's order: ``probe``, or with
            ``at_least`` as many as it took [q] int32.
        payloads: if asked for, the payload (or None) of each hit, a list for each query.
    """

    ids: NDArray[Any]
    distances: NDArray[np.float32]
    counts: NDArray[np.int64]
    scanned: NDArray[np.int64]
    opened: NDArray[np.int32]
    payloads: list[list[dict[str, Any] | None]] | None = None

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True, eq=False)
class Item:
    """One stored item.

    Attributes:
        id: its id.
        code: its k buckets, ascending [k] int32.
        embedding: as stored, as float32 [dim].
        payload: what was stored with it, or None.
    """

    id: int | str
    code: NDArray[np.int32]
    embedding: NDArray[np.float32]
    payload: dict[str, Any] | None


@dataclass(frozen=True, eq=False)
class Stored:
    """Some stored items, side by side.

    Attributes:
        ids: int64, or strings (dtype object) [n].
        codes: the k buckets of each, ascending [n, k] int32.
        embeddings: as stored, as float32 [n, dim].
        payloads: of each, or None.
    """

    ids: NDArray[Any]
    codes: NDArray[np.int32]
    embeddings: NDArray[np.float32]
    payloads: list[dict[str, Any] | None]

    def __len__(self) -> int:
        return len(self.ids)
