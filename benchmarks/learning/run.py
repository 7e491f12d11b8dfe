"""Claims about learning: the gated distance, the solver's share of a step, NIN's speed.

    python -m benchmarks.learning.run

1. The gated distance (B = 1024, d = 512, k = 4), forward and backward, is at least 20 times as fast
   as the direct [B, B, d] formula and takes at most a thirtieth of its memory, to 1e-5.
2. The solver takes under 2 % of a step at the paper's CIFAR-100 settings, under 10 % at batch 1024
   with 512 classes and buckets and the small network.
3. NIN, forward and backward, is at least 1.3 times as fast as the plain module in eager mode.

Peers run in the same process, turn by turn; memory is measured in a fresh process each.
"""

from __future__ import annotations

import argparse
import copy
import functools
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measurement import (
    RESULTS,
    in_turns,
    machine,
    peak_memory,
    present_memory,
    seconds,
)
from flowhash.learn import BatchCoder, MetricLoss, NPairsLoss, TripletLoss, gated_distance
from flowhash.networks import EmbeddingNetwork, build_backbone

BATCH, BUCKETS, ACTIVE, CLASSES = 1024, 512, 4, 512
REPEATS = 5
PAGE = """\
# Learning, measured

Written by `python -m benchmarks.learning.run` (`make bench-learning`); do not edit by hand. Two
threads, medians of {repeats} turns. Machine: {machine}.

## The gated distance

Forward and backward, B = 1024, d = 512, k = 4, 512 classes; *direct* is the formula as it is
written, a mask and a difference for every pair and bucket, [B, B, d].
The largest difference between the two is {difference:.1e} in distances of up to {largest:.1f},
{gradient:.1e} in gradients.

| | direct | FlowHash | ratio | bar |
|---|---:|---:|---:|---:|
| time | {direct_time:.2f} s | {gated_time:.1f} ms | **{time_ratio:.0f}×** | 20× |
| peak memory | {direct_memory:.0f} MB | {gated_memory:.1f} MB | **{memory_ratio:.0f}×** | 30× |

## The solver's share of a training step

Whole steps on random images: forward, class means, `assign_codes`, gated loss, backward, Adam. The
solver's time has the class means in it.

| network | batch | classes | d | k | loss | step | solver | share | bar |
|---|---:|---:|---:|---:|---|---:|---:|---:|---:|
{steps}

## NIN

Forward and backward, batch 128, one layout after the other in one process. *Plain* is the module as
torch makes it; FlowHash's has the same weights in channels-last layout and activations in place.

| | milliseconds | faster |
|---|---:|---:|
{layouts}

{compiled}
"""


def direct(embeddings: Tensor, codes: Tensor) -> Tensor:
    """Eq. 6 as it is written: a mask and a difference for every pair and bucket."""
    active = torch.zeros(embeddings.shape, dtype=torch.bool).scatter_(1, codes, True)
    either = active[:, None] | active[None]
    return (either * (embeddings[:, None] - embeddings[None]).abs()).sum(2)


def problem() -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, codes, and weights that make one number of the distances."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(BATCH, BUCKETS, generator=generator)
    codes = torch.rand(CLASSES, BUCKETS, generator=generator).topk(ACTIVE, 1).indices
    weights = torch.randn(BATCH, BATCH, generator=generator)
    return embeddings, codes.repeat_interleave(BATCH // CLASSES, 0), weights


def forward_backward(distance: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The distances and the gradient of their weighted sum."""
    embeddings, codes, weights = problem()
    embeddings.requires_grad_()
    made = distance(embeddings, codes)
    (made * weights).sum().backward()
    assert embeddings.grad is not None
    return made.detach(), embeddings.grad


def _peak(name: str, answer: multiprocessing.Queue[float]) -> None:
    """Megabytes that one forward and backward adds at its peak, in this fresh process."""
    gated_distance(torch.zeros(4, 4), torch.zeros(4, 1, dtype=torch.long))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = present_memory()
    forward_backward(gated_distance if name == "gated" else direct)
    answer.put((peak_memory() - before) / 2**20)


def peak(name: str) -> float:
    """Run ``_peak`` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    answer: multiprocessing.Queue[float] = context.Queue()
    process = context.Process(target=_peak, args=(name, answer))
    process.start()
    value = answer.get()
    process.join()
    return value


def measure_gated() -> dict[str, float]:
    """Bar 1."""
    ours, own_gradient = forward_backward(gated_distance)
    gated = [seconds(lambda: forward_backward(gated_distance)) for _ in range(REPEATS)]
    slow = [seconds(lambda: forward_backward(direct)) for _ in range(3)]
    theirs, gradient = forward_backward(direct)
    memory = {name: median([peak(name) for _ in range(3)]) for name in ("gated", "direct")}
    return {
        "difference": float((ours - theirs).abs().max()),
        "largest": float(theirs.max()),
        "gradient": float((own_gradient - gradient).abs().max()),
        "direct_time": median(slow),
        "gated_time": 1000 * median(gated),
        "time_ratio": median(slow) / median(gated),
        "direct_memory": memory["direct"],
        "gated_memory": memory["gated"],
        "memory_ratio": memory["direct"] / memory["gated"],
    }


def measure_step(
    backbone: dict[str, object], classes: int, buckets: int, active: int, loss: MetricLoss
) -> str:
    """Bar 2: one row of its table."""
    torch.manual_seed(0)
    network = EmbeddingNetwork(build_backbone(backbone), buckets, loss.unit)
    optimiser = torch.optim.Adam(network.parameters(), 1e-4)
    labels = np.repeat(np.arange(classes), 2)
    kinds = torch.from_numpy(labels)
    coder = BatchCoder(active, 0.5 if loss.unit else 0.15)
    centres = torch.randn(classes, 3, 32, 32).repeat_interleave(2, 0)
    steps, solver = [], []

    def step() -> None:
        images = centres + 0.5 * torch.randn(2 * classes, 3, 32, 32)
        embeddings = network(images)
        codes = coder.codes(embeddings.detach().numpy(), labels)
        optimiser.zero_grad()
        loss(embeddings, kinds, torch.from_numpy(codes)).backward()
        optimiser.step()

    for repeat in range(REPEATS + 2):
        coder.seconds = 0.0
        took = seconds(step)
        if repeat >= 2:  # the first steps compile, and start the prices
            steps.append(took)
            solver.append(coder.seconds)
    share = median([part / whole for part, whole in zip(solver, steps, strict=True)])
    bar = "10 %" if classes == 512 else "2 %"
    name = type(loss).__name__.removesuffix("Loss").lower()
    return (
        f"| {backbone['name']} | {2 * classes} | {classes} | {buckets} | {active} | {name} | "
        f"{median(steps):.2f} s | {1000 * median(solver):.2f} ms | **{100 * share:.2f} %** | "
        f"{bar} |"
    )


def plain(network: nn.Module) -> nn.Module:
    """The same network as torch makes it: rows of channels, no activation in place."""
    made = copy.deepcopy(network).layers
    for module in made:
        if isinstance(module, nn.LeakyReLU):
            module.inplace = False
    return made.to(memory_format=torch.contiguous_format)


def measure_nin(compiled: bool) -> tuple[str, str]:
    """Bar 3."""
    torch.manual_seed(0)
    ours = build_backbone({"name": "nin"})
    images = torch.randn(128, 3, 32, 32)
    runs: dict[str, nn.Module | Callable[[Tensor], Tensor]] = {
        "plain, eager": plain(ours),
        "FlowHash: channels-last, eager": ours,
    }
    if compiled:
        runs["FlowHash, torch.compile"] = torch.compile(ours)

    def both(network: Callable[[Tensor], Tensor]) -> None:
        network(images).square().mean().backward()

    turns = in_turns([functools.partial(both, network) for network in runs.values()], REPEATS)
    rows = []
    for name, values in zip(runs, zip(*turns, strict=True), strict=True):
        ratio = median(turn[0] / value for turn, value in zip(turns, values, strict=True))
        rows.append(f"| {name} | {1000 * median(values):.0f} | {ratio:.2f}× |")
    note = (
        "`torch.compile` (inductor) ran on the same module in the same run; it is left to the user."
        if compiled
        else "`torch.compile` was not tried in this run (`--compile` does)."
    )
    return "\n".join(rows), note


def main() -> None:
    """Measure, print, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="try torch.compile on NIN too")
    options = parser.parse_args()
    torch.set_num_threads(2)
    gated = measure_gated()
    steps = [
        measure_step({"name": "nin"}, 64, 64, 1, NPairsLoss()),
        measure_step({"name": "nin"}, 64, 64, 4, NPairsLoss()),
        measure_step({"name": "nin"}, 64, 256, 1, TripletLoss(1.0)),
        measure_step({"name": "nin"}, 64, 256, 4, TripletLoss(1.0)),
        measure_step({"name": "residual"}, 512, 512, 1, NPairsLoss()),
        measure_step({"name": "residual"}, 512, 512, 3, NPairsLoss()),
    ]
    layouts, compiled = measure_nin(options.compile)
    text = PAGE.format(
        repeats=REPEATS,
        machine=machine(),
        steps="\n".join(steps),
        layouts=layouts,
        compiled=compiled,
        **gated,
    )
    print(text)
    (RESULTS / "learning.md").write_text(text)


if __name__ == "__main__":
    main()
