"""How good a search is: precision, how much it scans, how pure the buckets are.

Everything goes through the hash table, in blocks of queries; no n×n matrix is made.
"""

from flowhash.quality.bucket_purity import (
    adjusted_information,
    bucket_nmi,
    expected_speed_up,
    normalised_information,
    purity,
    scanned_variance,
)
from flowhash.quality.labelled_table import LabelledTable, Queries
from flowhash.quality.paired_bootstrap import percentile_interval, resampled_sums
from flowhash.quality.retrieval_metrics import (
    Exact,
    Measured,
    Quality,
    exact_answers,
    measure,
    search_quality,
)

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
