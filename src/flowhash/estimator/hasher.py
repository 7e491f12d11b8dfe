"""FlowHasher: a scikit-learn estimator over learning, encoder and table."""

from __future__ import annotations

from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
    clone,
)
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from flowhash.errors import InputError
from flowhash.estimator import files
from flowhash.estimator.index import METRICS, ROWS, add_items, check_unchanged, new_table
from flowhash.estimator.inputs import read_classes, read_items, read_labels
from flowhash.estimator.learning import Plan, learn_encoder, without_centre
from flowhash.estimator.searching import SearchMixin
from flowhash.learn.losses import LOSSES
from flowhash.table.settings import MOST_BUCKETS


class FlowHasher(SearchMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learns buckets from embeddings and labels, and finds neighbours through them.

    It stands where ``sklearn.neighbors.NearestNeighbors`` stands: ``fit`` learns which k of d
    buckets an item belongs to and puts the items into a hash table in memory; ``kneighbors`` opens
    a query's own buckets only and ranks what is in them by exact distance. ``transform`` gives the
    buckets as a sparse matrix.

    Args:
        buckets: d, how many buckets there are. With at least as many as classes, each class starts
            with a bucket of its own.
        active: k, how many of them an item is in and a query opens.
        n_neighbors: how many neighbours ``kneighbors`` and ``score`` look for by default.
        penalty: λ, what it costs two classes of a batch to share a bucket.
        loss: "triplet", "npairs", "contrastive", "lifted", "multi-similarity" or "circle".
        hidden: sizes of dense layers before the last one; none by default, which is quick and
            starts at a linear discriminant of the classes.
        steps: of training; "auto" sees each item about eight times, in 200 to 1,500 steps.
        rank: "input" ranks by distance of X itself; "codes" by distance of the hash network's
            outputs, which are learned and have ``buckets`` numbers.
        metric: "euclidean" or "l2"; "cosine" (one minus it), which brings rows of X to length one
            first; "inner", "ip" or "dot" (minus the inner product, so that the nearest have the
            largest).
        output: what ``transform`` returns: "codes"; or a neighbour graph as
            ``KNeighborsTransformer`` makes it, "distance" or "connectivity".
        device: "auto", "cpu" or "cuda".
        random_state: a seed, a ``RandomState`` or None, as everywhere in scikit-learn.
        verbose: 1 shows a progress bar.

    Attributes:
        encoder_: the learned ``flowhash.Encoder``; with ``metric="cosine"`` it expects rows of
            length one.
        table_: the ``flowhash.HashTable`` with the items; ids are their positions, so items come
            in by ``add`` only and none are deleted.
        classes_: the labels that were learned, sorted.
        n_samples_fit_: items in the table.
        effective_metric_: the ``metric`` it was fitted with: "euclidean", "cosine" or "inner".
        n_features_in_: numbers in an item.
        feature_names_in_: names of the columns, where X was a data frame.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> hasher = FlowHasher(buckets=32, random_state=0).fit(X[:1000], y[:1000])
        >>> hasher.transform(X[1000:]).shape
        (797, 32)
        >>> hasher.score(X[1000:], y[1000:]) > 0.9
        True
    """

    _parameter_constraints: dict[str, list[Any]] = {  # noqa: RUF012  (scikit-learn's name and form)
        "buckets": [Interval(Integral, 1, MOST_BUCKETS, closed="both")],
        "active": [Interval(Integral, 1, None, closed="left")],
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "penalty": [Interval(Real, 0, None, closed="left")],
        "loss": [StrOptions(set(LOSSES) - {"library"})],
        "hidden": ["array-like"],
        "steps": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "rank": [StrOptions({"input", "codes"})],
        "metric": [StrOptions(set(METRICS))],
        "output": [StrOptions({"codes", "distance", "connectivity"})],
        "device": [str],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        buckets: int = 256,
        active: int = 1,
        *,
        n_neighbors: int = 5,
        penalty: float = 0.5,
        loss: str = "triplet",
        hidden: tuple[int, ...] = (),
        steps: int | str = "auto",
        rank: str = "input",
        metric: str = "euclidean",
        output: str = "codes",
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.buckets = buckets
        self.active = active
        self.n_neighbors = n_neighbors
        self.penalty = penalty
        self.loss = loss
        self.hidden = hidden
        self.steps = steps
        self.rank = rank
        self.metric = metric
        self.output = output
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any = None) -> FlowHasher:  # noqa: N803
        """Learn the buckets, and put the items into a table.

        Args:
            X: embeddings [n, features]: an array, a torch tensor, a data frame, a list of lists,
                or a column with an array in each row.
            y: a label for each, of any type. Items whose label is None or NaN are not learned
                from, but found.

        Returns:
            self.

        Raises:
            ValueError: X or y cannot be used, or fewer than two classes.
        """
        # Nothing is kept before all is done: a fit that fails leaves what was fitted before.
        reader = clone(self)
        metric = METRICS[self.metric]
        items = read_items(reader, X, reset=True, unit=metric == "cosine")
        classes, numbers = read_classes(self, y, len(items))
        names = tuple(str(name) for name in classes)
        known = numbers >= 0
        learned = items if known.all() else items[known]
        encoder = learn_encoder(learned, numbers[known], names, Plan.of(self))
        if metric == "inner":
            encoder = without_centre(encoder)
        table = new_table(encoder, metric)
        add_items(encoder, table, items, self.device)
        self.__dict__.pop("feature_names_in_", None)
        seen = ("n_features_in_", "feature_names_in_")
        self.__dict__ |= {name: value for name, value in vars(reader).items() if name in seen}
        self.encoder_, self.table_, self.n_samples_fit_ = encoder, table, len(items)
        self.classes_, self._numbers, self.effective_metric_ = classes, numbers, metric
        return self

    def add(self, X: Any, y: Any = None) -> NDArray[np.int64]:  # noqa: N803
        """Put more items into the table; the buckets stay as they were learned.

        Args:
            X: embeddings [n, features].
            y: their labels, of those in ``classes_``; None where they are not known, of all or of
                some.

        Returns:
            Their positions, by which ``kneighbors`` names them.

        Raises:
            ValueError: X cannot be used, or a label was not learned.
        """
        check_is_fitted(self)
        check_unchanged(self.table_, self.n_samples_fit_)
        items = self._items(X)
        numbers = np.full(len(items), -1, np.int64)
        if y is not None:
            labels, known = read_labels(self, y, len(items))
            numbers[known] = self._known(labels)
            if (unseen := known & (numbers < 0)).any():
                raise InputError(
                    f"item {int(np.argmax(unseen))} has a label that fit did not see; give None "
                    "for it, or leave y out, to search such items all the same, or fit again with "
                    "them"
                )
        added = add_items(self.encoder_, self.table_, items, self.device)
        self._numbers = np.concatenate((self._numbers, numbers))
        self.n_samples_fit_ = len(self.table_)
        return added

    @property
    def partial_fit(self) -> NoReturn:
        """There is none: it would have to learn anew. ``add`` puts more items into the table."""
        raise AttributeError(
            "FlowHasher has no partial_fit, because the buckets are learned from all items at "
            "once: fit a first part that has every class, then put in the others with add(X, y); "
            "or fit again with all of them"
        )

    def transform(self, X: Any) -> csr_matrix:  # noqa: N803
        """The codes of items; or their neighbours, as ``output`` says.

        Args:
            X: embeddings [n, features].

        Returns:
            float32 [n, buckets] with k ones a row; or a graph [n, n_samples_fit_] with
            ``n_neighbors`` neighbours, one more with ``output="distance"``, as
            ``KNeighborsTransformer`` has it.
        """
        check_is_fitted(self)
        if self.output != "codes":
            more = 1 if self.output == "distance" else 0
            return self.kneighbors_graph(X, self.n_neighbors + more, self.output)
        codes = self.encoder_.encode(self._items(X), ROWS, self.device).codes  # ascending
        ends = np.arange(len(codes) + 1) * self.encoder_.active
        ones = np.ones(codes.size, np.float32)
        return csr_matrix((ones, codes.ravel(), ends), (len(codes), self.encoder_.buckets))

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator to a folder, in place of one that is there; see ``load``.

        JSON, safetensors and a table; no pickle. Killed at any moment, it leaves the old one or
        the new one. A ``random_state`` that is not a number is not stored.
        """
        check_is_fitted(self)
        files.save(self, Path(folder).expanduser())

    @classmethod
    def load(cls, folder: str | Path) -> FlowHasher:
        """Read what ``save`` wrote; it answers as the one that was saved.

        Raises:
            InputError: there is none, or it is of a newer FlowHash.
            DamagedFileError: a file is damaged; the message names it.
        """
        return files.load(cls, Path(folder).expanduser())

    @property
    def _n_features_out(self) -> int:
        """For ``get_feature_names_out``."""
        return int(self.encoder_.buckets if self.output == "codes" else self.n_samples_fit_)

    def __getstate__(self) -> dict[str, Any]:
        return files.portable(self, super().__getstate__())

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(files.restored(state))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "table_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _more_tags(self) -> dict[str, Any]:
        """The same for scikit-learn before 1.6."""
        return {"requires_y": True, "preserves_dtype": []}
