"""Small data sets in the official formats, made for tests."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import flowhash.data.sets.cifar as cifar

CIFAR_TRAIN = 400  # four of each class
CIFAR_TEST = 100


def small_cifar(monkeypatch: Any) -> None:
    monkeypatch.setattr(cifar, "TRAIN_RECORDS", CIFAR_TRAIN)
    monkeypatch.setattr(cifar, "TEST_RECORDS", CIFAR_TEST)


def cifar_content(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Planes [count, 3072] and labels, each class equally often."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(count) % 100).astype(np.uint8)
    return generator.integers(0, 256, (count, 3072), np.uint8), labels


def class_names() -> list[str]:
    return [f"name_{number:02}" for number in range(100)]


def write_binary(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, count, seed in (("train", CIFAR_TRAIN, 1), ("test", CIFAR_TEST, 2)):
        planes, labels = cifar_content(count, seed)
        coarse = (labels // 5)[:, None]
        records = np.concatenate([coarse, labels[:, None], planes], axis=1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(class_names()) + "\n")
    return folder


def write_python(folder: Path, protocol: int = 2) -> Path:
    """As Python 2 wrote it: all text is bytes."""
    folder.mkdir(parents=True)
    for name, count, seed in (("train", CIFAR_TRAIN, 1), ("test", CIFAR_TEST, 2)):
        planes, labels = cifar_content(count, seed)
        content = {
            b"data": planes,
            b"fine_labels": [int(label) for label in labels],
            b"filenames": [b"a.png"] * count,
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol))
    names = {b"fine_label_names": [name.encode() for name in class_names()]}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol))
    return folder


def pack(folder: Path) -> Path:
    """The folder as a tar file beside it."""
    target = folder.with_name(folder.name + ".tar.gz")
    with tarfile.open(target, "w:gz") as archive:
        archive.add(folder, folder.name)
    return target


def python2_pickle(array: NDArray[np.uint8], labels: list[int]) -> bytes:
    """A protocol 2 pickle whose text is byte strings, opcode by opcode, as Python 2 wrote it.

    Python 3 writes bytes by way of _codecs.encode; this has the opcodes that it cannot write.
    """
    raw = array.tobytes()

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value  # SHORT_BINSTRING

    def number(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)  # BININT

    out = io.BytesIO()
    out.write(b"\x80\x02}(")
    out.write(text(b"data"))
    out.write(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n")
    out.write(number(0) + b"\x85" + text(b"b") + b"\x87R(")
    out.write(number(1) + number(array.shape[0]) + number(array.shape[1]) + b"\x86")
    out.write(b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R(")
    out.write(number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb")
    out.write(b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb")
    out.write(text(b"labels") + b"](" + b"".join(number(label) for label in labels) + b"e")
    out.write(b"u.")
    return out.getvalue()
