"""FlowHasher: a scikit-learn estimator over learning, encoder and table."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
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
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from flowhash.argument_checks import whole_number
from flowhash.encoder import Encoded, Encoder, search_encoded
from flowhash.errors import InputError
from flowhash.estimator.fit_encoder import (
    METRIC_NAMES,
    RANKS,
    learn_encoder,
    without_centre,
)
from flowhash.estimator.fit_router import (
    learn_router,
    relearn_router,
    share_learned,
    share_stored,
)
from flowhash.estimator.hasher_files import (
    ROWS,
    assemble,
    check_unchanged,
    contents,
    load_hasher,
    new_table,
    portable,
    restored,
    save_hasher,
)
from flowhash.estimator.input_arrays import check_kind, read_classes, read_items, read_labels
from flowhash.learn import (
    LOSSES,
    SECOND_NOTE,
    ItemBuckets,
    SecondRule,
    adapt_encoder,
    original_vectors,
    sample_size,
    second_codes,
)
from flowhash.networks import device_of, run_networks
from flowhash.table import MOST_BUCKETS, RECALL_TOPS, HashTable, Hits, draw_sample, read_recall

USUAL_RECALL = 0.95  # of kneighbors, without labels
FEWEST_QUERIES = 50  # that a calibration takes
ACTIVATIONS_AT_ONCE = 1 << 24  # 64 MB of queries' activations

# Which of scikit-learn's checks do not pass, and why.
EXPECTED_FAILED_CHECKS: dict[str, str] = {}


class FlowHasher(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learns buckets from embeddings, with labels or without, and finds neighbours through them.

    It stands where ``sklearn.neighbors.NearestNeighbors`` stands: ``fit`` learns which k of d
    buckets an item belongs to and puts the items into a hash table in memory; ``kneighbors`` opens
    a query's own buckets only and ranks what is in them by exact distance. ``transform`` gives the
    buckets as a sparse matrix.

    With labels the buckets follow the classes, and the nearest items of a query's class are what is
    found. Without labels they follow the neighbourhoods, and a search finds a share of the nearest
    of all items that you ask for (``recall``).

    Args:
        buckets: d, how many buckets there are; "auto" tries one a class, and more of them down to
            some 32 items each, on a fifth of the items that is held out meanwhile.
        active: k, how many of them an item is in and a query opens.
        n_neighbors: how many neighbours ``kneighbors`` and ``score`` look for by default.
        penalty: λ, what it costs two groups to share a bucket; "auto" is 5 for the loss "codes",
            whose outputs are as long as they like, and 0.5 for others.
        loss: "codes", cross-entropy towards the buckets; or, on distances over the buckets of two
            items, "triplet", "npairs", "contrastive", "lifted", "multi-similarity" or "circle",
            which do not try anything: "auto" is then twice as many buckets as classes, 32 at
            least, and no hidden layer.
        groups: what gets a code of its own: "classes"; or "auto", which cuts classes into as many
            groups as there are buckets, where there are more buckets than classes, and counts in
            every batch what groups of other batches hold.
        hidden: sizes of dense layers before the last one; () for none, which is quick and starts at
            a linear discriminant of the classes; "auto" tries none and one of 512.
        steps: of training; "auto" sees each item about eight times, in 200 to 1,500 steps, or 24
            times with hidden layers, in 800 at least.
        rank: "input" ranks by distance of X itself; "whitened" by distance after a linear map that
            makes the spread within classes even, often more precise, also for classes that come
            later; "codes" by distance of the hash network's outputs, which are learned and have
            ``buckets`` numbers.
        class_order: how much the likeliest class counts in the order in which buckets are opened,
            where classes are cut into groups; "auto" is 4. With 0 buckets are opened by themselves,
            which suits classes that come later.
        new_classes: True where items of classes will come that ``fit`` does not see. A fifth of the
            classes, instead of the items, is held out then and searched among itself, and chooses
            ``buckets``; whether X ranks as it is or whitened, if ``rank`` is "input"; and whether
            neighbours count in the loss. ``class_order`` is 0 and there is no hidden layer, unless
            you say otherwise. It takes five classes.
        copies: the share of the items that are in a second bucket at the most, so that fewer are
            scanned for a recall; kept only where that is so. Without labels "auto" tries 20 and
            40 %. With labels "auto" is none, and a number takes ``active=1`` and calibrates.
        recall: the share of the nearest of all items that ``kneighbors`` finds on average, if it is
            not told otherwise; "auto" is 0.95 without labels. With labels it is not looked at
            unless given, and wants :meth:`calibrate` first.
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
        trials_: what was tried to choose ``buckets`` and ``hidden``, the chosen ones last: dicts
            with their precisions ``pr1`` and ``pr16`` and the speed-up ``suf`` on held-out items;
            empty where both are given, or fewer than 40 items could be held out. With
            ``new_classes`` also ``rank`` and ``neighbours``, and figures are of the classes that
            were held out, at the same ``suf``. Without labels, the ways to open buckets and the
            share of the items that each scans for a recall, k-means first.
        classes_: the labels that were learned, sorted; none without labels.
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
        "buckets": [StrOptions({"auto"}), Interval(Integral, 1, MOST_BUCKETS, closed="both")],
        "active": [Interval(Integral, 1, None, closed="left")],
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "penalty": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
        "loss": [StrOptions(set(LOSSES) - {"library"})],
        "groups": [StrOptions({"auto", "classes"})],
        "hidden": [StrOptions({"auto"}), "array-like"],
        "steps": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "rank": [StrOptions(set(RANKS))],
        "class_order": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
        "new_classes": ["boolean"],
        "copies": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
        "recall": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="right")],
        "metric": [StrOptions(set(METRIC_NAMES))],
        "output": [StrOptions({"codes", "distance", "connectivity"})],
        "device": [str],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    n_neighbors: int
    metric: str
    device: str
    encoder_: Encoder
    table_: HashTable
    classes_: NDArray[Any]
    n_samples_fit_: int
    trials_: list[dict[str, Any]]
    effective_metric_: str  # what it was fitted with; ``metric`` may have been set since
    _numbers: NDArray[np.int64]  # of each item's class, -1 where it is not known

    def __init__(
        self,
        buckets: int | str = "auto",
        active: int = 1,
        *,
        n_neighbors: int = 5,
        penalty: float | str = "auto",
        loss: str = "codes",
        groups: str = "auto",
        hidden: tuple[int, ...] | str = "auto",
        steps: int | str = "auto",
        rank: str = "input",
        class_order: float | str = "auto",
        new_classes: bool = False,
        copies: float | str = "auto",
        recall: float | str = "auto",
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
        self.groups = groups
        self.hidden = hidden
        self.steps = steps
        self.rank = rank
        self.class_order = class_order
        self.new_classes = new_classes
        self.copies = copies
        self.recall = recall
        self.metric = metric
        self.output = output
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any = None, *, queries: Any = None) -> FlowHasher:  # noqa: N803
        """Learn the buckets, and put the items into a table.

        Without labels it also finds out how many buckets a recall takes, by items that it did not
        learn from, or by ``queries``.

        Args:
            X: embeddings [n, features]: an array, a torch tensor, a data frame, a list of lists,
                or a column with an array in each row.
            y: a label for each, of any type. Items whose label is None or NaN are not learned
                from, but found. None learns without labels.
            queries: without labels, vectors such as will be searched for [q, features], 250 or
                more, where those look different from the items.

        Returns:
            self.

        Raises:
            ValueError: X or y cannot be used, or fewer than two classes.
        """
        # Nothing is kept before all is done: a fit that fails leaves what was fitted before.
        _refuse_truth(self)
        reader = clone(self)
        metric = METRIC_NAMES[self.metric]
        items = read_items(reader, X, reset=True, unit=metric == "cosine")
        if y is None:
            if self.new_classes:
                raise InputError(
                    "new_classes is True, but there are no labels; it holds out classes of y. Give "
                    "y, or leave new_classes at False"
                )
            return self._fit_vectors(reader, items, metric, queries)
        if queries is not None:
            raise InputError(
                "queries came together with y; they are for vectors without labels. Leave one out, "
                "and give queries to calibrate"
            )
        classes, numbers = read_classes(self, y, len(items))
        names = tuple(str(name) for name in classes)
        known = numbers >= 0
        learned = items if known.all() else items[known]
        if metric == "inner" and self.rank != "input":
            raise InputError(
                f"metric is {self.metric!r} and rank is {self.rank!r}, which ranks by distances of "
                'what was learned, not by products of X; leave rank at "input"'
            )
        encoder, trials = learn_encoder(self, learned, numbers[known], names)
        if metric == "inner":
            encoder = without_centre(encoder)
        tried = [_in_our_words(trial.to_json()) for trial in trials]
        if self._wants_copies():
            shared, stored = share_learned(self, encoder, items, metric)
            self._take_names(reader)
            self.effective_metric_ = metric
            self._assemble(encoder, shared, stored, numbers)
            tried += [trial.to_json() for trial in shared.trials]
        else:
            table = new_table(encoder, metric)
            _add_items(encoder, table, items, self.device)
            self._take_names(reader)
            self.encoder_, self.table_, self.n_samples_fit_ = encoder, table, len(items)
            self._numbers, self.effective_metric_ = numbers, metric
        self.trials_, self.classes_ = tried, classes
        return self

    def _fit_vectors(
        self,
        reader: FlowHasher,
        items: NDArray[np.float32],
        metric: str,
        queries: Any,
    ) -> FlowHasher:
        """:meth:`fit` without labels."""
        asked = None
        if queries is not None:
            unit = metric == "cosine"
            asked = read_items(reader, queries, reset=False, unit=unit, name="queries")
        encoder, made = learn_router(self, items, metric, asked)
        self._take_names(reader)
        self.effective_metric_ = metric
        stored = encoder.preprocessing(items)
        nobody = np.full(len(items), -1, np.int64)
        self._assemble(encoder, made, stored, nobody, asked is None)
        self.trials_ = [trial.to_json() for trial in made.trials]
        self.classes_ = np.zeros(0, np.int64)
        if asked is not None and encoder.buckets > 1:
            found = encoder.encode(asked[made.held_out], ROWS, self.device)
            self.table_.calibrate(found.activations, found.embeddings, encoder=found.fingerprint)
        return self

    def _wants_copies(self) -> bool:
        """Whether somebody asked for second buckets; with labels nobody else does."""
        return not isinstance(self.copies, str) and self.copies > 0

    def _assemble(
        self,
        encoder: Encoder,
        made: ItemBuckets,
        stored: NDArray[np.float32],
        numbers: NDArray[np.int64],
        calibrate: bool = True,
    ) -> None:
        """Take an encoder, a table of these buckets, and labels; calibrate by what is held out."""
        notes = None if made.rule is None else {SECOND_NOTE: made.rule.to_json()}
        assemble(self.__dict__, encoder, made.codes, stored, numbers, notes)
        if calibrate:
            self._calibrate_stored(made.held_out)

    def _take_names(self, reader: FlowHasher) -> None:
        """Keep what was found out about the columns of X."""
        self.__dict__.pop("feature_names_in_", None)
        seen = ("n_features_in_", "feature_names_in_")
        self.__dict__ |= {name: value for name, value in vars(reader).items() if name in seen}

    @property
    def partial_fit(self) -> NoReturn:
        """There is none: it would have to learn anew. ``add`` puts more items into the table."""
        raise AttributeError(
            "FlowHasher has no partial_fit, because the buckets are learned from all items at "
            "once: fit a first part that has every class, then put in the others with add(X, y); "
            "or fit again with all of them"
        )

    def add(self, X: Any, y: Any = None) -> NDArray[np.int64]:  # noqa: N803
        """Put more items into the table; the buckets stay as they were learned.

        Where items have second buckets, so do some of these: by what their nearest items in the
        table would miss, at the gain that was enough in ``fit``.

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
        rule = SecondRule.from_json(self.table_.notes().get(SECOND_NOTE))
        second = None if rule is None else self._second_by(rule)
        added = _add_items(self.encoder_, self.table_, items, self.device, second)
        self._numbers = np.concatenate((self._numbers, numbers))
        self.n_samples_fit_ = len(self.table_)
        return added

    def adapt(self, X: Any = None) -> FlowHasher:  # noqa: N803
        """Fit the buckets anew, without labels, to items such as those of classes fit did not see.

        They start where they are. Items, labels and distances stay, each item gets a new code, and
        ``table_`` and ``encoder_`` are new ones. If it fails, all is as it was.

        Args:
            X: embeddings [n, features] that the buckets are fitted to; None for the items in the
                table.

        Returns:
            self.

        Raises:
            ValueError: X cannot be used.
        """
        check_is_fitted(self)
        if not len(self.classes_):
            return self._adapt_vectors(X)
        starts, stored = contents(self.table_, self.n_samples_fit_)
        seed = self._seed()
        rows = stored if X is None else self._items(X)
        size = sample_size(self.encoder_.buckets, self.encoder_.dim)
        chosen = draw_sample(len(rows), size, seed)  # no more are encoded
        if X is None:
            rows, starts = stored[chosen], starts[chosen]
            starts = np.where(starts < 0, starts[:, :1], starts)  # every item counts alike
        else:
            parts = self.encoder_.stream(rows[chosen], ROWS, self.device)
            made = [(part.embeddings, part.codes) for part in parts]
            rows, starts = (np.concatenate(some) for some in zip(*made, strict=True))
        encoder = adapt_encoder(
            self.encoder_, rows, starts, metric=self.table_.metric, seed=seed,
            show=bool(self.verbose),
        )  # fmt: skip
        blocks = (stored[start : start + ROWS] for start in range(0, len(stored), ROWS))
        codes = np.concatenate([encoder.encode_stored(part, self.device).codes for part in blocks])
        if not self._wants_copies():
            assemble(self.__dict__, encoder, codes, stored, self._numbers)
            return self
        shared = share_stored(self, encoder, codes[:, 0], stored, self.table_.metric)
        self._assemble(encoder, shared, stored, self._numbers)
        return self

    def search(
        self,
        X: Any = None,  # noqa: N803
        n_neighbors: int | None = None,
        *,
        probe: int | None = None,
        at_least: int | None = None,
        recall: float | None = None,
    ) -> Hits:
        """The nearest items in the buckets that each query opens, and how many were compared.

        Args:
            X: queries [n, features]; None asks for the neighbours of all items, without itself.
            n_neighbors: how many at the most.
            probe: how many buckets to open; k by default.
            at_least: open further buckets, in order, until so many items are found.
            recall: open as many as it takes to find this share of the nearest of all items, on
                average over queries like those of :meth:`calibrate`, which comes first.

        Returns:
            ``Hits`` with ids, distances (as ``kneighbors`` has them), counts, ``scanned`` and
            ``opened``.
        """
        return self._search(X, n_neighbors, probe=probe, at_least=at_least, recall=recall)

    def calibrate(
        self,
        X: Any = None,  # noqa: N803
        *,
        queries: int = 1_000,
        tops: int | Sequence[int] = RECALL_TOPS,
    ) -> FlowHasher:
        """Find out how many buckets a recall takes, so that ``recall=`` can be asked for.

        Their true neighbours are searched among all items. It is saved with the estimator, and
        called old once a fifth of the items came later.

        Args:
            X: queries [n, features] like those to come, 50 or more, better a thousand. None takes
                items of the table, each searched among the others: the network was trained on
                them and is surer of them than of new ones, so that a little less is reached.
            queries: how many items, with ``X=None``.
            tops: numbers of neighbours whose recall can then be asked for, each and smaller ones;
                or one.

        Returns:
            self.

        Raises:
            ValueError: X cannot be used, or there are too few queries or items.
        """
        check_is_fitted(self)
        check_unchanged(self.table_, self.n_samples_fit_)
        if X is None:
            if np.ndim(queries):
                raise InputError(
                    f"queries has shape {np.shape(queries)}; expected how many items of the table "
                    "to take. Give queries of your own as X: calibrate(X)"
                )
            queries = whole_number("queries", queries, 1)
            own = draw_sample(self.n_samples_fit_, queries, self._seed())
            self._calibrate_stored(own, tops)
            return self
        made = self.encoder_.encode(self._items(X), ROWS, self.device)
        self.table_.calibrate(
            made.activations, made.embeddings, tops=tops, encoder=made.fingerprint
        )
        return self

    def _calibrate_stored(
        self, own: NDArray[np.int64], tops: int | Sequence[int] = RECALL_TOPS
    ) -> None:
        """:meth:`calibrate` by these items of the table; there are none of a single bucket."""
        if self.encoder_.buckets == 1 and len(own) < FEWEST_QUERIES:
            return
        made = self._stored_items(own)
        activations, embeddings = made.activations, made.embeddings
        self.table_.calibrate(activations, embeddings, tops=tops, own=own, encoder=made.fingerprint)

    def _adapt_vectors(self, X: Any) -> FlowHasher:  # noqa: N803
        """:meth:`adapt` of a fit without labels: router, second buckets and calibration anew."""
        if X is not None:
            raise InputError(
                "X came to adapt a FlowHasher that was fitted without labels; its buckets are "
                "fitted to the items in the table. Leave X out, or put items in with add first"
            )
        before = self.table_.calibration
        if before is not None and not before.stored:
            warnings.warn(
                "this FlowHasher was calibrated by queries, and adapt learns and calibrates by the "
                "items in the table; give queries like those to come to calibrate afterwards",
                stacklevel=3,
            )
        _, stored = contents(self.table_, self.n_samples_fit_)
        encoder, made = relearn_router(self, stored)
        self._assemble(encoder, made, stored, self._numbers)
        self.trials_ = [trial.to_json() for trial in made.trials]
        return self

    def kneighbors(
        self,
        X: Any = None,  # noqa: N803
        n_neighbors: int | None = None,
        return_distance: bool = True,
        *,
        recall: float | None = None,
    ) -> Any:
        """The nearest items, as ``NearestNeighbors.kneighbors`` gives them.

        With labels a query opens its k buckets, without them as many as ``recall`` takes; and
        further ones while they hold fewer than ``n_neighbors`` items, so that there are always
        enough.

        Args:
            X: queries [n, features]; None asks for the neighbours of all items, without itself.
            n_neighbors: how many; the parameter by default.
            return_distance: whether distances are returned too.
            recall: the share of the nearest of all items to find on average; see :meth:`calibrate`.
                The parameter by default.

        Returns:
            Distances float64 [n, n_neighbors], nearest first, and positions of the items int64
            [n, n_neighbors]; or the positions only.
        """
        wanted = self.n_neighbors if n_neighbors is None else n_neighbors
        self._check_fitted()
        whole_neighbours(wanted, self.n_samples_fit_, X is None)
        found = self.search(
            X, wanted, at_least=wanted, recall=self._usual_recall(recall, wanted, X is None)
        )
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
        values = distances if mode == "distance" else np.ones(ids.shape)
        return sparse_rows(ids, values, self.n_samples_fit_)

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
        return sparse_rows(codes, np.ones(codes.shape, np.float32), self.encoder_.buckets)

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
        if not labelled.any():
            raise InputError(
                "predict wants labels, and no item has one: this FlowHasher was fitted without y; "
                "give labels to fit, or ask for kneighbors"
            )
        asked = whole_neighbours(self.n_neighbors, self.n_samples_fit_, itself=False)
        wanted = min(asked, int(labelled.sum()))
        where = None if labelled.all() else labelled
        found = self._search(X, wanted, at_least=wanted, where=where)
        # An item does not vote for itself, so that there may be a vote too few.
        votes = np.where(found.ids >= 0, self._numbers[found.ids], -1)
        return self.classes_[commonest(votes)]

    def score(self, X: Any, y: Any = None) -> float:  # noqa: N803
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
        if not len(self.classes_):
            raise InputError(
                "score wants labels, by which neighbours are right or wrong, and this FlowHasher "
                "was fitted without; fit with labels, or see what share of the neighbours of "
                "kneighbors(X, recall=1) kneighbors(X) finds"
            )
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

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator to a folder, in place of one that is there; see ``load``.

        JSON, safetensors and a table; no pickle. Killed at any moment, it leaves the old one or
        the new one. A ``random_state`` that is not a number is not stored.

        Raises:
            InputError: the folder holds something else, among which nobody would find it.
        """
        check_is_fitted(self)
        save_hasher(self, Path(folder).expanduser())

    @classmethod
    def load(cls, folder: str | Path) -> FlowHasher:
        """Read what ``save`` wrote; it answers as the one that was saved.

        Raises:
            InputError: there is none, or it is of a newer FlowHash.
            DamagedFileError: a file is damaged; the message names it.
        """
        return load_hasher(cls, Path(folder).expanduser())

    def __getstate__(self) -> dict[str, Any]:
        return portable(super().__getstate__())

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(restored(state, type(self)().get_params()))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "table_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    @property
    def _n_features_out(self) -> int:
        """For ``get_feature_names_out``."""
        return int(self.encoder_.buckets if self.output == "codes" else self.n_samples_fit_)

    def _more_tags(self) -> dict[str, Any]:
        """The same for scikit-learn before 1.6."""
        return {"preserves_dtype": []}

    def _search(self, X: Any, n_neighbors: int | None, **options: Any) -> Hits:  # noqa: N803
        """:meth:`search`, with any option of the table's."""
        self._check_fitted()
        check_unchanged(self.table_, self.n_samples_fit_)
        itself = X is None
        wanted = self.n_neighbors if n_neighbors is None else n_neighbors
        top = whole_neighbours(wanted, self.n_samples_fit_, itself)
        if itself and options.get("at_least") is not None:
            options["at_least"] += 1
        rows = contents(self.table_, self.n_samples_fit_)[1] if itself else self._items(X)
        # Activations of all queries at once may be larger than the table.
        step = max(1, ACTIVATIONS_AT_ONCE // self.table_.buckets)
        if len(rows) <= step:
            found = self._search_rows(rows, 0, top, itself, options)
        else:
            found = Hits.concatenate([
                self._search_rows(rows[start : start + step], start, top, itself, options)
                for start in range(0, len(rows), step)
            ])  # fmt: skip
        found.distances = self._distances(found.distances)
        return found

    def _search_rows(
        self, rows: NDArray[np.float32], first: int, top: int, itself: bool, options: dict[str, Any]
    ) -> Hits:
        """The hits of some queries, or of stored items from ``first`` on: of their embeddings."""
        if not itself:
            made = self.encoder_.encode(rows, ROWS, self.device)
            return search_encoded(self.table_, made, top, **options)
        found = search_encoded(self.table_, self._encoded(rows), top + 1, **options)
        # Query i is item i, which is neither found nor scanned. Where many items are the same as
        # the query, it may not be among the nearest; then the last of them is left out, as
        # scikit-learn does.
        return found.without(np.arange(first, first + len(rows)))

    def _check_fitted(self) -> None:
        """scikit-learn's check asks for all tags first, which takes as long as a search."""
        if not self.__sklearn_is_fitted__():
            check_is_fitted(self)

    def _usual_recall(self, recall: float | None, top: int, itself: bool) -> float | None:
        """What was asked for, or the parameter, or what a fit without labels promises."""
        if recall is not None:
            return read_recall(recall)
        if not isinstance(self.recall, str) or self.recall != "auto":
            return read_recall(self.recall)
        known = self.table_.calibration
        if len(self.classes_) or known is None:
            return None
        # Of more neighbours than were calibrated nobody knows how many buckets they take: all.
        return USUAL_RECALL if top + itself <= max(known.thresholds) else 1.0

    def _stored_items(self, chosen: NDArray[np.int64] | None = None) -> Encoded:
        """Items of the table as queries: activations are computed anew from embeddings."""
        _, embeddings = contents(self.table_, self.n_samples_fit_)
        return self._encoded(embeddings if chosen is None else embeddings[chosen])

    def _encoded(self, embeddings: NDArray[np.float32]) -> Encoded:
        """Items of which only the embeddings are left."""
        encoder, base = self.encoder_, self.encoder_.base
        if base is None or base.passes_through or encoder.networks.chained:
            return encoder.encode_stored(embeddings, self.device)
        items = original_vectors(base, embeddings)  # which were whitened
        device = device_of(self.device)
        blocks = (items[start : start + ROWS] for start in range(0, len(items), ROWS))
        made = [part for (part,) in run_networks([encoder.hash.to(device)], blocks, device)]
        return Encoded(embeddings, np.concatenate(made), encoder.active, encoder.fingerprint)

    def _second_by(self, rule: SecondRule) -> Callable[[Encoded], NDArray[np.int32]]:
        """What gives further items their codes."""

        def activations_of(ids: NDArray[np.int64]) -> NDArray[np.float32]:
            return self._encoded(self.table_.embeddings_of(ids)).activations

        return lambda made: second_codes(self.table_, made, rule, activations_of)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _items(self, values: Any) -> NDArray[np.float32]:
        return read_items(self, values, reset=False, unit=self.effective_metric_ == "cosine")

    def _known(self, labels: NDArray[Any]) -> NDArray[np.int64]:
        """The number of each label's class, -1 where it was not learned."""
        if not len(self.classes_):
            raise InputError(
                "labels came to a FlowHasher that was fitted without; leave them out, or fit again "
                "with labels"
            )
        if len(labels):
            check_kind(labels, self.classes_)
        places = np.searchsorted(self.classes_, labels)
        places = np.minimum(places, len(self.classes_) - 1)
        return np.where(self.classes_[places] == labels, places, -1)

    def _distances(self, squares: NDArray[np.float32]) -> NDArray[Any]:
        """Distances in units of X from squared ones of embeddings, or from negative products."""
        wide = squares.astype(np.float64)
        if not self.encoder_.keeps_vectors:  # it ranks by something that was learned
            return np.sqrt(wide)
        wide *= float(self.encoder_.preprocessing.std) ** 2
        if self.effective_metric_ == "inner":
            return wide
        return wide / 2 if self.effective_metric_ == "cosine" else np.sqrt(wide)


def _refuse_truth(hasher: FlowHasher) -> None:
    """scikit-learn takes True for the number 1."""
    for name, kinds in hasher._parameter_constraints.items():
        value = getattr(hasher, name)
        if isinstance(value, bool | np.bool_) and any(isinstance(kind, Interval) for kind in kinds):
            raise InputError(f"{name} is {value}; expected a number")


def _in_our_words(trial: dict[str, Any]) -> dict[str, Any]:
    """A trial whose rank is called as the parameter calls it."""
    names = {value: name for name, value in RANKS.items()}
    return trial | ({"rank": names[trial["rank"]]} if "rank" in trial else {})


def _add_items(
    encoder: Encoder,
    table: HashTable,
    items: NDArray[np.float32],
    device: str,
    second: Callable[[Encoded], NDArray[np.int32]] | None = None,
) -> NDArray[np.int64]:
    """Encode items and add them; the ids, which count from the number of items before."""
    added = []
    for part in encoder.stream(items, ROWS, device):
        codes = part.codes if second is None else second(part)
        added.append(table.add(codes, part.embeddings, encoder=part.fingerprint))
    table.compact()  # one segment is the fastest to search
    return np.concatenate(added)


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


def sparse_rows(columns: NDArray[Any], values: NDArray[Any], width: int) -> csr_matrix:
    """A matrix [n, width] that has ``values`` [n, m] at ``columns`` [n, m] of each row."""
    ends = np.arange(len(columns) + 1) * columns.shape[1]
    return csr_matrix((values.ravel(), columns.ravel(), ends), (len(columns), width))


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
