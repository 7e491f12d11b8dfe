"""Networks: a backbone that makes features of items, and a head that makes embeddings of features.

``build_backbone`` makes any backbone from a small dict, which is what an encoder stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.networks.backbones import (
        BACKBONES as BACKBONES,
        build_backbone as build_backbone,
        custom_backbone as custom_backbone,
    )
    from flowhash.networks.embedding_network import EmbeddingNetwork as EmbeddingNetwork
    from flowhash.networks.pretrained_backbones import (
        pretrained_preprocessing as pretrained_preprocessing,
    )

if TYPE_CHECKING:  # for other rooms
    from flowhash.networks.backbones import (
        VECTOR_BACKBONES as VECTOR_BACKBONES,
        BaseEmbeddings as BaseEmbeddings,
        MirroredBackbone as MirroredBackbone,
        PlainVectors as PlainVectors,
    )
    from flowhash.networks.embedding_network import (
        BucketOrder as BucketOrder,
        device_of as device_of,
        run_networks as run_networks,
        unit_vectors as unit_vectors,
    )

__all__, __getattr__, __dir__ = lazy_exports(__spec__)
