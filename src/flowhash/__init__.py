"""FlowHash: learn a search index together with an embedding.

The package imports nothing heavy by itself; the names below load their room when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flowhash.extras import require

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
    from flowhash.encoder import Encoded, Encoder
    from flowhash.errors import (
        DamagedFileError,
        ForbiddenError,
        InputError,
        LockedTableError,
        MissingExtraError,
        SolverError,
        StorageError,
        TrainingError,
    )
    from flowhash.estimator import FlowHasher
    from flowhash.table import HashTable, Hits, Item, Stats, Stored

__version__ = "0.1.0"

__all__ = [
    "Assignment",
    "DamagedFileError",
    "Encoded",
    "Encoder",
    "FlowHasher",
    "ForbiddenError",
    "HashTable",
    "Hits",
    "InputError",
    "Item",
    "LockedTableError",
    "MissingExtraError",
    "SolverError",
    "Stats",
    "StorageError",
    "Stored",
    "TrainingError",
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
        room = "flowhash.codes"
        if name.endswith("Error"):
            room = "flowhash.errors"
        elif name in ("HashTable", "Hits", "Item", "Stats", "Stored"):
            room = "flowhash.table"
        elif name in ("Encoded", "Encoder"):
            require("torch", "learn")
            room = "flowhash.encoder"
        elif name == "FlowHasher":
            require("torch", "learn")
            room = "flowhash.estimator"
        return getattr(importlib.import_module(room), name)
    raise AttributeError(f"module 'flowhash' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
