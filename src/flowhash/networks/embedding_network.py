"""A backbone with a last layer, what both stages train; and the outputs of networks in batches."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flowhash.errors import InputError, reason
from flowhash.networks.backbones import PlainVectors

SHORTEST = 1e-6  # rows that are shorter count as zero
SMALLEST = 1e-30  # probability, whose logarithm is finite
# Words of errors about an item's shape, and of those about the machine, which may name sizes too.
OF_SHAPES = ("shape", "size", "dim", "channel", "expected", "indices", "elements")
OF_MACHINES = ("memory", "alloc", "cuda", "cudnn", "cublas", "device", "hip", "mps")


class EmbeddingNetwork(nn.Module):
    """Features, then one fully connected layer: [n, …] -> [n, outputs].

    Args:
        backbone: makes features; has ``features`` (how many) and ``spec`` (its description).
        outputs: of the last layer: the embedding's length m, or d buckets. None leaves the layer
            out, so that the features are the embedding.
        unit: L2-normalise the outputs, as triplet losses have it.
        order: of a hash network: turns its outputs into scores by which buckets are opened.
    """

    def __init__(
        self,
        backbone: nn.Module,
        outputs: int | None,
        unit: bool = False,
        order: BucketOrder | None = None,
    ) -> None:
        super().__init__()
        features = getattr(backbone, "features", None)
        if not isinstance(features, int) or not isinstance(getattr(backbone, "spec", None), dict):
            raise InputError(
                f"the backbone {type(backbone).__name__} does not say how many features it makes; "
                "wrap it: flowhash.networks.custom_backbone(module, features=…)"
            )
        if outputs is not None and outputs < 1:
            raise InputError(f"outputs is {outputs}; expected one or more")
        self.backbone = backbone
        try:
            self.head: nn.Module = (
                nn.Identity() if outputs is None else nn.Linear(features, outputs)
            )
        except RuntimeError as error:  # torch's words for it are many lines
            raise InputError(
                f"a last layer of {features} × {outputs} weights does not fit into memory; choose "
                "fewer outputs, which are buckets of a hash network"
            ) from error
        self.outputs: int = features if outputs is None else outputs
        self.unit = unit
        self.order = order
        if isinstance(self.head, nn.Linear):
            nn.init.xavier_uniform_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    @property
    def spec(self) -> dict[str, Any]:
        """What it takes to build it again, without its weights."""
        headless = isinstance(self.head, nn.Identity)
        return {
            "backbone": self.backbone.spec,
            "outputs": None if headless else self.outputs,
            "unit": self.unit,
            **({} if self.order is None else {"order": self.order.spec}),
        }

    @property
    def passes_through(self) -> bool:
        """Whether it gives vectors as they are: no backbone, no last layer."""
        return isinstance(self.backbone, PlainVectors) and isinstance(self.head, nn.Identity)

    def forward(self, items: Tensor) -> Tensor:
        """The embeddings [n, outputs]."""
        return self.finish(self.backbone(items))

    def finish(self, features: Tensor) -> Tensor:
        """The embeddings [n, outputs] of features [n, features]: last layer, then unit length."""
        made: Tensor = self.head(features)
        if self.order is not None:
            made = self.order(made)
        return unit_vectors(made) if self.unit else made


class BucketOrder(nn.Module):
    """Scores of buckets from a hash network's outputs: first the class, then the group in it.

    Outputs are logits of buckets, trained by cross-entropy. A class's probability is the sum over
    its shares of the buckets; a bucket's score is its own log-probability plus ``weight`` times
    that of the classes in it. So the buckets of the likeliest class are opened first, and those of
    the next one before a stray bucket of a class that is unlikely.

    Args:
        shares: how much of each bucket is each class's [classes, d], columns of sum one, or zero
            for a bucket that nobody has.
        weight: of the class; with 0 the scores are the outputs, and the shares only tell
            ``flowhash.learn.adapt_encoder`` whose buckets they are.
    """

    shares: Tensor

    def __init__(self, shares: Tensor, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self.register_buffer("shares", shares)

    @property
    def spec(self) -> dict[str, Any]:
        """What it takes to build it again, without its shares."""
        return {"classes": len(self.shares), "weight": self.weight}

    def forward(self, outputs: Tensor) -> Tensor:
        """The scores [n, d]."""
        if not self.weight:
            return outputs
        likely = nn.functional.log_softmax(outputs, 1)
        classes = likely.exp() @ self.shares.t()
        return likely + self.weight * (classes @ self.shares).clamp(min=SMALLEST).log()


def unit_vectors(values: Tensor) -> Tensor:
    """Rows of length one; a row that is zero stays zero and gets no gradient.

    A new head maps features that are all zero to zero exactly. The usual division by the length,
    kept from zero by a tiny number, has a gradient of 1e12 there, and one such item in a batch ends
    a training.
    """
    lengths = values.norm(dim=1, keepdim=True)
    scaled = values / lengths.clamp(min=SHORTEST)
    return torch.where(lengths > SHORTEST, scaled, torch.zeros_like(values))


def device_of(name: str) -> torch.device:
    """The device called ``name``; "auto" is the GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise InputError(f'device is {name!r}; expected "auto", "cpu" or "cuda"') from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f'device is {name!r}, but torch finds no GPU here; use "auto" or "cpu"')
    return device


@functools.cache
def _survive_forks() -> None:
    """Let a child that is forked from now on compute with one thread.

    The threads of OpenMP stay behind when a process forks that has used them: a child that computes
    with several, as multiprocessing's on Linux do, would wait for them for ever.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def run_networks(
    networks: Sequence[nn.Module], batches: Iterable[NDArray[np.float32]], device: torch.device,
    method: str = "__call__",
) -> Iterator[list[Any]]:  # fmt: skip
    """What each network makes of each batch [n, …], as float32 [n, outputs] arrays.

    Of a network whose ``method`` gives several tensors it is a tuple of arrays. The networks are
    set to evaluation for the time of each batch and back afterwards.

    Raises:
        InputError: a network cannot take such items.
    """
    _survive_forks()
    for batch in batches:
        trained = [part for network in networks for part in network.modules() if part.training]
        try:
            # Where none is in training nothing is set: a single vector would notice.
            for network in networks if trained else ():
                network.eval()
            with torch.inference_mode():
                inputs = torch.from_numpy(batch).to(device)
                made = [_made(network, inputs, method) for network in networks]
        finally:
            for part in trained:  # one by one: parts of a network may be frozen
                part.training = True
        yield made


def _made(network: nn.Module, inputs: Tensor, method: str) -> Any:
    try:
        made = getattr(network, method)(inputs)
        several = made if isinstance(made, tuple) else (made,)
        arrays = tuple(part.float().cpu().numpy() for part in several)
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if not _is_about_shapes(error):
            raise
        raise InputError(
            f"the network cannot take items of shape {list(inputs.shape[1:])}: {reason(error)}. "
            "Give items like those it was trained on"
        ) from error
    return arrays if isinstance(made, tuple) else arrays[0]


def _is_about_shapes(error: Exception) -> bool:
    """Whether the items are to blame; torch has one type of error for nearly everything."""
    words = str(error).casefold()
    about_machine = isinstance(error, torch.OutOfMemoryError) or any(
        word in words for word in OF_MACHINES
    )
    return not about_machine and any(word in words for word in OF_SHAPES)
