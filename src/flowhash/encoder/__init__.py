"""The encoder: base network, hash network and preprocessing, saved as one artefact."""

from flowhash.encoder.encoded_items import Encoded
from flowhash.encoder.encoder import Encoder

__all__ = ["Encoded", "Encoder"]
