"""Losses over a batch, by name: triplet, npairs, cross-entropy, and those of a library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from flowhash.errors import InputError
from flowhash.learn.gated_metrics import check_codes, gated_distance, gated_product
from flowhash.networks import unit_vectors


class MetricLoss(nn.Module):
    """A loss on a batch of embeddings.

    ``unit`` says whether it works on unit vectors, ``coded`` whether stage 2 solves for codes.
    """

    unit: bool = True
    coded: bool = True

    def forward(self, embeddings: Tensor, labels: Tensor, codes: Tensor | None = None) -> Tensor:
        """The loss, one number."""
        raise NotImplementedError


class TripletLoss(MetricLoss):
    """Triplet loss with the paper's semi-hard rule (Eq. 7), over all positive pairs of a batch.

    For each anchor and positive, the negative is the nearest one that is farther than the positive;
    if there is none, the farthest negative. Without codes the distance is squared Euclidean on unit
    vectors, with codes it is gated L1 on unit vectors.

    Args:
        margin: α.
    """

    unit = True

    def __init__(self, margin: float = 0.3) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor, codes: Tensor | None = None) -> Tensor:
        """The mean of [d_ap + α - d_an]₊ over positive pairs; see the class."""
        unit = unit_vectors(embeddings)
        if codes is None:
            distances = (2 - 2 * unit @ unit.t()).clamp(min=0)
        else:
            distances = gated_distance(unit, codes)
        anchors, positives = positive_pairs(labels)
        rows = distances[anchors]
        positive = distances[anchors, positives]
        chosen = semi_hard(rows.detach(), positive.detach(), labels[anchors, None] != labels)
        negative = rows.gather(1, chosen[:, None]).squeeze(1)
        return functional.relu(positive + self.margin - negative).mean()


def positive_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """All (anchor, positive) of a batch, as two index vectors."""
    same = labels[:, None] == labels
    same.fill_diagonal_(False)
    anchors, positives = same.nonzero(as_tuple=True)
    if len(anchors) == 0 or bool((labels == labels[0]).all()):
        raise InputError(
            f"the batch's {len(labels)} labels make no pair of one class beside another class; "
            "expected at least two classes and two items of one of them"
        )
    return anchors, positives


def semi_hard(rows: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
    """The index of each pair's semi-hard negative: the nearest farther one, else the farthest.

    Args:
        rows: distances of the pair's anchor to every item [P, B].
        positive: distance of the pair [P].
        negatives: which items are of another class [P, B].
    """
    beyond = negatives & (rows > positive[:, None])
    nearest = rows.masked_fill(~beyond, torch.inf).min(1)
    farthest = rows.masked_fill(~negatives, -torch.inf).argmax(1)
    return torch.where(torch.isinf(nearest.values), farthest, nearest.indices)


class NPairsLoss(MetricLoss):
    """Npairs (Eq. 8): softmax over a positive and all items of other classes, with a regulariser.

    The batch has two or more items a class. Each ordered positive pair (i, j) is set against all
    items of other classes. Without codes the similarity is the inner product, with codes it is the
    negative gated distance, or the masked inner product that the authors' code used.

    Args:
        regulariser: λ of Eq. 8, on the squared norms of the embeddings before masking.
        product: use the masked inner product instead of minus the gated distance.
    """

    unit = False

    def __init__(self, regulariser: float = 0.003, product: bool = False) -> None:
        super().__init__()
        self.regulariser = regulariser
        self.product = product

    def forward(self, embeddings: Tensor, labels: Tensor, codes: Tensor | None = None) -> Tensor:
        """The mean over positive pairs of -log softmax, plus λ/B Σ ‖f‖²; see the class."""
        if codes is None:
            similarities = embeddings @ embeddings.t()
        elif self.product:
            similarities = gated_product(embeddings, codes)
        else:
            similarities = -gated_distance(embeddings, codes)
        anchors, positives = positive_pairs(labels)
        same = labels[:, None] == labels
        others = similarities.masked_fill(same, -torch.inf).logsumexp(1)
        positive = similarities[anchors, positives]
        # -log(e^s / (e^s + Σ e^o)) = softplus(log Σ e^o - s), which does not overflow.
        pairs = functional.softplus(others[anchors] - positive).mean()
        return pairs + self.regulariser * embeddings.pow(2).sum(1).mean()


class CrossEntropyLoss(MetricLoss):
    """A classifier on unit embeddings, for stage 1: cosine to one weight vector a class.

    It has weights of its own, which are trained and then left behind.

    Args:
        classes: how many there are in the data set.
        outputs: m, the embedding's length.
        scale: factor on the cosines before the softmax.
        smoothing: share of the target that is spread over all classes.
    """

    unit = True

    def __init__(
        self, classes: int, outputs: int, scale: float = 16.0, smoothing: float = 0.1
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, outputs))
        nn.init.normal_(self.weight)
        self.scale, self.smoothing = scale, smoothing

    def forward(self, embeddings: Tensor, labels: Tensor, codes: Tensor | None = None) -> Tensor:
        """The mean cross-entropy; see the class."""
        if codes is not None:
            raise InputError("cross-entropy is a loss of stage 1: it has no distance to gate")
        cosines = unit_vectors(embeddings) @ functional.normalize(self.weight).t()
        return functional.cross_entropy(
            self.scale * cosines, labels, label_smoothing=self.smoothing
        )


class SoftmaxLoss(MetricLoss):
    """A plain classifier: cross-entropy on the outputs, of which there is one for each class.

    As the loss of stage 2 it makes the classes the buckets, without codes and without Algorithm 1:
    the rival that every result of a hash network has to stand beside.

    Args:
        smoothing: share of the target that is spread over all classes.
    """

    unit = False
    coded = False

    def __init__(self, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, embeddings: Tensor, labels: Tensor, codes: Tensor | None = None) -> Tensor:
        """The mean cross-entropy."""
        return functional.cross_entropy(embeddings, labels, label_smoothing=self.smoothing)


class CodeLoss(MetricLoss):
    """Cross-entropy towards the codes: an item's k buckets are its targets, of all d.

    A second term is the cross-entropy of the class, whose probability is the sum over its shares of
    the buckets: an item in a bucket of another group of its own class is nearly right.

    A third one, off by default, is of neighbours. Two items meet with the chance Σ_b P(b|x) P(b|y)
    that both land in the same bucket; the chances of x with all others of the batch, made to sum to
    one, are to be those of its nearest ones of its own class, by what items are ranked by. It is
    the cross-entropy of that, over all pairs of an item and one of these.

    Args:
        class_weight: of the second term.
        neighbours: weight of the third one.
        nearest: how many neighbours an item has in it, at most.
    """

    unit = False

    def __init__(
        self, class_weight: float = 4.0, neighbours: float = 0.0, nearest: int = 4
    ) -> None:
        super().__init__()
        if not 0 <= neighbours < math.inf:
            raise InputError(f"neighbours is {neighbours}; expected a number, zero or more")
        if not isinstance(nearest, int) or nearest < 1:
            raise InputError(f"nearest is {nearest!r}; expected a whole number, one or more")
        self.class_weight, self.neighbours, self.nearest = class_weight, neighbours, nearest

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        codes: Tensor | None = None,
        shares: Tensor | None = None,
        buckets: Tensor | None = None,
        ranking: Tensor | None = None,
        classes: Tensor | None = None,
    ) -> Tensor:
        """The mean over items of all terms.

        Args:
            embeddings: the hash network's outputs [B, d].
            labels: groups [B]; the codes say all about them.
            codes: the buckets of each item [B, k].
            shares: what of each bucket is the item's class's [B, d], from 0 to 1; None leaves the
                second term out.
            buckets: the shares are those of these only [B, n], and [B, n] themselves: few of
                thousands are not zero. One that comes twice has the sum of both.
            ranking: what the items are ranked by [B, m]; None leaves the third term out.
            classes: of the items [B], which are their groups' by default.
        """
        if codes is None:
            raise InputError('the loss "codes" is one of stage 2: stage 1 has no codes')
        likely = functional.log_softmax(embeddings, 1)
        value = -likely.gather(1, check_codes(embeddings, codes)).mean()
        if shares is not None and self.class_weight:
            held = likely if buckets is None else likely.gather(1, buckets)
            value = value - self.class_weight * (held + shares.log()).logsumexp(1).mean()
        if ranking is not None and self.neighbours:
            classes = labels if classes is None else classes
            items, near = nearest_positives(ranking, classes, self.nearest)
            if len(items):
                chances = likely.exp()
                tiny = torch.finfo(chances.dtype).tiny  # where a chance is no number any more
                meet = (chances @ chances.t()).clamp(min=tiny).log()
                itself = torch.eye(len(meet), dtype=torch.bool, device=meet.device)
                partner = functional.log_softmax(meet.masked_fill(itself, -torch.inf), 1)
                value = value - self.neighbours * partner[items, near].mean()
        return value


def nearest_positives(ranking: Tensor, classes: Tensor, nearest: int) -> tuple[Tensor, Tensor]:
    """Each item with the nearest others of its class in a batch, as two index vectors.

    Args:
        ranking: vectors [B, m].
        classes: of the items [B].
        nearest: how many of each item, or as many as there are.
    """
    same = classes[:, None] == classes
    same.fill_diagonal_(False)
    distances = torch.cdist(ranking, ranking).masked_fill(~same, torch.inf)
    found = distances.topk(min(nearest, len(classes)), largest=False)
    items, places = found.values.isfinite().nonzero(as_tuple=True)
    return items, found.indices[items, places]


def _of_library(**given: Any) -> Callable[..., MetricLoss]:
    """Makes a loss of pytorch-metric-learning, which is imported only then."""

    def make(**options: Any) -> MetricLoss:
        from flowhash.learn.library_losses import library_loss

        return library_loss(**given, **options)

    return make


LOSSES: dict[str, Callable[..., MetricLoss]] = {
    "triplet": TripletLoss,
    "npairs": NPairsLoss,
    "codes": CodeLoss,
    "contrastive": _of_library(name="ContrastiveLoss"),
    "lifted": _of_library(name="LiftedStructureLoss"),
    "multi-similarity": _of_library(name="MultiSimilarityLoss", similarity=True),
    "circle": _of_library(name="CircleLoss", similarity=True),
    "library": _of_library(),
}


def make_loss(name: str, /, **options: Any) -> MetricLoss:
    """The loss called ``name``, with its options.

    Raises:
        InputError: no such loss, or no such option.
    """
    if name not in LOSSES:
        raise InputError(f"loss is {name!r}; choose one of {', '.join(map(repr, LOSSES))}")
    try:
        return LOSSES[name](**options)
    except TypeError as error:
        raise InputError(f"the loss {name!r} cannot take {options}: {error}") from error
