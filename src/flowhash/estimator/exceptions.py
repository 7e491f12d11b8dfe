"""Which of scikit-learn's checks do not pass, and why."""

from __future__ import annotations

EXPECTED_FAILED_CHECKS: dict[str, str] = {}
