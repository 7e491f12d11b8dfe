"""Queries through an encoder's networks, without the detours for all the forms items may have."""

from __future__ import annotations

import threading

import numpy as np
import torch
from numpy.typing import NDArray

from flowhash.encoder import Encoded, Encoder
from flowhash.networks import device_of

IMAGES_AT_ONCE = 64  # more would need more memory, and gain nothing


class Embedder:
    """Makes what ``Encoder.encode`` makes, of checked arrays, in many threads at once.

    ``Encoder.encode`` looks at every part of the networks before and after each batch, because they
    may be in training. A server's are not.

    Args:
        encoder: is moved to the GPU if there is one.
        threads: of torch, for one batch. None gives images all cores; for vectors a second thread
            costs more than it brings.
    """

    def __init__(self, encoder: Encoder, threads: int | None) -> None:
        self.encoder = encoder
        self.inputs = encoder.input_dim  # looked at by every request, and not quick to find
        self._device = device_of("auto")
        self._networks = encoder.networks.to(self._device).eval()
        images = encoder.preprocessing.kind == "images"
        self._at_once = IMAGES_AT_ONCE if images else None
        self._threads = threads or (torch.get_num_threads() if images else 1)
        self._local = threading.local()

    def __call__(self, items: NDArray[np.float32] | NDArray[np.uint8]) -> Encoded:
        """Embeddings and activations of vectors [n, dim] or images [n, height, width, 3]."""
        if not hasattr(self._local, "told"):
            # Each thread has its own number. One that was not told has a team of helpers turn
            # idly for every small product, which took eighty times as long.
            torch.set_num_threads(self._threads)
            self._local.told = True
        step = self._at_once or len(items)
        made = [self._some(items[start : start + step]) for start in range(0, len(items), step)]
        embeddings, activations = made[0]
        if len(made) > 1:
            embeddings = np.concatenate([part[0] for part in made])
            activations = np.concatenate([part[1] for part in made])
        encoder = self.encoder
        return Encoded(embeddings, activations, encoder.active, encoder.fingerprint)

    def _some(
        self, items: NDArray[np.float32] | NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        ready = torch.from_numpy(self.encoder.preprocessing(items))
        with torch.inference_mode():
            made = self._networks.both(ready.to(self._device))
            embeddings, activations = (
                np.ascontiguousarray(part.float().cpu().numpy()) for part in made
            )
        return embeddings, activations
