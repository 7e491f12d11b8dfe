"""Small trainings for the tests, and a program that runs them in children which signals end.

As a program it reads orders, one JSON object a line, ``{"folder": …, "kind": …, "signal": …,
"at": …}``. For each it forks a child that trains and, while it makes its batch number ``at``, gets
the signal; then it prints how the child ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flowhash.codes import assign_codes
from flowhash.data.labelled_data import LabelledItems, Splits
from flowhash.data.sets.embedding_arrays import arrays
from flowhash.learn import ClassBalancedSampler, Schedule, Settings, Stage, train

STEPS = 12  # of each stage of the runs that are interrupted


def clouds(classes: int = 6, items: int = 24, dim: int = 8, noise: float = 0.4) -> Splits:
    """Vectors: one cloud of points a class."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), items)
    points = rng.normal(size=(classes, dim))[labels] + noise * rng.normal(size=(len(labels), dim))
    return arrays(points.astype(np.float32), labels, validation=0.25, test=0.25)


def pictures(classes: int = 4, items: int = 16, side: int = 8) -> Splits:
    """Images: one coarse pattern a class, under noise."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), items)
    patterns = rng.integers(0, 200, (classes, 2, 2, 3)).repeat(side // 2, 1).repeat(side // 2, 2)
    images = patterns[labels] + rng.integers(0, 56, (len(labels), side, side, 3))
    return arrays(images.astype(np.uint8), labels, validation=0.25, test=0.25)


def vector_settings(**changes: Any) -> Settings:
    """An MLP with dropout: triplet with SGD, then npairs with Adam."""
    base = Stage(
        "triplet", 8, 4, 3, STEPS, {"margin": 0.3}, "sgd", 0.05,
        schedule=Schedule("cycle"), decay=1e-3,
    )  # fmt: skip
    hashed = Stage("npairs", 12, 5, 2, STEPS, backbone_rate=0.1, schedule=Schedule(at=(8,)))
    settings = Settings(
        {"name": "mlp", "hidden": [32], "dropout": 0.3}, base, hashed,
        validate_every=5, checkpoint_every=3, log_every=1,
    )  # fmt: skip
    return replace(settings, **changes)


def picture_settings(**changes: Any) -> Settings:
    """A narrow NIN with dropout and augmentation: cross-entropy, then triplet with k = 2."""
    base = Stage("cross-entropy", 8, 4, 4, STEPS, rate=3e-3, decay=4e-5, head_decay=5e-4)
    hashed = Stage("triplet", 8, 4, 3, STEPS, {"margin": 1.0}, backbone_rate=0.1)
    settings = Settings(
        {"name": "nin", "width": 1 / 16}, base, hashed, active=2, penalty=0.5, augment={"pad": 1},
        validate_every=5, checkpoint_every=3, log_every=1,
    )  # fmt: skip
    return replace(settings, **changes)


def group_settings(**changes: Any) -> Settings:
    """The same network: parts of classes, each with a code, which cross-entropy aims at."""
    hashed = Stage("codes", 12, 5, 2, STEPS, backbone_rate=0.1, schedule=Schedule("cycle"))
    return replace(vector_settings(), **{"hash": hashed, "groups": "auto", "active": 2, **changes})


KINDS: dict[str, Any] = {
    "groups": (clouds, group_settings),
    "vectors": (clouds, vector_settings),
    "pictures": (pictures, picture_settings),
}


class Watched:
    """Items that do something when they are taken for the batch number ``at``."""

    def __init__(self, items: Any, sizes: set[int], at: int, action: Any) -> None:
        self.items, self.sizes, self.left, self.action = items, sizes, at, action

    @property
    def kind(self) -> Any:
        return self.items.kind

    def __len__(self) -> int:
        return len(self.items)

    def take(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        # Batches have the sizes of the stages; what a validation takes has not.
        self.left -= len(positions) in self.sizes
        if self.left == 0:
            self.left = -1
            self.action()
        return self.items.take(positions)  # type: ignore[no-any-return]


def watched(splits: Splits, settings: Settings, at: int, action: Any, parts: int = 1) -> Splits:
    """The same data; ``action`` is called while batch ``at``, counted from 1, is made."""
    sizes = {stage.batch // parts for stage in (settings.base, settings.hash) if stage is not None}
    data = splits.train
    items = Watched(data.items, sizes, at, action)
    made = LabelledItems(items, data.labels, data.class_names, data.source)
    return replace(splits, train=made)


def lines(folder: Path) -> list[dict[str, Any]]:
    """What a run wrote to ``metrics.jsonl``."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def facts(folder: Path) -> list[dict[str, Any]]:
    """What a run wrote, without what a clock measured."""
    clock = {"items_per_second", "seconds", "solver_share"}
    return [
        {name: value for name, value in line.items() if name not in clock} for line in lines(folder)
    ]


def _child(order: dict[str, Any]) -> None:
    make, settings_of = KINDS[order["kind"]]
    settings = settings_of(**order.get("changes", {}))
    number = getattr(signal, order["signal"])
    splits = watched(make(), settings, order["at"], lambda: os.kill(os.getpid(), number))
    train(splits, settings, order["folder"], quiet=True)


def _warm_up() -> None:
    """Load compiled kernels once for all children; only those that start no thread."""
    assign_codes(np.eye(4), 2, 0.5)
    ClassBalancedSampler(np.repeat(np.arange(4), 4), 2, 2, 0).batch(0)
    splits = pictures()
    splits.preprocessing(splits.train.take(np.arange(2)))


def main() -> None:
    """Fork a child for each order; print its exit code, minus a signal that ended it."""
    torch.set_num_threads(1)  # as in the tests: sums in the same order
    _warm_up()
    for order in map(json.loads, sys.stdin):
        child = os.fork()
        if child == 0:
            code = 0
            try:
                _child(order)
            except KeyboardInterrupt:
                code = 130
            except BaseException:
                traceback.print_exc()
                code = 1
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
