"""Uneven buckets: the skew of a table's loads, and the rows that queries meet because of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NODES = 64  # of the quadrature: more change no digit that is shown


class Met(NamedTuple):
    """Rows that a batch reads, each opened bucket once; rows that a query is compared with.

    A row that lies in two buckets of a query is compared twice.
    """

    read: float
    compared: float


def skew_of(loads: NDArray[np.int64]) -> float:
    """The skew of k = 1 from the loads of buckets [d]: d Σ load² / n²; 1 if all are equal."""
    total = float(loads.sum())
    return len(loads) * float((loads.astype(float) ** 2).sum()) / total**2


def trained_skews(results: Path) -> dict[int, float]:
    """For each k the larger skew of the two losses: trained CIFAR-100 codes, the train table."""
    found: dict[int, float] = {}
    for loss in ("triplet", "npairs"):
        for row in json.loads((results / f"cifar100-{loss}-refined-classifier.json").read_text()):
            if row["method"] == "flowhash" and row["table"] == "train":
                skew = row["expected"] / row["suf"]
                found[row["k"]] = max(found.get(row["k"], 0.0), skew)
    return found


def opened_share(shares: NDArray[np.float64], batch: int) -> NDArray[np.float64]:
    """The probability that one of the queries of a batch opens a bucket, for each bucket's own."""
    return 1.0 - (1.0 - np.minimum(1.0, shares)) ** batch


def met_rows(items: float, loads: NDArray[Any], batch: int) -> Met:
    """Rows that queries meet in buckets with known loads [d], which hold k rows an item in all.

    Queries ask as items lie: one opens a bucket with probability load / items.
    """
    rows = loads.astype(np.float64)
    return Met(
        read=float(rows @ opened_share(rows / items, batch)),
        compared=float(rows @ rows) / items,
    )


def expected_rows(items: float, buckets: int, active: int, skew: float, batch: int) -> Met:
    """The same where only the skew is known: as if loads were lognormal.

    With k > 1 a skew below 1 says that the buckets of a code go together, so that a query finds
    the same items in all of them. The loads themselves cannot be more even than all equal, which
    is 1: it is taken for them then.
    """
    skew = max(1.0, skew)
    spread = math.sqrt(math.log(skew))  # the second moment of exp(s z) over its mean² is exp(s²)
    places, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights *= buckets / math.sqrt(2 * math.pi)
    loads = items * active / buckets * np.exp(spread * places - spread**2 / 2)
    return Met(
        read=float(weights @ (loads * opened_share(loads / items, batch))),
        compared=items * active**2 * skew / buckets,
    )
