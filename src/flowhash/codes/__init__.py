"""Codes: which k of d buckets an item or a class activates.

``topk_codes`` reads a code off the network's activations (Eq. 1); ``assign_codes`` finds the codes
of a mini-batch's classes that are optimal together (Theorem 1). ``balanced_kmeans`` makes clusters
that have room for so many items and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.codes.assignment import Assignment as Assignment, assign_codes as assign_codes
    from flowhash.codes.balanced_means import (
        BalancedClusters as BalancedClusters,
        balanced_kmeans as balanced_kmeans,
    )
    from flowhash.codes.objectives import (
        class_means as class_means,
        item_objective as item_objective,
        objective as objective,
        upper_bound_gap as upper_bound_gap,
    )
    from flowhash.codes.top_buckets import (
        ordered_buckets as ordered_buckets,
        topk_codes as topk_codes,
    )

if TYPE_CHECKING:  # for other rooms
    from flowhash.codes.capped_flow import capped_assignment as capped_assignment
    from flowhash.codes.ortools_solver import ortools_codes as ortools_codes

__all__, __getattr__, __dir__ = lazy_exports(__spec__)
