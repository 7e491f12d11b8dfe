"""Batches for the training loop, made ahead in a thread while the network computes.

What is in batch ``step`` depends on the seed and the step only, so that a resumed run and a run on
other processes see the same.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowhash.data import Augmentation, LabelledItems, Preprocessing
from flowhash.learn.samplers import ClassBalancedSampler, share

AHEAD = 2


class Sampler(Protocol):
    """Says which items make a batch."""

    def batch(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions and labels of the global batch ``step``, a pure function of ``step``."""


@dataclass(frozen=True)
class WithLabels:
    """A sampler of positions only, with the labels of the items beside it."""

    positions: ClassBalancedSampler
    labels: NDArray[np.int64]

    def batch(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions and labels of the global batch ``step``."""
        chosen = self.positions.batch(step)
        return chosen, self.labels[chosen]


@dataclass(frozen=True)
class TrainingBatch:
    """One process's part of a global batch: its inputs, and the labels of all."""

    step: int
    inputs: Tensor
    labels: NDArray[np.int64]


class Batches:
    """Makes the batches of a stage.

    Args:
        data: where items come from.
        preprocessing: what the network takes.
        sampler: which items make a batch.
        augmentation: of images, or None.
        seed: numbers that seed the augmentation, with the step.
        rank: which part of each batch is made.
        world: how many parts there are.
    """

    def __init__(
        self,
        data: LabelledItems,
        preprocessing: Preprocessing,
        sampler: Sampler,
        augmentation: Augmentation | None,
        seed: tuple[int, ...],
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.data = data
        self.preprocessing = preprocessing
        self.sampler = sampler
        self.augmentation = augmentation if preprocessing.kind == "images" else None
        self.seed = seed
        self.rank, self.world = rank, world

    def make(self, step: int) -> TrainingBatch:
        """The batch of one step."""
        positions, labels = self.sampler.batch(step)
        items = self.data.take(share(positions, self.rank, self.world))
        if self.augmentation is None:
            inputs = self.preprocessing(items)
        else:
            generator = np.random.default_rng([*self.seed, step])
            draws = self.augmentation.draw(len(positions), generator)
            own = share(draws, self.rank, self.world)
            inputs = self.preprocessing.augmented(items, own, self.augmentation)
        return TrainingBatch(step, torch.from_numpy(inputs), labels)

    def between(self, start: int, end: int) -> Iterator[TrainingBatch]:
        """Batches ``start`` to ``end``, made up to two ahead. An error arrives where it belongs."""
        ready: queue.Queue[TrainingBatch | BaseException] = queue.Queue(AHEAD)
        stop = threading.Event()
        maker = threading.Thread(target=self._fill, args=(ready, stop, start, end), daemon=True)
        maker.start()
        try:
            for _ in range(start, end):
                made = ready.get()
                if isinstance(made, BaseException):
                    raise made
                yield made
        finally:
            stop.set()
            while maker.is_alive():
                _drain(ready)
                maker.join(0.05)

    def _fill(self, ready: queue.Queue[Any], stop: threading.Event, start: int, end: int) -> None:
        for step in range(start, end):
            try:
                made: TrainingBatch | BaseException = self.make(step)
            except BaseException as error:
                made = error
            ready.put(made)
            if stop.is_set() or isinstance(made, BaseException):
                return


def _drain(ready: queue.Queue[Any]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            ready.get_nowait()
