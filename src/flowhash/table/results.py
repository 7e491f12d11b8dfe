"""``Hits``, ``Item`` and ``Stored``: what a search, a look-up and a walk through a table return."""

from __future__ import annotations

from collections.abc import Sequence
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
        recall: the share of the ``top`` nearest items that was asked for and is expected on average
            over queries like those of the calibration; None where none was asked for.
        payloads: if asked for, the payload (or None) of each hit, a list for each query.
        buckets: if asked for, the buckets of each hit, ascending, padded with -1 where it is in
            fewer than k, or where there is no hit [q, top, k] int32.
    """

    ids: NDArray[Any]
    distances: NDArray[np.float32]
    counts: NDArray[np.int64]
    scanned: NDArray[np.int64]
    opened: NDArray[np.int32]
    payloads: list[list[dict[str, Any] | None]] | None = None
    buckets: NDArray[np.int32] | None = None
    recall: float | None = None

    def __len__(self) -> int:
        return len(self.counts)

    def without(self, ids: NDArray[Any]) -> Hits:
        """One place less in each line: without the item ``ids[i]``, which asked itself, in line i.

        An item is not always the nearest to itself: others may be equal to it, and by the inner
        product longer ones are nearer. Where it is not among the hits, those before the last are
        the nearest others. It was scanned in any case, since it lies in buckets that it opens, and
        is not counted.
        """
        own = self.ids == np.asarray(ids)[:, None]
        found = own.any(axis=1)
        last = self.ids.shape[1] - 1
        dropped = np.where(found, own.argmax(axis=1), last)
        kept = np.arange(last + 1) != dropped[:, None]
        payloads = self.payloads
        if payloads is not None:
            lines = zip(payloads, dropped.tolist(), strict=True)
            payloads = [line[:place] + line[place + 1 :] for line, place in lines]
        return Hits(
            self.ids[kept].reshape(-1, last),
            self.distances[kept].reshape(-1, last),
            np.minimum(self.counts - found, last),
            self.scanned - 1,
            self.opened,
            payloads,
            None if self.buckets is None else self.buckets[kept].reshape(len(self), last, -1),
            self.recall,
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Hits]) -> Hits:
        """The answers of parts of a batch, in their order; there is at least one."""
        if len(parts) == 1:
            return parts[0]
        payloads = None
        if parts[0].payloads is not None:
            payloads = [line for part in parts for line in part.payloads or ()]
        buckets = [part.buckets for part in parts if part.buckets is not None]
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.distances for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.scanned for part in parts]),
            np.concatenate([part.opened for part in parts]),
            payloads,
            np.concatenate(buckets) if buckets else None,
            parts[0].recall,
        )


def padded_codes(codes: Sequence[Sequence[int]], active: int) -> NDArray[np.int32]:
    """Codes of 1 to k buckets as an array, -1 behind the last bucket of each [n, k]."""
    lines = [[*code, *[-1] * (active - len(code))] for code in codes]
    return np.array(lines, np.int32).reshape(len(lines), active)


@dataclass(frozen=True, eq=False)
class Item:
    """One stored item.

    Attributes:
        id: its id.
        code: its buckets, ascending [1 to k] int32.
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
        codes: the buckets of each, ascending, padded with -1 where they are fewer than k
            [n, k] int32.
        embeddings: as stored, as float32 [n, dim].
        payloads: of each, or None.
    """

    ids: NDArray[Any]
    codes: NDArray[np.int32]
    embeddings: NDArray[np.float32]
    payloads: list[dict[str, Any] | None]

    def __len__(self) -> int:
        return len(self.ids)
