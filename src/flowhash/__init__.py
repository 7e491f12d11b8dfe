"""FlowHash: learn a search index together with an embedding.

The package imports nothing heavy by itself; the names below load their room when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.codes import (
        Assignment as Assignment,
        BalancedClusters as BalancedClusters,
        assign_codes as assign_codes,
        balanced_kmeans as balanced_kmeans,
        class_means as class_means,
        item_objective as item_objective,
        objective as objective,
        ordered_buckets as ordered_buckets,
        topk_codes as topk_codes,
        upper_bound_gap as upper_bound_gap,
    )
    from flowhash.encoder import Encoded as Encoded, Encoder as Encoder
    from flowhash.errors import (
        DamagedFileError as DamagedFileError,
        ForbiddenError as ForbiddenError,
        InputError as InputError,
        LockedTableError as LockedTableError,
        MissingExtraError as MissingExtraError,
        SolverError as SolverError,
        StorageError as StorageError,
        TrainingError as TrainingError,
    )
    from flowhash.estimator import FlowHasher as FlowHasher
    from flowhash.table import (
        HashTable as HashTable,
        Hits as Hits,
        Item as Item,
        Stats as Stats,
        Stored as Stored,
    )

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = lazy_exports(__spec__)
__all__ += ["__version__"]
