"""The gated distance and product: over the dimensions that either item has active."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flowhash.errors import InputError


def gated_distance(embeddings: Tensor, codes: Tensor) -> Tensor:
    """d_ij = ‖(h_i ∨ h_j) ⊙ (f_i - f_j)‖₁ for all pairs of a batch (Eq. 6).

    Takes O(B²k) time and memory; a [B, B, d] tensor is never made.

    Args:
        embeddings: f, the hash network's outputs [B, d].
        codes: h, the active buckets of each item [B, k], distinct in each row, in any order.

    Returns:
        The distances [B, B], symmetric with a zero diagonal; gradients flow to ``embeddings``.

    Raises:
        InputError: shapes that do not fit, buckets out of range.

    Example:
        >>> embeddings = torch.tensor([[1.0, 5.0, 0.0], [4.0, 7.0, 9.0]])
        >>> gated_distance(embeddings, torch.tensor([[0], [1]]))  # |1 - 4| + |5 - 7|
        tensor([[0., 5.],
                [5., 0.]])
    """
    checked = check_codes(embeddings, codes)
    return _Distance.apply(embeddings, checked)  # type: ignore[no-any-return, no-untyped-call]


def gated_product(embeddings: Tensor, codes: Tensor) -> Tensor:
    """s_ij = Σ over the buckets of h_i ∨ h_j of f_i f_j, for all pairs of a batch.

    The paper has npairs on the gated distance; the authors' code used this masked inner product.

    Args:
        embeddings: f [B, d].
        codes: h [B, k], as for ``gated_distance``.

    Returns:
        The products [B, B], symmetric; gradients flow to ``embeddings``.

    Example:
        >>> embeddings = torch.tensor([[1.0, 5.0, 0.0], [4.0, 7.0, 9.0]])
        >>> gated_product(embeddings, torch.tensor([[0], [1]]))[0, 1]  # 1 * 4 + 5 * 7
        tensor(39.)
    """
    codes = check_codes(embeddings, codes)
    own, others = _sides(embeddings, codes)
    half = (own * others * _weights(codes, embeddings)).sum(1)
    return half + half.t()


def check_codes(embeddings: Tensor, codes: Tensor) -> Tensor:
    """The codes as int64, after checks of shape and range."""
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise InputError(
            f"embeddings has shape {tuple(embeddings.shape)} and type {embeddings.dtype}; expected "
            "floats [batch, d], the hash network's outputs"
        )
    if codes.ndim != 2 or len(codes) != len(embeddings) or codes.shape[1] == 0:
        raise InputError(
            f"codes has shape {tuple(codes.shape)}; expected [{len(embeddings)}, k], the k active "
            "buckets of each item. Codes of classes become codes of items by codes[labels]"
        )
    if codes.is_floating_point() or codes.dtype == torch.bool:
        raise InputError(
            f"codes has type {codes.dtype}; expected whole numbers, the names of active buckets "
            "(not a 0/1 mask)"
        )
    buckets = embeddings.shape[1]
    if codes.numel() and (int(codes.min()) < 0 or int(codes.max()) >= buckets):
        raise InputError(
            f"codes holds bucket {int(codes.min())} to {int(codes.max())}; expected 0 to "
            f"{buckets - 1}, one bucket an output of the network"
        )
    return codes.to(device=embeddings.device, dtype=torch.int64)


def _sides(embeddings: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """f_i and f_j on the buckets of i's code: [B, k, 1] and [B, k, B]."""
    return embeddings.gather(1, codes).unsqueeze(2), _rows(embeddings, codes)


def _rows(values: Tensor, codes: Tensor) -> Tensor:
    """``values[j, codes[i, r]]`` as [B, k, B]: whole rows of the transpose, made contiguous."""
    return values.t().contiguous().index_select(0, codes.flatten()).view(*codes.shape, -1)


def _weights(codes: Tensor, like: Tensor) -> Tensor:
    """What bucket r of i's code counts in the pair (i, j): 1, or ½ where j has it too [B, k, B]."""
    active = like.new_ones(like.shape).scatter_(1, codes, 0.5)
    return _rows(active, codes)


class _Distance(torch.autograd.Function):
    """The gated distance with a backward pass that makes no more than the forward pass does.

    With Δ_irj = f_i[q] - f_j[q] at q = codes[i, r], and w_irj the weight of that term, the distance
    is W + Wᵀ with W_ij = Σ_r w_irj |Δ_irj|. Both passes need w and the sign of Δ together only.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, codes: Tensor) -> Tensor:
        own, others = _sides(embeddings, codes)
        differences = own - others
        weights = _weights(codes, embeddings)
        half = torch.einsum("irj,irj->ij", differences.abs(), weights)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(weights.mul_(differences.sign_()), codes)
            ctx.shape = embeddings.shape
        return half + half.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        signed, codes = ctx.saved_tensors
        batch, buckets = ctx.shape
        gradient = gradients[0] + gradients[0].t()
        terms = signed * gradient.unsqueeze(1)
        # The item's own side [B, k], then the other's: one row of [d, B] for each active bucket.
        result = gradient.new_zeros(batch, buckets).scatter_add_(1, codes, terms.sum(2))
        others = gradient.new_zeros(buckets, batch).index_add_(
            0, codes.flatten(), terms.flatten(0, 1)
        )
        return result.sub_(others.t()), None
