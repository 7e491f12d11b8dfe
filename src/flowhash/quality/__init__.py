"""How good a search is: precision, how much it scans, how pure the buckets are.

Everything goes through the hash table, in blocks of queries; no n×n matrix is made.
"""

from flowhash.quality.bootstrap import percentile_interval, resampled_sums
from flowhash.quality.groups import (
    adjusted_information,
    bucket_nmi,
    expected_speed_up,
    normalised_information,
    purity,
    scanned_variance,
)
from flowhash.quality.index import LabelledTable, Queries
from flowhash.quality.itself import Quality, search_quality
from flowhash.quality.search import Exact, Measured, exact_answers, measure

__all__ = [
    "Exact",
    "LabelledTable",
    "Measured",
    "Quality",
    "Queries",
    "adjusted_information",
    "bucket_nmi",
    "exact_answers",
    "expected_speed_up",
    "measure",
    "normalised_information",
    "percentile_interval",
    "purity",
    "resampled_sums",
    "scanned_variance",
    "search_quality",
]
