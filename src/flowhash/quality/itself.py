"""The quick form of the metrics, for validation: every item is searched among the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import topk_codes
from flowhash.errors import InputError
from flowhash.quality.groups import normalised_information
from flowhash.quality.index import LabelledTable, Queries
from flowhash.quality.search import measure


@dataclass(frozen=True)
class Quality:
    """What a search among labelled items came to.

    Attributes:
        precision: Pr@K for each K asked for, each from 0 to 1.
        speed_up: SUF, items in the table over items scanned at the plain k buckets.
        loads: items in each bucket [d].
        nmi: normalised mutual information of buckets and labels at k = 1, else None.
    """

    precision: dict[int, float]
    speed_up: float
    loads: NDArray[np.int64]
    nmi: float | None


def search_quality(
    activations: NDArray[np.float32],
    embeddings: NDArray[np.float32],
    labels: NDArray[np.int64],
    active: int,
    tops: tuple[int, ...] = (1,),
) -> Quality:
    """Search each item among all the others, by the paper's rules; see ``measure``.

    Args:
        activations: [n, d].
        embeddings: [n, dim], for ranking.
        labels: [n].
        active: k.
        tops: the K of Pr@K.
    """
    count = len(labels)
    if count < 2 or max(tops) > count - 1:
        raise InputError(
            f"there are {count} items and Pr@{max(tops)} is asked for; expected more items"
        )
    classes = int(labels.max()) + 1
    index = LabelledTable(activations.shape[1], embeddings.shape[1], active, classes)
    index.add(topk_codes(activations, active), embeddings, labels)
    found = measure(index, [Queries(activations, embeddings, labels, np.arange(count))], tops)
    nmi = normalised_information(index.counts) if active == 1 else None
    return Quality(found.precision, found.speed_up, index.loads, nmi)
