"""Networks: a backbone that makes features of items, and a head that makes embeddings of features.

``build_backbone`` makes any backbone from a small dict, which is what an encoder stores.
"""

from flowhash.networks.backbone_registry import BACKBONES, build_backbone, custom_backbone
from flowhash.networks.embedding_network import EmbeddingNetwork

__all__ = ["BACKBONES", "EmbeddingNetwork", "build_backbone", "custom_backbone"]
