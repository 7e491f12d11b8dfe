"""The gated distance as a distance of pytorch-metric-learning: its losses and miners take codes.

A loss of that library asks its distance for the matrix of a batch and knows nothing of codes, so
the distance is told them beside it::

    distance = GatedDistance()
    loss = ContrastiveLoss(distance=distance)
    with distance.gate(codes):  # [B, k], the codes of the batch that follows
        value = loss(embeddings, labels)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from flowhash.errors import InputError
from flowhash.extras import require
from flowhash.learn.gated import gated_distance, gated_product

distances = require("pytorch_metric_learning.distances", "learn")


class _Gated:
    """Holds the codes of the batch, and hands both to one of the gated functions."""

    codes: Tensor | None = None

    @contextlib.contextmanager
    def gate(self, codes: Tensor) -> Iterator[None]:
        """Use these codes [B, k] for the batches of embeddings inside the ``with``."""
        before, self.codes = self.codes, codes
        try:
            yield
        finally:
            self.codes = before

    def forward(self, query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor:
        """The matrix of a batch against itself, normalised once."""
        # Losses of the library pass the batch twice, and two normalised copies would not be known
        # as one batch.
        same = None if ref_emb is query_emb else ref_emb
        return super().forward(query_emb, same)  # type: ignore[misc, no-any-return]

    def _codes_of(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        name = type(self).__name__
        if self.codes is None:
            raise InputError(
                f"{name} has no codes for this batch; call the loss inside `with "
                "distance.gate(codes):`, with the codes [B, k] of the same batch"
            )
        if ref_emb is not query_emb or len(query_emb) != len(self.codes):
            raise InputError(
                f"{name} was asked for {len(query_emb)} × {len(ref_emb)} embeddings and has codes "
                f"for a batch of {len(self.codes)} against itself; a loss that makes new "
                "embeddings (centroids, proxies, a memory) has no codes for them. Use a loss on "
                "pairs or triplets of the batch"
            )
        return self.codes


class GatedDistance(_Gated, distances.BaseDistance):  # type: ignore[misc, name-defined]
    """d_hash of Eq. 6, L1 on the active buckets; embeddings are L2-normalised first.

    Args:
        normalize_embeddings: False for losses on raw embeddings, like npairs.
        options: what every distance of the library takes, such as ``power``.
    """

    def __init__(self, normalize_embeddings: bool = True, **options: Any) -> None:
        super().__init__(normalize_embeddings=normalize_embeddings, p=2, **options)

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """The distances [B, B]."""
        return gated_distance(query_emb, self._codes_of(query_emb, ref_emb))

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Not to be had: rows picked from a batch come without their codes."""
        raise _no_rows(self)


class GatedSimilarity(_Gated, distances.CosineSimilarity):  # type: ignore[misc, name-defined]
    """The cosine on the active buckets, for losses that want a similarity (circle loss does)."""

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """The similarities [B, B]."""
        return gated_product(query_emb, self._codes_of(query_emb, ref_emb))

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Not to be had: rows picked from a batch come without their codes."""
        raise _no_rows(self)


def _no_rows(distance: object) -> InputError:
    return InputError(
        f"{type(distance).__name__} knows the codes of whole batches, not of rows picked from "
        "them; use a loss that asks for the matrix of the batch (contrastive, triplet, lifted "
        "structure, multi-similarity, circle, …)"
    )
