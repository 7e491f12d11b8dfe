"""What ``fit`` learns for a recall: an encoder that routes queries, and second buckets of items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from flowhash.data import ArrayItems, LabelledItems, Preprocessing
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.estimator.hasher_files import ROWS
from flowhash.learn import ItemBuckets, fit_vectors, router_encoder, share_items

if TYPE_CHECKING:
    from flowhash.estimator.flow_hasher import FlowHasher


def learn_router(
    hasher: FlowHasher,
    items: NDArray[np.float32],
    metric: str,
    queries: NDArray[np.float32] | None,
) -> tuple[Encoder, ItemBuckets]:
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


def relearn_router(hasher: FlowHasher, stored: NDArray[np.float32]) -> tuple[Encoder, ItemBuckets]:
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
) -> tuple[Encoder, ItemBuckets]:
    if buckets is None and not isinstance(hasher.buckets, str):
        buckets = int(hasher.buckets)
    router, made = fit_vectors(
        vectors,
        buckets,
        inner=metric == "inner",
        queries=queries,
        **_options(hasher),
    )
    return router_encoder(router, preprocessing), made


def share_learned(
    hasher: FlowHasher, encoder: Encoder, items: NDArray[np.float32], metric: str
) -> tuple[ItemBuckets, NDArray[np.float32]]:
    """Second buckets beside those that labels taught, and the embeddings of the items."""
    if encoder.active > 1:
        raise InputError(
            f"copies is {hasher.copies} and active is {encoder.active}; expected active=1, since "
            "copies gives some items a second bucket. Leave one of them out"
        )
    made = encoder.encode(items, ROWS, hasher.device)
    homes = made.codes[:, 0]

    def activations(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return encoder.encode(rows, ROWS, hasher.device).activations

    found = share_items(
        made.embeddings, homes, encoder.buckets, activations,
        inputs=items, inner=metric == "inner", **_options(hasher),
    )  # fmt: skip
    return found, made.embeddings


def share_stored(
    hasher: FlowHasher,
    encoder: Encoder,
    homes: NDArray[np.int32],
    stored: NDArray[np.float32],
    metric: str,
) -> ItemBuckets:
    """The same for embeddings that a table stores, which the encoder takes."""

    def activations(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return encoder.encode_stored(rows, hasher.device).activations

    return share_items(
        stored, homes, encoder.buckets, activations, inner=metric == "inner", **_options(hasher)
    )


def _options(hasher: FlowHasher) -> dict[str, Any]:
    return {
        "copies": None if isinstance(hasher.copies, str) else float(hasher.copies),
        "seed": int(check_random_state(hasher.random_state).randint(np.iinfo(np.int32).max)),
        "show": bool(hasher.verbose),
        "say": print if hasher.verbose else lambda line: None,
    }
