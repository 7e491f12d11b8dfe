"""How good a search is: precision, how much it scans, how pure the buckets are.

Everything goes through the hash table, in blocks of queries; no n×n matrix is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.quality.bucket_purity import (
        adjusted_information as adjusted_information,
        bucket_nmi as bucket_nmi,
        expected_speed_up as expected_speed_up,
        normalised_information as normalised_information,
        purity as purity,
        scanned_variance as scanned_variance,
    )
    from flowhash.quality.paired_bootstrap import (
        percentile_interval as percentile_interval,
        resampled_sums as resampled_sums,
    )
    from flowhash.quality.retrieval_metrics import (
        Exact as Exact,
        LabelledTable as LabelledTable,
        Measured as Measured,
        Quality as Quality,
        Queries as Queries,
        exact_answers as exact_answers,
        measure as measure,
        search_quality as search_quality,
    )

if TYPE_CHECKING:  # for other rooms
    from flowhash.quality.paired_bootstrap import (
        CONFIDENCE_LEVEL as CONFIDENCE_LEVEL,
        RESAMPLES as RESAMPLES,
    )

__all__, __getattr__, __dir__ = lazy_exports(__spec__)
