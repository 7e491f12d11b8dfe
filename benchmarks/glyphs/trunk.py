"""A small convolutional network for glyphs, trained by cross-entropy over the seen characters."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.glyphs.data import HELD_OUT, PIXELS, Glyphs, Part, batches, moved
from flowhash.learn import Schedule

DIM = 128  # numbers in an embedding
LAYERS = ((32, 5, 2), (64, 3, 2), (64, 3, 1), (128, 3, 2))  # channels, kernel, stride
SIDE = PIXELS // 8  # of what the last of them makes
BATCH, RATE, DECAY, SCALE = 256, 4e-3, 1e-4, 20.0
KEEP = 50  # steps between two states that are kept


class Trunk(nn.Module):
    """Pictures [n, 1, 32, 32] to unit embeddings [n, 128], by strided convolutions.

    The last ones are not pooled: where in a syllable a letter stands decides what it is.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 1
        for width, kernel, stride in LAYERS:
            layers += [
                nn.Conv2d(before, width, kernel, stride, kernel // 2, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            before = width
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * SIDE * SIDE, DIM))

    def forward(self, images: Tensor) -> Tensor:
        """The embeddings."""
        return functional.normalize(self.layers(images))


def trained_trunk(glyphs: Glyphs, folder: Path, steps: int) -> tuple[Trunk, Tensor, float]:
    """The trunk, its own classifier [seen characters, dim], and how many seconds it took.

    Every step draws characters and faces at random, and moves each picture anew. What is finished,
    and every 50 steps, is kept in the folder: the same call goes on from there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "trunk.safetensors"
    torch.manual_seed(0)
    trunk, weights = Trunk(), torch.randn(len(glyphs.seen), DIM) / DIM**0.5
    parts = nn.ModuleDict({"trunk": trunk, "classes": nn.Linear(DIM, len(weights), bias=False)})
    parts["classes"].weight.data = weights
    optimiser = torch.optim.AdamW(parts.parameters(), RATE, weight_decay=DECAY)
    step, spent = 0, 0.0
    if path.exists():
        kept = load_file(path)
        step, spent = int(kept.pop("step")), float(kept.pop("seconds"))
        parts.load_state_dict({name: kept[name] for name in parts.state_dict()})
        _restore(optimiser, kept, step)
    while step < steps:
        began = time.perf_counter()
        for _ in range(min(KEEP, steps - step)):
            loss = _take_step(glyphs, parts, optimiser, step, steps)
            step += 1
        spent += time.perf_counter() - began
        print(f"trunk: step {step}, {spent:.0f} s, loss {loss:.3f}", flush=True)
        kept = {"step": torch.tensor(step), "seconds": torch.tensor(spent), **parts.state_dict()}
        save_file({**kept, **_moments(optimiser)}, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)
    return trunk.eval(), functional.normalize(parts["classes"].weight.detach()), spent


def _take_step(
    glyphs: Glyphs, parts: nn.ModuleDict, optimiser: torch.optim.Optimizer, step: int, steps: int
) -> float:
    rng = np.random.default_rng([3, step])
    for group in optimiser.param_groups:
        group["lr"] = RATE * Schedule("cycle").scale(step, steps)
    labels = rng.integers(0, len(glyphs.seen), BATCH)
    faces = rng.integers(0, HELD_OUT, BATCH)
    images = moved(glyphs.pictures[glyphs.seen[labels], faces], rng)
    cosines = parts["trunk"](images) @ functional.normalize(parts["classes"].weight).t()
    loss = functional.cross_entropy(SCALE * cosines, torch.from_numpy(labels))
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
    return loss.item()


def _moments(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What Adam knows of each parameter."""
    return {
        f"{name}.{number}": values[name]
        for number, values in enumerate(optimiser.state.values())
        for name in ("exp_avg", "exp_avg_sq")
    }


def _restore(optimiser: torch.optim.Optimizer, kept: dict[str, Tensor], step: int) -> None:
    for number, parameter in enumerate(optimiser.param_groups[0]["params"]):
        optimiser.state[parameter] = {
            "step": torch.tensor(float(step)),
            **{name: kept[f"{name}.{number}"] for name in ("exp_avg", "exp_avg_sq")},
        }


def embedded(trunk: Trunk, glyphs: Glyphs, part: Part, path: Path) -> NDArray[np.float32]:
    """Embeddings of a part [n, dim], kept in a file."""
    if not path.exists():
        with torch.inference_mode():
            made = [trunk(images).numpy() for images in batches(glyphs, part)]
        np.save(path, np.concatenate(made))
    return np.asarray(np.load(path, allow_pickle=False))
