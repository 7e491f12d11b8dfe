"""Batches: a pure function of the step, made ahead in a thread that always ends."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from flowhash.data.augmentation import Augmentation
from flowhash.learn.batches import THREAD, Batches, TrainingBatch
from flowhash.learn.samplers import ClassBalancedSampler, PairSampler
from tests.learn import trainer


def batches(
    kind: str = "pictures", rank: int = 0, world: int = 1, seed: int = 0, data: Any = None
) -> Batches:
    splits = trainer.KINDS[kind][0]()
    items = splits.train if data is None else data
    sample = ClassBalancedSampler(items.labels, 4, 3, seed).labelled_batch
    return Batches(items, splits.preprocessing, sample, Augmentation(pad=2), (seed, 1), rank, world)


def equal(one: TrainingBatch, other: TrainingBatch) -> bool:
    return (
        one.step == other.step
        and np.array_equal(one.inputs.numpy(), other.inputs.numpy())
        and np.array_equal(one.labels, other.labels)
    )


@pytest.mark.parametrize("kind", ["vectors", "pictures"])
def test_a_batch_is_a_function_of_its_step(kind: str) -> None:
    source = batches(kind)
    forward = [source.make(step) for step in range(6)]
    backward = [batches(kind).make(step) for step in reversed(range(6))][::-1]
    assert all(map(equal, forward, backward))
    assert not np.array_equal(forward[0].inputs, forward[1].inputs)
    other = batches(kind, seed=1).make(0)
    assert not np.array_equal(forward[0].inputs, other.inputs)


@pytest.mark.parametrize("kind", ["vectors", "pictures"])
def test_a_batch_is_what_the_sampler_names(kind: str) -> None:
    source = batches(kind)
    data = trainer.KINDS[kind][0]().train
    made = source.make(3)
    positions, labels = source.sample(3)
    np.testing.assert_array_equal(made.labels, data.labels[positions])
    np.testing.assert_array_equal(made.labels, labels)
    if kind == "vectors":  # these are not augmented
        expected = source.preprocessing(data.take(positions))
        np.testing.assert_array_equal(made.inputs.numpy(), expected)


def test_images_are_cropped_and_flipped_each_by_itself() -> None:
    source = batches()
    data = trainer.KINDS["pictures"][0]().train
    made = source.make(0).inputs.numpy()
    plain = source.preprocessing(data.take(source.sample(0)[0]))
    seen = set()
    for image, before in zip(made, plain, strict=True):
        padded = np.pad(before, ((0, 0), (2, 2), (2, 2)))
        matches = [
            (row, column, flip)
            for row in range(5)
            for column in range(5)
            for flip in (False, True)
            for crop in [padded[:, row : row + 8, column : column + 8]]
            if np.array_equal(image, crop[:, :, ::-1] if flip else crop)
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) > 3


@pytest.mark.parametrize("kind", ["vectors", "pictures"])
@pytest.mark.parametrize(("start", "end"), [(0, 7), (3, 5), (4, 4)])
def test_made_ahead_they_are_the_same(kind: str, start: int, end: int) -> None:
    source = batches(kind)
    ahead = list(source.between(start, end))
    assert [batch.step for batch in ahead] == list(range(start, end))
    assert all(map(equal, ahead, (source.make(step) for step in range(start, end))))


@settings(max_examples=20)
@given(
    kind=st.sampled_from(["vectors", "pictures"]),
    world=st.sampled_from([2, 3, 4, 6]),
    step=st.integers(0, 40),
)
def test_parts_of_processes_make_the_batch_of_one(kind: str, world: int, step: int) -> None:
    whole = batches(kind).make(step)
    parts = [batches(kind, rank, world).make(step) for rank in range(world)]
    joined = np.concatenate([part.inputs.numpy() for part in parts])
    np.testing.assert_array_equal(joined, whole.inputs.numpy())  # augmentation and all
    for part in parts:
        assert len(part.inputs) == len(whole.inputs) // world
        np.testing.assert_array_equal(part.labels, whole.labels)  # labels are those of all


def test_pairs() -> None:
    splits = trainer.clouds()
    pairs = np.arange(40).reshape(20, 2)
    source = Batches(
        splits.train, splits.preprocessing, PairSampler(pairs, 4, 0).batch, None, (0, 1)
    )
    made = source.make(2)
    assert made.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(made.inputs) == 8


def makers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD)]


class TroubleError(Exception):
    """Not one that anything else raises."""


def failing(at: int) -> Batches:
    splits, stages = trainer.clouds(), trainer.vector_settings()

    def fail() -> None:
        raise TroubleError(at)

    return batches("vectors", data=trainer.watched(splits, stages, at, fail).train)


@pytest.mark.parametrize("at", [1, 2, 5])
def test_an_error_arrives_where_it_belongs(at: int) -> None:
    going = failing(at).between(0, 10)
    assert [next(going).step for _ in range(at - 1)] == list(range(at - 1))
    with pytest.raises(TroubleError):
        next(going)
    assert not makers()


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("after", [1, 3])
def test_the_thread_ends_when_its_consumer_does(slow: bool, after: int) -> None:
    going = batches("vectors").between(0, 1000)
    for _ in range(after):
        next(going)
    if slow:
        time.sleep(0.05)  # the queue is full, and the maker waits at it
    assert len(makers()) == 1
    going.close()  # type: ignore[attr-defined]
    assert not makers()


def test_the_thread_ends_when_its_consumer_fails() -> None:
    def consume() -> None:
        for _ in batches("vectors").between(0, 1000):
            raise TroubleError

    with pytest.raises(TroubleError):
        consume()
    assert not makers()


def test_no_more_than_a_few_are_made_ahead() -> None:
    calls: list[int] = []
    source = batches("vectors")
    make = source.make

    def counted(step: int) -> TrainingBatch:
        calls.append(step)
        return make(step)

    source.make = counted  # type: ignore[method-assign]
    going = source.between(0, 1000)
    next(going)
    time.sleep(0.1)
    assert max(calls) <= 4  # one in hand, three made ahead
    going.close()  # type: ignore[attr-defined]
