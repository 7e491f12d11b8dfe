"""``Encoded``, what an encoder returns for items, and ``Joined``, its two networks as one."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flowhash.codes import ordered_buckets, topk_codes
from flowhash.networks import BACKBONES, EmbeddingNetwork


@dataclass(frozen=True, eq=False)
class Encoded:
    """Items as an encoder sees them.

    Attributes:
        embeddings: for ranking [n, dim] float32.
        activations: one a bucket [n, d] float32.
        active: k.
        fingerprint: of the encoder; tables compare it with theirs.
    """

    embeddings: NDArray[np.float32]
    activations: NDArray[np.float32]
    active: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def codes(self) -> NDArray[np.int32]:
        """The k active buckets of each item [n, k] (Eq. 1)."""
        return topk_codes(self.activations, self.active)

    def ordered_buckets(self, first: int | None = None) -> NDArray[np.int32]:
        """The buckets in the order in which a query opens them [n, first]; all by default."""
        return ordered_buckets(self.activations, first)


def chained(parts: Sequence[Encoded]) -> Encoded:
    """Parts of one encoder, at least one, as a whole."""
    return Encoded(
        np.concatenate([part.embeddings for part in parts]),
        np.concatenate([part.activations for part in parts]),
        parts[0].active,
        parts[0].fingerprint,
    )


class Joined(nn.Module):
    """The two networks of an encoder as one; a backbone that they share runs once.

    The networks are copied to the CPU and are not trained on: an encoder never changes under its
    fingerprint.

    Args:
        base: makes embeddings; None where the hash network's outputs are the embeddings.
        hash: makes activations.
    """

    def __init__(self, base: EmbeddingNetwork | None, hash: EmbeddingNetwork) -> None:
        super().__init__()
        self.hash = copy.deepcopy(hash)
        self.base = None
        self.shared = False
        if base is not None:
            self.shared = _same(base.backbone, hash.backbone)
            # What the memo knows is not copied: the base gets the hash network's copy.
            memo = {id(base.backbone): self.hash.backbone} if self.shared else {}
            self.base = copy.deepcopy(base, memo)
        self.cpu().eval().requires_grad_(False)

    def both(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings [n, dim] and activations [n, d]."""
        if self.base is None:
            made = self.hash(items)
            return made, made
        if not self.shared:
            return self.base(items), self.hash(items)
        features = self.hash.backbone(items)
        return self.base.finish(features), self.hash.finish(features)

    def forward(self, items: Tensor) -> Tensor:
        """Embeddings and activations side by side [n, dim + d]; once where they are the same."""
        embeddings, activations = self.both(items)
        return activations if self.base is None else torch.cat((embeddings, activations), 1)


def _same(one: nn.Module, other: nn.Module) -> bool:
    """Whether two backbones compute the same: a frozen one was copied, not trained.

    Of a user's own module the description does not say what it computes, so that only the very
    same one counts.
    """
    if one is other:
        return True
    specs: list[Any] = [one.spec, other.spec]
    if specs[0].get("name") not in BACKBONES or json.dumps(specs[0]) != json.dumps(specs[1]):
        return False
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(
        torch.equal(left[name].cpu(), right[name].cpu()) for name in left
    )
