"""The scikit-learn surface: learned buckets where ``NearestNeighbors`` stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.estimator.flow_hasher import (
        EXPECTED_FAILED_CHECKS as EXPECTED_FAILED_CHECKS,
        FlowHasher as FlowHasher,
    )

__all__, __getattr__, __dir__ = lazy_exports(__spec__, ("sklearn", "torch"), "learn")
