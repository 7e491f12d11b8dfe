"""Whom an error of a network blames: the items, or the machine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flowhash.errors import InputError
from flowhash.networks.embedding_network import run_networks


class Failing(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, items: Tensor) -> Tensor:
        raise self.error


def run(network: nn.Module, *shape: int) -> list[list[np.ndarray]]:
    return list(run_networks([network], [np.zeros(shape, np.float32)], torch.device("cpu")))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate 400000000000 bytes. Error code 12 (Cannot allocate memory)"
        ),
        torch.OutOfMemoryError("Tried to allocate 2.00 GiB, the size is too large"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED, expected another size"),
        RuntimeError("Expected all tensors to be on the same device, but found two devices"),
        RuntimeError("could not create a primitive"),
        TypeError("unsupported operand type(s) for +: 'NoneType' and 'int'"),
        MemoryError(),
    ],
)
def test_the_machine_is_to_blame(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        run(Failing(error), 2, 3)
    assert caught.value is error


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (nn.Linear(3, 2), (2, 4)),
        (nn.Conv2d(3, 2, 3), (2, 4, 8, 8)),
        (nn.Conv2d(3, 2, 3), (2, 3, 1, 1)),
        (nn.Conv2d(3, 2, 3), (2, 3)),
        (nn.LayerNorm(3), (2, 4)),
        (nn.BatchNorm2d(3), (2, 3)),
        (nn.BatchNorm2d(3), (2, 4, 2, 2)),
        (nn.Unflatten(1, (2, 2)), (2, 3)),
        (nn.Flatten(2, 3), (2, 3)),
        (nn.MaxPool2d(2), (2, 3, 1, 1)),
    ],
)
def test_the_items_are_to_blame(network: nn.Module, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"cannot take items of shape \[[0-9, ]+\]: "):
        run(network, *shape)
