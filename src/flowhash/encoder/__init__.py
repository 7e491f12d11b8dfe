"""The encoder: base network, hash network and preprocessing, saved as one artefact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.encoder.encoder import Encoded as Encoded, Encoder as Encoder

if TYPE_CHECKING:  # for other rooms
    from flowhash.encoder.encoder import (
        check_table as check_table,
        moves_vectors as moves_vectors,
        search_encoded as search_encoded,
    )
    from flowhash.encoder.item_batches import as_numpy as as_numpy

__all__, __getattr__, __dir__ = lazy_exports(__spec__, ("torch",), "learn")
