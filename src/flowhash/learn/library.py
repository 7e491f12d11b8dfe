"""Losses and miners of pytorch-metric-learning, in both stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from flowhash.errors import InputError
from flowhash.extras import require
from flowhash.learn.distances import GatedDistance, GatedSimilarity
from flowhash.learn.losses import MetricLoss


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
