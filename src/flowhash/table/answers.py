"""Answers in the users' terms: from places to ids and payloads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.table.candidates import split_place
from flowhash.table.ids import INT64
from flowhash.table.state import State


def no_ids(kind: str) -> NDArray[Any]:
    """No ids, of the right kind, so that concatenating parts has something to start from."""
    return np.empty(0, np.int64 if kind == INT64 else object)


def names_at(state: State, places: NDArray[np.int64]) -> NDArray[Any]:
    """The strings at places [q, top], None where there is no hit."""
    names = np.full(places.shape, None, object)
    for index, place in np.ndenumerate(places):
        if place >= 0:
            part, row = split_place(int(place))
            names[index] = state.parts[part].segment.id_at(row)
    return names


def payloads_at(state: State, places: NDArray[np.int64]) -> list[list[dict[str, Any] | None]]:
    """The payloads at places, a list for each query, as long as it has hits."""
    found = []
    for line in places.tolist():
        hits = [split_place(place) for place in line if place >= 0]
        found.append([state.parts[part].segment.payload_at(row) for part, row in hits])
    return found
