"""Neighbours in the forms that scikit-learn knows."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from flowhash.errors import InputError


def whole_neighbours(wanted: Any, items: int, itself: bool) -> int:
    """How many neighbours, checked: from 1 to the number of items, without itself."""
    if isinstance(wanted, bool) or not isinstance(wanted, Integral):
        raise TypeError(f"n_neighbors is {wanted!r}; expected a whole number, one or more")
    count, most = int(wanted), items - 1 if itself else items
    if not 1 <= count <= most:
        # In scikit-learn's words, which programs may look for.
        raise InputError(
            f"Expected n_neighbors {'<' if itself else '<='} n_samples_fit and above 0, but "
            f"n_neighbors = {wanted}, n_samples_fit = {items}; ask for 1 to {most}"
        )
    return count


def graph(ids: NDArray[np.int64], distances: NDArray[np.float64] | None, items: int) -> csr_matrix:
    """A matrix [n, items] with a value for each neighbour, nearest first in each row."""
    count, each = ids.shape
    values = np.ones(ids.size) if distances is None else distances.ravel()
    ends = np.arange(0, count * each + 1, each)
    return csr_matrix((values, ids.ravel(), ends), (count, items))


def commonest(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number that each row [n, m] has most often; of several, the smallest [n].

    Numbers below zero are none, and passed over.
    """
    ordered = np.sort(numbers, axis=1)
    places = np.arange(ordered.shape[1])
    begins = np.ones(ordered.shape, np.bool_)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    lengths = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    lengths[ordered < 0] = -1
    longest = lengths.argmax(axis=1)  # the end of the first of the longest runs
    return np.take_along_axis(ordered, longest[:, None], axis=1)[:, 0]
