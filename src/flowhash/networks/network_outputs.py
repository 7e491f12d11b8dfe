"""Outputs of networks for many items, batch by batch, without gradients."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flowhash.errors import InputError, reason

# Words of errors about an item's shape, and of those about the machine, which may name sizes too.
OF_SHAPES = ("shape", "size", "dim", "channel", "expected", "indices", "elements")
OF_MACHINES = ("memory", "alloc", "cuda", "cudnn", "cublas", "device", "hip", "mps")


@functools.cache
def _survive_forks() -> None:
    """Let a child that is forked from now on compute with one thread.

    The threads of OpenMP stay behind when a process forks that has used them: a child that computes
    with several, as multiprocessing's on Linux do, would wait for them for ever.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def run_networks(
    networks: Sequence[nn.Module], batches: Iterable[NDArray[np.float32]], device: torch.device
) -> Iterator[list[NDArray[np.float32]]]:
    """What each network makes of each batch [n, …], as float32 [n, outputs] arrays.

    The networks are set to evaluation for the time of each batch and back afterwards.

    Raises:
        InputError: a network cannot take such items.
    """
    _survive_forks()
    for batch in batches:
        before = [(part, part.training) for network in networks for part in network.modules()]
        try:
            with torch.inference_mode():
                inputs = torch.from_numpy(batch).to(device)
                made = [_made(network.eval(), inputs) for network in networks]
        finally:
            for part, training in before:  # one by one: parts of a network may be frozen
                part.training = training
        yield made


def _made(network: nn.Module, inputs: Tensor) -> NDArray[np.float32]:
    try:
        made: NDArray[np.float32] = network(inputs).float().cpu().numpy()
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if not _is_about_shapes(error):
            raise
        raise InputError(
            f"the network cannot take items of shape {list(inputs.shape[1:])}: {reason(error)}. "
            "Give items like those it was trained on"
        ) from error
    return made


def _is_about_shapes(error: Exception) -> bool:
    """Whether the items are to blame; torch has one type of error for nearly everything."""
    words = str(error).casefold()
    about_machine = isinstance(error, torch.OutOfMemoryError) or any(
        word in words for word in OF_MACHINES
    )
    return not about_machine and any(word in words for word in OF_SHAPES)
