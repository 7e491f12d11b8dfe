"""Hypothesis profiles: the same examples every time, and no deadline, since kernels compile."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "flowhash",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("flowhash")
