"""Which items of a table an interrupted run had stored, though its journal does not say so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data import NAME, Collection
from flowhash.engines import RemoteEngine
from flowhash.table import HashTable

if TYPE_CHECKING:
    from flowhash.encoder import Encoded, Encoder

LOOKED_UP = 1000  # items whose codes are asked for at once
# Of the largest number in a batch: float16 rounds, and another device adds in another order.
CLOSE = 1e-3

Ranges = list[list[int]]


def joined(ranges: Ranges, ids: NDArray[Any]) -> Ranges:
    """Ranges of ids, first and last of each, with more ids; what follows each other is one."""
    found = [list(one) for one in ranges]
    for run in np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1):
        if not len(run):
            continue
        first, last = int(run[0]), int(run[-1])
        if found and found[-1][1] + 1 == first:
            found[-1][1] = last
        else:
            found.append([first, last])
    return found


class Doubt:
    """The items of a table that may be the next ones of a collection.

    A name is not enough: two files of one name have rows of one name. An item is the collection's
    if it has the name, the code and the embedding of the next one, and if no other collection's
    journal knows it as its own.

    Args:
        table: where they are.
        encoder: made them.
        collection: was being added.
        batch: how many at a time, so that they are encoded as they were.
        device: to encode on.
    """

    def __init__(
        self, table: HashTable | RemoteEngine, encoder: Encoder, collection: Collection,
        batch: int, device: str,
    ) -> None:  # fmt: skip
        self._table, self._encoder, self._collection = table, encoder, collection
        self._batch, self._device = batch, device
        self._begin = 0
        self._part: Encoded | None = None
        self._codes: list[list[int]] = []

    def stored(self, done: int, since: int, others: Iterable[Any]) -> list[int]:
        """The ids of the items from number ``done`` on that are there, in order.

        Args:
            done: items that are known to be there.
            since: none of the wanted ones has a lower id.
            others: ranges of ids that are known to be of other collections.
        """
        found: list[int] = []
        for item, code in self._candidates(since, others):
            if done + len(found) == len(self._collection):
                break
            if self._is(item, code, done + len(found)):
                found.append(item)
        return found

    def _candidates(self, since: int, others: Iterable[Any]) -> Iterator[tuple[int, list[int]]]:
        """Ids that are there, with their codes, ascending."""
        end = self._table.next_id
        if end - since > len(self._table):  # ids leave gaps, of any width
            parts = [part.ids for part in self._table.batches(payloads=False)]
            ids = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
            ids = ids[ids >= since]
        else:
            ids = np.arange(since, end)
        for first, last in others:
            ids = ids[(ids < first) | (ids > last)]
        for start in range(0, len(ids), LOOKED_UP):
            some = ids[start : start + LOOKED_UP].tolist()
            for item, code in zip(some, self._table.codes_of(some), strict=True):
                if code is not None:
                    yield item, code

    def _is(self, item: int, code: list[int], place: int) -> bool:
        """Whether an item is the one at a place of the collection."""
        part = self._encoded(place)
        row = place - self._begin
        if code != self._codes[row]:
            return False
        try:
            there = self._table[item]
        except KeyError:  # deleted just now
            return False
        if (there.payload or {}).get(NAME) != self._collection.names[place]:
            return False
        apart = np.abs(there.embedding - part.embeddings[row]).max()
        return bool(apart <= CLOSE * np.abs(part.embeddings).max())

    def _encoded(self, place: int) -> Encoded:
        """The batch that a place is in."""
        if self._part is None or not self._begin <= place < self._begin + len(self._part):
            places = np.arange(place, min(place + self._batch, len(self._collection)))
            self._part = self._encoder.encode(self._collection.take(places), device=self._device)
            self._codes = np.sort(self._part.codes, axis=1).tolist()
            self._begin = place
        return self._part
