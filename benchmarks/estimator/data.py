"""Embeddings with labels for the estimator's benchmark: made up, from a file, or of CIFAR-100."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLASSES, DIM = 100, 512
SIGNAL, NUISANCE, MODES = 24, 24, 3


@dataclass(frozen=True)
class Data:
    """What is fitted and searched, and the queries, which are not in it."""

    name: str
    train: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def synthetic(items: int, queries: int) -> Data:
    """Overlapping classes in 24 of 512 directions, and 24 others that vary and mean nothing.

    A class is three clouds around a middle (spread of middles 1, of clouds 0.6, within a cloud
    0.8); the nuisance has spread 1.2, everything else 0.35; then all is turned at random, so that
    no single number shows a class.
    """
    rng = np.random.default_rng(0)
    middles = rng.normal(size=(CLASSES, 1, SIGNAL)) + 0.6 * rng.normal(
        size=(CLASSES, MODES, SIGNAL)
    )
    turn = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0].astype(np.float32)

    def draw(count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        labels, modes = rng.integers(0, CLASSES, count), rng.integers(0, MODES, count)
        rows = 0.35 * rng.standard_normal((count, DIM), np.float32)
        rows[:, :SIGNAL] += middles[labels, modes] + 0.8 * rng.standard_normal((count, SIGNAL))
        rows[:, SIGNAL : SIGNAL + NUISANCE] += 1.2 * rng.standard_normal((count, NUISANCE))
        return rows @ turn, labels

    return Data("synthetic", *draw(items), *draw(queries))


def from_file(path: Path, name: str) -> Data:
    """Arrays ``train``, ``train_labels``, ``test``, ``test_labels`` of an npz file."""
    with np.load(path, allow_pickle=False) as file:
        names = ("train", "train_labels", "test", "test_labels")
        return Data(name, *(file[key] for key in names))


def cifar_embeddings(run: Path, folder: Path, out: Path) -> None:
    """Pooled features of an image and of its mirror image, side by side, of a trained network.

    Args:
        run: the folder of a stage 1 (``flowhash reproduce`` leaves it as ``seed-0/trunk``).
        folder: where CIFAR-100 is.
        out: the npz file to write: 50,000 training and 10,000 test images.
    """
    import torch

    from flowhash.data import open_data
    from flowhash.learn import Settings, train_base

    splits = open_data("cifar100", folder=folder)
    settings = Settings.from_json(json.loads((run / "settings.json").read_text())["settings"])
    backbone = train_base(splits, settings, run, quiet=True).backbone
    assert splits.test is not None
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, parts in (("train", (splits.train, splits.validation)), ("test", (splits.test,))):
        rows = []
        for part in parts:
            for start in range(0, len(part), 500):
                taken = part.take(np.arange(start, min(start + 500, len(part))))
                images = torch.from_numpy(splits.preprocessing(taken))
                with torch.inference_mode():
                    both = (backbone(images), backbone(images.flip(3)))
                rows.append(torch.cat(both, 1).numpy())
        arrays[name] = np.concatenate(rows)
        arrays[f"{name}_labels"] = np.concatenate([part.labels for part in parts])
    np.savez(out, **arrays)
