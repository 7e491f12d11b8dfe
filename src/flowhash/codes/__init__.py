"""Codes: which k of d buckets an item or a class activates.

``topk_codes`` reads a code off the network's activations (Eq. 1); ``assign_codes`` finds the codes
of a mini-batch's classes that are optimal together (Theorem 1).
"""

from flowhash.codes.assignment import Assignment, assign_codes
from flowhash.codes.objectives import class_means, item_objective, objective, upper_bound_gap
from flowhash.codes.top_buckets import ordered_buckets, topk_codes

__all__ = [
    "Assignment",
    "assign_codes",
    "class_means",
    "item_objective",
    "objective",
    "ordered_buckets",
    "topk_codes",
    "upper_bound_gap",
]
