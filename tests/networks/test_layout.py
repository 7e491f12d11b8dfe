"""Gradients of narrow networks, in processes of their own: oneDNN may end the one that it runs in.

Before the layout was chosen, widths 2 to 6 of the residual network ended the process on AVX2.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from flowhash.networks import build_backbone
from flowhash.networks.convolutional_backbones import set_layout

AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "NUMBA_CPU_NAME": "haswell",
    "OPENBLAS_CORETYPE": "Haswell",
}


@pytest.mark.parametrize("machine", [{}, AVX2], ids=["this machine", "avx2"])
def test_narrow_networks_have_the_right_gradients(machine: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, __file__], env=os.environ | machine, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-200:] + done.stderr[-2000:]
    assert done.stdout.endswith("all compared\n")


def compare_gradients() -> None:
    """Each network's gradients beside those of its float64 twin, which oneDNN has no part in."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    residual = [
        {"name": "residual", "width": width, "blocks": [1, 1]}
        for width in (*range(1, 10), 12, 16, 24)
    ]
    nin = [{"name": "nin", "width": channels / 192, "dropout": 0.0} for channels in (1, 4, 7, 16)]
    for spec in (*residual, *nin, {"name": "residual", "width": 4, "blocks": [1, 1], "stem": 2}):
        network = build_backbone(spec).eval()  # in training few items make a mean that is no truth
        twin = copy.deepcopy(network).double()
        for images in (
            torch.randn(5, 3, 8, 8),
            torch.randn(40, 3, 8, 8),
            torch.randn(3, 3, 19, 19),
        ):
            print(spec, tuple(images.shape), flush=True)
            found, expected = (
                torch.autograd.grad(made(given).square().sum(), [*made.parameters()])
                for made, given in ((network, images), (twin, images.double()))
            )
            for one, other in zip(found, expected, strict=True):
                size = float(other.abs().max())
                torch.testing.assert_close(one.double(), other, atol=1e-4 * size, rtol=1e-3)
    print("all compared")


@pytest.mark.parametrize(("width", "last"), [(4, False), (12, False), (16, True), (32, True)])
def test_layout_follows_the_narrowest_shortcut(width: int, last: bool) -> None:
    network = build_backbone({"name": "residual", "width": width, "blocks": [1, 1]})
    expected = torch.channels_last if last else torch.contiguous_format
    layouts = []
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.weight.is_contiguous(memory_format=expected)
            layer.register_forward_hook(lambda *seen: layouts.append(seen[1][0]))
    for given in (torch.channels_last, torch.contiguous_format):  # whatever the caller has
        layouts.clear()
        network(torch.rand(2, 3, 8, 8).contiguous(memory_format=given))
        assert len(layouts) == 6
        assert all(images.is_contiguous(memory_format=expected) for images in layouts)


def test_only_strided_convolutions_of_one_pixel_are_kept_from_it() -> None:
    fine = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 16, 5, 2))
    assert set_layout(fine) is torch.channels_last
    assert set_layout(nn.Sequential(fine, nn.Conv2d(16, 4, 1, 2))) is torch.channels_last
    assert set_layout(nn.Sequential(fine, nn.Conv2d(20, 4, 1, 2))) is torch.contiguous_format
    assert fine[0].weight.is_contiguous()


if __name__ == "__main__":
    compare_gradients()
