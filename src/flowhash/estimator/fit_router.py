"""What ``fit`` learns without labels: from vectors to an encoder that routes queries to buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from flowhash.data import ArrayItems, LabelledItems, Preprocessing
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.learn import RouterTrial, fit_vectors, router_encoder

if TYPE_CHECKING:
    from flowhash.estimator.flow_hasher import FlowHasher


@dataclass(frozen=True, eq=False)
class LearnedRouter:
    """An encoder, the buckets of each item [n, k], what may calibrate, and what was tried.

    ``held_out`` are items, or queries where some were given, that nothing was learned from.
    """

    encoder: Encoder
    codes: NDArray[np.int32]
    held_out: NDArray[np.int64]
    trials: list[RouterTrial]


def learn_router(
    hasher: FlowHasher,
    items: NDArray[np.float32],
    metric: str,
    queries: NDArray[np.float32] | None,
) -> LearnedRouter:
    """Learn buckets from vectors alone.

    Args:
        hasher: whose parameters say what to learn.
        items: [n, dim]; of length one for "cosine".
        metric: "euclidean", "cosine" or "inner".
        queries: like those to come, or None.

    Raises:
        InputError: a parameter is for labels only.
    """
    for name, usual in (("active", 1), ("rank", "input")):
        if getattr(hasher, name) != usual:
            raise InputError(
                f"{name} is {getattr(hasher, name)!r}, and there are no labels; expected "
                f"{usual!r}: without labels an item is in one bucket or two (copies), and X "
                "itself ranks"
            )
    data = LabelledItems(ArrayItems(items), np.zeros(len(items), np.int64), ("",), "X")
    # Inner products depend on where zero is, distances do not.
    preprocessing = Preprocessing.fit(data, mean="none" if metric == "inner" else None)
    asked = None if queries is None else preprocessing(queries)
    return _learned(hasher, preprocessing, preprocessing(items), metric, asked)


def relearn_router(hasher: FlowHasher, stored: NDArray[np.float32]) -> LearnedRouter:
    """The same for the embeddings that a table stores, with as many buckets as before."""
    encoder = hasher.encoder_
    return _learned(
        hasher, encoder.preprocessing, stored, hasher.effective_metric_, None, encoder.buckets
    )


def _learned(
    hasher: FlowHasher,
    preprocessing: Preprocessing,
    vectors: NDArray[np.float32],
    metric: str,
    queries: NDArray[np.float32] | None,
    buckets: int | None = None,
) -> LearnedRouter:
    options: dict[str, Any] = {}
    if metric == "cosine":  # all lie on a sphere around what zero has become
        options["origin"] = preprocessing(np.zeros((1, vectors.shape[1]), np.float32))[0]
    if buckets is None and not isinstance(hasher.buckets, str):
        buckets = int(hasher.buckets)
    seed = int(check_random_state(hasher.random_state).randint(np.iinfo(np.int32).max))
    made = fit_vectors(
        vectors, buckets,
        copies=None if isinstance(hasher.copies, str) else float(hasher.copies),
        inner=metric == "inner",
        queries=queries,
        seed=seed,
        show=bool(hasher.verbose),
        say=print if hasher.verbose else lambda line: None,
        **options,
    )  # fmt: skip
    encoder = router_encoder(made.router, preprocessing)
    return LearnedRouter(encoder, made.codes, made.held_out, made.trials)
