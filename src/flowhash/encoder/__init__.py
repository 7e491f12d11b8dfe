"""The encoder: base network, hash network and preprocessing, saved as one artefact."""

from flowhash.encoder.encoder import Encoder
from flowhash.encoder.parts import Encoded

__all__ = ["Encoded", "Encoder"]
