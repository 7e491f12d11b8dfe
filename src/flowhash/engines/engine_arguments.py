"""What users give to an engine, checked by the table's own code, so that the words are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import InputError
from flowhash.table import LARGEST_ID, HashTable, allowed_rows, read_ids, state_of

WHERE = (
    "It is a list or set of ids, a boolean mask, or a dict of payload fields and what each may be, "
    'such as {"label": ["cat", "dog"]}'
)
# Ids that may be found, or payload fields and the values that each may have; None is everything.
Where = list[Any] | dict[str, list[Any]] | None


@dataclass(frozen=True, eq=False)
class EngineItems:
    """Items that passed every check of a table.

    Attributes:
        table: holds them, in memory, each id once.
        ids: as the user gave them, or counted from 0 [n].
        counted: whether the engine is to count the ids: 0 stands for its next id.
    """

    table: HashTable
    ids: NDArray[Any]
    counted: bool

    def counted_from(self, next_id: int) -> NDArray[Any]:
        """The ids [n], once it is known where counting goes on.

        Raises:
            InputError: no number is left.
        """
        if self.counted and next_id + len(self.ids) - 1 > LARGEST_ID:
            raise InputError(
                f"ids count on from the largest one, {next_id - 1}, and no number is left; give ids"
            )
        return self.ids + next_id if self.counted else self.ids


@dataclass(frozen=True, eq=False)
class EngineQueries:
    """Queries that passed every check of a table.

    Attributes:
        order: buckets in the order to open them [q, m].
        queries: [q, dim].
        top: how many to return.
        probe: how many buckets each query opens [q].
        at_least: open more until so many items are found, or None.
        where: what may be found.
    """

    order: NDArray[np.int32]
    queries: NDArray[np.float32]
    top: int
    probe: NDArray[np.int32]
    at_least: int | None
    where: Where = None


def id_values(ids: Any, kind: str) -> list[Any]:
    """Ids from what a user gave, as numbers or strings of Python."""
    found = read_ids(ids, kind)
    return [found.value(place) for place in range(len(found))]


def read_where(empty: HashTable, where: Any) -> Where:
    """What may be found, from what a user gave: ids, a mask, or a dict of payload fields.

    Raises:
        InputError: it is none of these, or of the wrong kind.
    """
    if where is None:
        return None
    if isinstance(where, Mapping):
        return _payload_values(where)
    if isinstance(where, Iterator):  # which can be read once, and is checked first
        where = list(where)
    allowed_rows(empty._settings, state_of(empty), where, WHERE)  # the table's own checks
    array = np.asarray(where) if isinstance(where, (np.ndarray, list, tuple)) else None
    if array is not None and array.dtype == bool:
        allowed: list[Any] = np.flatnonzero(array).tolist()
        return allowed
    return id_values(where, empty.id_kind)


def _payload_values(where: Mapping[Any, Any]) -> dict[str, list[Any]]:
    if not where:
        raise InputError("where is an empty dict; name a payload field, or leave it out")
    for key in where:
        if not isinstance(key, str):
            raise InputError(f"where has the key {key!r:.80}; expected the name of a payload field")
    return {
        key: list(wanted) if isinstance(wanted, (list, tuple, set, frozenset)) else [wanted]
        for key, wanted in where.items()
    }
