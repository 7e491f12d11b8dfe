"""Outputs of networks for many items, batch by batch, without gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn


def outputs(
    networks: Sequence[nn.Module], batches: Iterable[NDArray[np.float32]], device: torch.device
) -> Iterator[list[NDArray[np.float32]]]:
    """What each network makes of each batch [n, …], as float32 [n, outputs] arrays.

    The networks are set to evaluation for the time of each batch and back afterwards.
    """
    for batch in batches:
        before = [(part, part.training) for network in networks for part in network.modules()]
        try:
            with torch.inference_mode():
                inputs = torch.from_numpy(batch).to(device)
                made = [network.eval()(inputs).float().cpu().numpy() for network in networks]
        finally:
            for part, training in before:  # one by one: parts of a network may be frozen
                part.training = training
        yield made
