"""Batches for the training loop, made ahead in a thread while the network computes.

What is in batch ``step`` depends on the seed and the step only, so that a resumed run and a run on
other processes see the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowhash.data import Augmentation, LabelledItems, Preprocessing
from flowhash.learn.samplers import share

AHEAD = 3  # batches that are made before they are asked for
THREAD = "flowhash-batches"  # name of the thread that makes them
# Positions and labels of the global batch of a step, a pure function of the step.
Sample = Callable[[int], tuple[NDArray[np.int64], NDArray[np.int64]]]


@dataclass(frozen=True)
class TrainingBatch:
    """One process's part of a global batch: its inputs, and the labels of all."""

    step: int
    inputs: Tensor
    labels: NDArray[np.int64]


@dataclass
class Batches:
    """Makes the batches of a stage.

    Attributes:
        data: where items come from.
        preprocessing: what the network takes.
        sample: which items make a batch, such as ``PairSampler(…).batch``.
        augmentation: of images, or None.
        seed: numbers that seed the augmentation, with the step.
        rank: which part of each batch is made.
        world: how many parts there are.
    """

    data: LabelledItems
    preprocessing: Preprocessing
    sample: Sample
    augmentation: Augmentation | None
    seed: tuple[int, ...]
    rank: int = 0
    world: int = 1

    def make(self, step: int) -> TrainingBatch:
        """The batch of one step."""
        positions, labels = self.sample(step)
        items = self.data.take(share(positions, self.rank, self.world))
        if self.augmentation is None or self.preprocessing.kind != "images":
            inputs = self.preprocessing(items)
        else:
            generator = np.random.default_rng([*self.seed, step])
            draws = self.augmentation.draw(len(positions), generator)
            own = share(draws, self.rank, self.world)
            inputs = self.preprocessing.augmented(items, own, self.augmentation)
        return TrainingBatch(step, torch.from_numpy(inputs), labels)

    def between(self, start: int, end: int) -> Iterator[TrainingBatch]:
        """Batches ``start`` to ``end``, made three ahead. An error arrives where it belongs."""
        steps = iter(range(start, end))
        with ThreadPoolExecutor(1, THREAD) as maker:
            ahead = deque(maker.submit(self.make, step) for step in islice(steps, AHEAD))
            try:
                while ahead:
                    made = ahead.popleft().result()
                    ahead.extend(maker.submit(self.make, step) for step in islice(steps, 1))
                    yield made
            finally:
                maker.shutdown(cancel_futures=True)
