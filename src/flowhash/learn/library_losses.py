"""What needs pytorch-metric-learning: its losses and miners by name, and its distances, gated.

The library takes as long to import as torch, so only who asks for one of these imports it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from flowhash.errors import InputError
from flowhash.extras import require
from flowhash.learn.gated_metrics import gated_distance, gated_product
from flowhash.learn.losses import MetricLoss

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

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Not to be had: rows picked from a batch come without their codes."""
        raise InputError(
            f"{type(self).__name__} knows the codes of whole batches, not of rows picked from "
            "them; use a loss that asks for the matrix of the batch (contrastive, triplet, lifted "
            "structure, multi-similarity, circle, …)"
        )


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


class GatedSimilarity(_Gated, distances.CosineSimilarity):  # type: ignore[misc, name-defined]
    """The cosine on the active buckets, for losses that want a similarity (circle loss does)."""

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """The similarities [B, B]."""
        return gated_product(query_emb, self._codes_of(query_emb, ref_emb))


class LibraryLoss(MetricLoss):
    """Any loss of pytorch-metric-learning on pairs or triplets, with an optional miner.

    Args:
        plain: makes the loss for stage 1, with the library's default distance.
        gated: makes the loss for stage 2 and returns it with its gated distance.
        miner: makes the miner from the distance, or None.
    """

    def __init__(
        self,
        plain: Callable[[], nn.Module],
        gated: Callable[[], tuple[nn.Module, Any]],
        miner: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self.plain = plain()
        self.gated, self.distance = gated()
        self.plain_miner = None if miner is None else miner(self.plain.distance)
        self.gated_miner = None if miner is None else miner(self.distance)

    def forward(self, embeddings: Tensor, labels: Tensor, codes: Tensor | None = None) -> Tensor:
        """The library's loss on this batch."""
        if codes is None:
            chosen = self.plain_miner(embeddings, labels) if self.plain_miner else None
            return self.plain(embeddings, labels, chosen)  # type: ignore[no-any-return]
        with self.distance.gate(codes):
            chosen = self.gated_miner(embeddings, labels) if self.gated_miner else None
            return self.gated(embeddings, labels, chosen)  # type: ignore[no-any-return]


def library_loss(
    name: str,
    similarity: bool = False,
    miner: str | None = None,
    miner_options: dict[str, Any] | None = None,
    **options: Any,
) -> LibraryLoss:
    """A loss of pytorch-metric-learning by its class name, with a miner of the library.

    Args:
        name: of the class in ``pytorch_metric_learning.losses``, such as "MarginLoss".
        similarity: whether the loss wants a similarity (circle, multi-similarity), not a distance.
        miner: of a class in ``pytorch_metric_learning.miners``, or None.
        miner_options: what the miner is told.
        options: what the loss is told.

    Raises:
        InputError: the library has no such loss or miner.
    """
    kind = _named("losses", name)
    mine = None if miner is None else _named("miners", miner)

    def gated() -> tuple[nn.Module, Any]:
        distance = GatedSimilarity() if similarity else GatedDistance()
        return kind(distance=distance, **options), distance

    def mined(distance: Any) -> Any:
        assert mine is not None
        return mine(distance=distance, **(miner_options or {}))

    return LibraryLoss(lambda: kind(**options), gated, None if mine is None else mined)


def _named(part: str, name: str) -> Any:
    module = require(f"pytorch_metric_learning.{part}", "learn")
    found = getattr(module, name, None)
    if found is None:
        raise InputError(f"pytorch_metric_learning.{part} has no {name!r}; look at its documents")
    return found
