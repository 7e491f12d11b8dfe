"""Neighbours through the table: what ``NearestNeighbors`` of scikit-learn can be asked."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.utils.validation import check_is_fitted

from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.estimator.index import ROWS, check_unchanged, encode_stored, search
from flowhash.estimator.inputs import check_kind, read_items, read_labels
from flowhash.estimator.neighbours import commonest, graph, whole_neighbours
from flowhash.table import HashTable, Hits


class SearchMixin:
    """The part of ``FlowHasher`` that searches; it is fitted elsewhere."""

    n_neighbors: int
    metric: str
    device: str
    encoder_: Encoder
    table_: HashTable
    classes_: NDArray[Any]
    n_samples_fit_: int
    effective_metric_: str  # what it was fitted with; ``metric`` may have been set since
    _numbers: NDArray[np.int64]  # of each item's class, -1 where it is not known

    def search(
        self,
        X: Any = None,  # noqa: N803
        n_neighbors: int | None = None,
        *,
        probe: int | None = None,
        at_least: int | None = None,
    ) -> Hits:
        """The nearest items in the buckets that each query opens, and how many were compared.

        Args:
            X: queries [n, features]; None asks for the neighbours of all items, without itself.
            n_neighbors: how many at the most.
            probe: how many buckets to open; k by default.
            at_least: open further buckets, in order, until so many items are found.

        Returns:
            ``Hits`` with ids, distances (as ``kneighbors`` has them), counts and ``scanned``.
        """
        return self._search(X, n_neighbors, probe=probe, at_least=at_least)

    def _search(self, X: Any, n_neighbors: int | None, **options: Any) -> Hits:  # noqa: N803
        """:meth:`search`, with any option of the table's."""
        check_is_fitted(self)
        check_unchanged(self.table_, self.n_samples_fit_)
        if X is None:
            queries = encode_stored(self.encoder_, self.table_, self.device)
        else:
            queries = self.encoder_.encode(self._items(X), ROWS, self.device)
        top = whole_neighbours(
            self.n_neighbors if n_neighbors is None else n_neighbors, self.n_samples_fit_, X is None
        )
        found = search(self.table_, queries, top, X is None, **options)
        found.distances = self._distances(found.distances)
        return found

    def kneighbors(
        self,
        X: Any = None,  # noqa: N803
        n_neighbors: int | None = None,
        return_distance: bool = True,
    ) -> Any:
        """The nearest items, as ``NearestNeighbors.kneighbors`` gives them.

        A query opens its k buckets, and further ones while they hold fewer than ``n_neighbors``
        items; so there are always enough.

        Args:
            X: queries [n, features]; None asks for the neighbours of all items, without itself.
            n_neighbors: how many; the parameter by default.
            return_distance: whether distances are returned too.

        Returns:
            Distances float64 [n, n_neighbors], nearest first, and positions of the items int64
            [n, n_neighbors]; or the positions only.
        """
        wanted = self.n_neighbors if n_neighbors is None else n_neighbors
        found = self.search(X, wanted, at_least=wanted)
        return (found.distances, found.ids) if return_distance else found.ids

    def kneighbors_graph(
        self,
        X: Any = None,  # noqa: N803
        n_neighbors: int | None = None,
        mode: str = "connectivity",
    ) -> csr_matrix:
        """The neighbours as a sparse matrix [n, n_samples_fit_].

        Args:
            X: queries; None asks for the neighbours of all items, without itself.
            n_neighbors: how many; the parameter by default.
            mode: "connectivity" has ones, "distance" the distances.
        """
        if mode not in ("connectivity", "distance"):
            raise InputError(f'mode is {mode!r}; expected "connectivity" or "distance"')
        distances, ids = self.kneighbors(X, n_neighbors)
        return graph(ids, distances if mode == "distance" else None, self.n_samples_fit_)

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The commonest label of each query's neighbours, as ``KNeighborsClassifier`` has it.

        Of labels that are equally common it is the first in ``classes_``. Items without a label
        are passed over.

        Args:
            X: queries [n, features]; None asks for all items, whose own labels do not count.

        Returns:
            Labels [n], of ``classes_``.
        """
        check_is_fitted(self)
        labelled = self._numbers >= 0
        asked = whole_neighbours(self.n_neighbors, self.n_samples_fit_, itself=False)
        wanted = min(asked, int(labelled.sum()))
        where = None if labelled.all() else labelled
        found = self._search(X, wanted, at_least=wanted, where=where)
        # An item does not vote for itself, so that there may be a vote too few.
        votes = np.where(found.ids >= 0, self._numbers[found.ids], -1)
        return self.classes_[commonest(votes)]

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """Pr@n_neighbors: the share of the queries' neighbours that have their label.

        Neighbours without a label count neither as right nor as wrong.

        Args:
            X: queries that are not in the table [n, features].
            y: their labels; one that fit did not see is never found. Queries whose label is None
                or NaN are left out.

        Raises:
            ValueError: X or y cannot be used; y is text and fit saw numbers, or the other way.
        """
        check_is_fitted(self)
        ids = self.kneighbors(X, return_distance=False)
        labels, known = read_labels(self, y, len(ids))
        if not len(labels):
            raise InputError(
                "y has no label that is known; expected those of some queries at least"
            )
        ids, wanted = ids[known], self._known(labels)
        if unseen := int((wanted < 0).sum()):
            warnings.warn(
                f"{unseen} of {len(wanted)} queries have a class that fit did not see, and count "
                "as wrong; give stratified, shuffled folds to a cross-validation",
                stacklevel=2,
            )
        found = self._numbers[ids]
        right = (found == wanted[:, None]) & (wanted >= 0)[:, None]
        if not (found >= 0).any():
            raise InputError(
                f"none of the {found.size} neighbours of these queries has a label; give more "
                "labels to fit or add, or ask for more neighbours"
            )
        return float(right.sum() / (found >= 0).sum())

    def _items(self, values: Any) -> NDArray[np.float32]:
        return read_items(self, values, reset=False, unit=self.effective_metric_ == "cosine")

    def _known(self, labels: NDArray[Any]) -> NDArray[np.int64]:
        """The number of each label's class, -1 where it was not learned."""
        if len(labels):
            check_kind(labels, self.classes_)
        places = np.searchsorted(self.classes_, labels)
        places = np.minimum(places, len(self.classes_) - 1)
        return np.where(self.classes_[places] == labels, places, -1)

    def _distances(self, squares: NDArray[np.float32]) -> NDArray[Any]:
        """Distances in units of X from squared ones of embeddings, or from negative products."""
        wide = squares.astype(np.float64)
        if self.encoder_.base is None:  # it ranks by the hash network's outputs
            return np.sqrt(wide)
        wide *= float(self.encoder_.preprocessing.std) ** 2
        if self.effective_metric_ == "inner":
            return wide
        return wide / 2 if self.effective_metric_ == "cosine" else np.sqrt(wide)
