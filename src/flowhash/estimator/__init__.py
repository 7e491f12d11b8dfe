"""The scikit-learn surface: learned buckets where ``NearestNeighbors`` stands."""

from __future__ import annotations

from flowhash.extras import require

require("sklearn", "learn")
require("torch", "learn")

from flowhash.estimator.exceptions import EXPECTED_FAILED_CHECKS  # noqa: E402
from flowhash.estimator.flow_hasher import FlowHasher  # noqa: E402

__all__ = ["EXPECTED_FAILED_CHECKS", "FlowHasher"]
