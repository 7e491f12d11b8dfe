"""How good a search is: precision, how much it scans, how pure the buckets are.

Everything goes through the hash table, in blocks of queries; no n×n matrix is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import ordered_buckets, topk_codes
from flowhash.errors import InputError
from flowhash.table import HashTable

QUERIES_AT_ONCE = 4096


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
    """Search each item among all the others, by the paper's rules.

    A query opens its k best buckets; if they hold fewer than K other items, further ones in the
    order of its activations until there are K. The item itself counts neither as found nor as
    scanned, and Pr@K divides by K always.

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
    codes = topk_codes(activations, active)
    table = HashTable.create(buckets=activations.shape[1], dim=embeddings.shape[1], active=active)
    table.add(codes, embeddings, np.arange(count))
    hits = np.zeros(len(tops))
    scanned = 0
    for start in range(0, count, QUERIES_AT_ONCE):
        rows = slice(start, start + QUERIES_AT_ONCE)
        order = ordered_buckets(activations[rows])
        if active > 1:  # buckets overlap: only a search knows how many items they hold together
            scanned += int(table.search(order, embeddings[rows], top=1).scanned.sum())
        own = np.arange(count)[rows]
        for place, top in enumerate(tops):
            hits[place] += _matches(table, order, embeddings[rows], labels, own, top)
    loads = np.bincount(codes.ravel(), minlength=activations.shape[1]).astype(np.int64)
    if active == 1:
        scanned = int(np.square(loads).sum())
    precision = {top: float(hits[place] / (count * top)) for place, top in enumerate(tops)}
    # Every query finds itself in its own buckets; it is taken out of both numbers.
    mean_scanned = max(scanned / count - 1, 1 / count)
    nmi = bucket_nmi(codes[:, 0], labels) if active == 1 else None
    return Quality(precision, (count - 1) / mean_scanned, loads, nmi)


def _matches(
    table: HashTable,
    order: NDArray[np.int32],
    embeddings: NDArray[np.float32],
    labels: NDArray[np.int64],
    own: NDArray[np.int64],
    top: int,
) -> int:
    """How many of the first ``top`` other items have the query's label, over all queries."""
    found = table.search(order, embeddings, top=top + 1, at_least=top + 1)
    others = (found.ids != own[:, None]) & (np.arange(top + 1) < found.counts[:, None])
    # Where an equally near twin pushed the query itself out, the last hit is one too many.
    kept = others & (np.cumsum(others, axis=1) <= top)
    same = labels[np.where(kept, found.ids, 0)] == labels[own][:, None]
    return int((kept & same).sum())


def bucket_nmi(buckets: NDArray[np.int32], labels: NDArray[np.int64]) -> float:
    """Normalised mutual information of two groupings, by the mean of their entropies.

    Args:
        buckets: one bucket an item [n].
        labels: one class an item [n].
    """
    _, rows = np.unique(buckets, return_inverse=True)
    _, columns = np.unique(labels, return_inverse=True)
    pairs, joint = np.unique(
        rows.astype(np.int64) * (columns.max() + 1) + columns, return_counts=True
    )
    total = len(labels)
    row_share = np.bincount(rows) / total
    column_share = np.bincount(columns) / total
    share = joint / total
    expected = row_share[pairs // (columns.max() + 1)] * column_share[pairs % (columns.max() + 1)]
    information = float((share * np.log(share / expected)).sum())
    entropies = -float((row_share * np.log(row_share)).sum())
    entropies += -float((column_share * np.log(column_share)).sum())
    return 1.0 if entropies == 0 else max(0.0, 2 * information / entropies)
