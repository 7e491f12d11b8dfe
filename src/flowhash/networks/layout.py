"""How a convolutional network lays out its images in memory: where it is fast, and right."""

from __future__ import annotations

import torch
from torch import nn

BLOCK = 16  # channels in a block of oneDNN's: 8 with AVX2, 16 with AVX-512


def set_layout(network: nn.Module) -> torch.memory_format:
    """Put the weights into the layout that the network's images should have, and return it.

    oneDNN's and cuDNN's convolutions are fastest on channels-last, by nearly half on a CPU. But
    oneDNN (3.12, as torch 2.13 brings it; https://github.com/uxlfoundation/oneDNN/issues/6035) has
    a fault in the gradient of a strided 1×1 convolution's weights, as in a residual network's
    shortcuts: on channels-last images of fewer channels than a block has it writes behind its
    workspace. Seen here with AVX2, stride 2 and 2 to 7 channels going in: the process ends. The
    report also has wrong gradients and a process that hangs, and AVX-512 below 16 channels, where
    the one machine that was tried here showed nothing.

    No write out of place was found, with AVX2 and AVX-512 and 1 to 16 channels in and out, on
    contiguous images, in the forward pass, in the gradient of the images, and in 1×1 convolutions
    of stride 1, 3×3 and 5×5 ones of stride 1 and 2; nor from 8 channels on, where gradients were
    right too. The report did not look at channels that fill their last block in part. So a network
    with such a convolution is contiguous unless its blocks are full.
    """
    layout = torch.channels_last
    for layer in network.modules():
        if not isinstance(layer, nn.Conv2d) or set(layer.kernel_size) != {1}:
            continue
        if max(layer.stride) > 1 and layer.in_channels % BLOCK:
            layout = torch.contiguous_format
    network.to(memory_format=layout)  # type: ignore[call-overload]
    return layout
