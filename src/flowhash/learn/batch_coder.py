"""``BatchCoder``, the discrete half of Algorithm 1: class means, optimal codes, what they cost."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import assign_codes, class_means, item_objective, upper_bound_gap


@dataclass
class BatchCoder:
    """Codes of a batch by minimum-cost flow, each batch started from the last one's prices.

    Attributes:
        active: k.
        penalty: λ of the class problem.
        prices: the buckets' prices after the last batch, or None; part of a checkpoint.
        loads: how many classes chose each bucket since the last report, or None.
        seconds: spent here since the last report.
        objective: ĝ of the last batch.
    """

    active: int
    penalty: float
    prices: NDArray[np.float64] | None = None
    loads: NDArray[np.int64] | None = None
    seconds: float = 0.0
    objective: float = 0.0

    def codes(
        self, embeddings: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The code of each item [B, k]: that of its class, optimal for the batch (lines 3 and 4).

        Args:
            embeddings: f(x) of the global batch [B, d].
            labels: [B].
        """
        start = time.perf_counter()
        means, classes = class_means(embeddings, labels)
        found = assign_codes(means, self.active, self.penalty, prices=self.prices)
        self.prices, self.objective = found.prices, found.objective
        counted = np.bincount(found.codes.ravel(), minlength=embeddings.shape[1])
        self.loads = counted if self.loads is None else self.loads + counted
        codes = found.codes[np.searchsorted(classes, labels)].astype(np.int64)
        self.seconds += time.perf_counter() - start
        return codes

    def report(
        self,
        codes: NDArray[np.int64],
        embeddings: NDArray[np.float32],
        labels: NDArray[np.int64],
    ) -> dict[str, float]:
        """ĝ, g and M(θ) of the last batch, and how evenly buckets were chosen since the last call.

        g is of the items with the penalty that makes m·ĝ + M its upper bound: λ / m.
        """
        items = len(labels) / len(np.unique(labels))
        values = {
            "class_objective": self.objective,
            "item_objective": item_objective(codes, embeddings, labels, self.penalty / items),
            "bound_gap": upper_bound_gap(embeddings, labels, self.active),
        }
        if self.loads is not None:
            share = self.loads / max(1, self.loads.sum())
            positive = share[share > 0]
            values["buckets_used"] = float((self.loads > 0).mean())
            values["buckets_effective"] = float(np.exp(-(positive * np.log(positive)).sum()))
            values["largest_load"] = float(share.max())
        self.loads, self.seconds = None, 0.0
        return values
