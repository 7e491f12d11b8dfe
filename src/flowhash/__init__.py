"""FlowHash: learn a search index together with an embedding.

The package imports nothing heavy by itself; the names below load their room when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowhash.codes import (
        Assignment,
        assign_codes,
        class_means,
        item_objective,
        objective,
        ordered_buckets,
        topk_codes,
        upper_bound_gap,
    )
    from flowhash.errors import InputError, MissingExtraError, SolverError

__version__ = "0.1.0"

__all__ = [
    "Assignment",
    "InputError",
    "MissingExtraError",
    "SolverError",
    "__version__",
    "assign_codes",
    "class_means",
    "item_objective",
    "objective",
    "ordered_buckets",
    "topk_codes",
    "upper_bound_gap",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its room on first use (PEP 562)."""
    if name in __all__:
        room = "flowhash.errors" if name.endswith("Error") else "flowhash.codes"
        return getattr(importlib.import_module(room), name)
    raise AttributeError(f"module 'flowhash' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
