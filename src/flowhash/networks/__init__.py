"""Networks: a backbone that makes features of items, and a head that makes embeddings of features.

``build_backbone`` makes any backbone from a small dict, which is what an encoder stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.networks.backbone_registry import (
        BACKBONES as BACKBONES,
        build_backbone as build_backbone,
        custom_backbone as custom_backbone,
    )
    from flowhash.networks.embedding_network import EmbeddingNetwork as EmbeddingNetwork

if TYPE_CHECKING:  # for other rooms
    from flowhash.networks.backbone_registry import VECTOR_BACKBONES as VECTOR_BACKBONES
    from flowhash.networks.embedding_network import (
        MirroredBackbone as MirroredBackbone,
        device_of as device_of,
        unit_vectors as unit_vectors,
    )
    from flowhash.networks.network_outputs import run_networks as run_networks
    from flowhash.networks.vector_backbones import PlainVectors as PlainVectors

__all__, __getattr__, __dir__ = lazy_exports(__spec__)
