"""Files made on purpose: seeded changes of real small artefacts, most of them with right checksums.

As a script: opens many of them in a process of its own, and prints what came of it as JSON::

    python -m tests.forged.forgeries 2000
"""

from __future__ import annotations

import collections
import io
import json
import random
import shutil
import struct
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flowhash.data.item_collection import open_collection
from flowhash.data.sets.embedding_arrays import arrays
from flowhash.encoder import Encoder
from flowhash.encoder.encoder_files import fingerprint_of
from flowhash.errors import InputError, MissingExtraError, StorageError
from flowhash.estimator import FlowHasher
from flowhash.model_files import read_sealed, read_tensors, write_sealed, write_tensors
from tests.encoder.encoders import items_of, make
from tests.estimator.clouds import clouds, quick

OURS = (InputError, StorageError, MissingExtraError)
LONGEST = 1500  # letters of a message
ENCODERS = ("mlp", "linear", "vit", "residual")
KINDS = ("encoder", "estimator", "npy", "npz", "parquet")


def deep(levels: int, inner: Any = 1) -> Any:
    for _ in range(levels):
        inner = [inner]
    return inner


def mirrored(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"name": "linear", "inputs": 5}
    for _ in range(levels):
        inner = {"name": "mirrored", "backbone": inner}
    return inner


# What stands where something else belongs.
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7, 100, 1 << 20, 1 << 24, 1 << 31, 1 << 40, 10**30, 0.5,
    -0.0, 1e-300, 1e308, "", "x", "cpu", "a\nb\x1b[31m", "\ud800", "../../etc", "9" * 5000, [],
    [1], [5, 5], [0, 0], [-3], ["a"], [None], {}, {"a": 1}, {"name": "nin"}, {"name": []},
    {"name": "custom"}, {"name": "mlp", "inputs": 5, "hidden": [1 << 24] * 3},
    {"name": "mlp", "inputs": 5, "hidden": [1] * 100_000},
    {"name": "linear", "inputs": 1 << 40},
    {"name": "residual", "width": 1 << 20}, {"name": "residual", "blocks": [1 << 22]},
    {"name": "transformers", "model": "somebody/something"},
    {"name": "transformers", "config": {"model_type": "vit", "num_hidden_layers": 1 << 23}},
    {"name": "transformers", "config": {"model_type": "vit", "image_size": 1 << 20}},
    {"name": "transformers", "config": {"model_type": "swin", "depths": [1 << 22]}},
    {"name": "transformers", "config": {"model_type": "detr", "backbone": "some/body"}},
    {"name": "transformers", "config": {
        "model_type": "timm_wrapper", "architecture": "hf-hub:o/n",
        "model_args": {"checkpoint_path": "/etc/passwd"},
    }},
    {"name": "transformers", "config": {"model_type": "vit", "list": [{"backbone": "some/body"}]}},
    {"name": "timm", "model": "hf-hub:somebody/something"},
    {"name": "timm", "model": "resnet18", "pretrained": True}, [1] * 100_000,
    deep(40), deep(700), mirrored(2), mirrored(300),
]  # fmt: skip


def copied(value: Any) -> Any:
    """A copy, by a way that takes deep values too; of the deepest, none."""
    try:
        return json.loads(json.dumps(value))
    except RecursionError:
        return None


def places_of(tree: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a JSON tree."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree[:4])
    for key, value in inner:
        yield (*way, key)
        if isinstance(value, dict | list) and len(way) < 300:
            yield from places_of(value, (*way, key))


def changed(tree: Any, chance: random.Random) -> Any:
    """A tree with a few of its values replaced, removed, added or moved."""
    tree = copied(tree)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        places = list(places_of(tree))
        if not places:
            return tree
        *way, key = chance.choice(places)
        parent = tree
        for step in way:
            parent = parent[step]
        act = chance.random()
        if act < 0.75:
            parent[key] = copied(chance.choice(VALUES))
        elif act < 0.85:
            del parent[key]
        elif act < 0.95 and isinstance(parent, dict):
            parent[chance.choice(("model", "config", "hub", "dropout", "width", "zzz"))] = copied(
                chance.choice(VALUES)
            )
        else:
            parent[key] = copied(chance.choice(list(_values(tree))))
    return tree


def _values(tree: Any) -> Iterator[Any]:
    for *way, key in places_of(tree):
        parent = tree
        for step in way:
            parent = parent[step]
        yield parent[key]


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Bytes with some of them flipped, cut out, doubled or cut off."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if not changed:
            break
        place = chance.randrange(len(changed))
        act = chance.random()
        if act < 0.6:
            changed[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, changed[place] ^ 1 << 3))
        elif act < 0.75:
            changed[place : place + 8] = struct.pack("<q", chance.choice((-1, 0, 1 << 31, 1 << 62)))
        elif act < 0.85:
            del changed[place : place + chance.choice((1, 4, 40))]
        elif act < 0.95:
            changed[place:place] = changed[place : place + chance.choice((1, 4, 40))]
        else:
            del changed[place:]
    return bytes(changed)


class Forger:
    """Makes forgeries of each kind in a folder, and opens them.

    Args:
        folder: to work in.
        seed: of the choices.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        for kind in ENCODERS:
            make(kind).save(folder / "real" / kind)
        self.rows, labels = clouds(60)
        quick(active=2, steps=2).fit(self.rows, labels).save(folder / "real" / "estimator")
        numbers = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
        self.numbers, self.labels = numbers, np.arange(12) % 3

    def encoder(self) -> None:
        kind = self.chance.choice(ENCODERS)
        target = self._copied(kind)
        self._forge_encoder(target)
        Encoder.load(target).encode(items_of(kind, 2))

    def _copied(self, name: str) -> Path:
        target = self.folder / "forged"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.folder / "real" / name, target)
        return target

    def _forge_encoder(self, folder: Path) -> None:
        path = folder / "encoder.json"
        if self.chance.random() < 0.15:
            victim = self.chance.choice(sorted(folder.iterdir()))
            victim.write_bytes(damaged(victim.read_bytes(), self.chance))
            return
        record = read_sealed(path)
        (weights,) = folder.glob("*.safetensors")
        tensors = read_tensors(weights)
        if self.chance.random() < 0.3:
            self._forge_tensors(tensors)
            record["weights_sha256"] = write_tensors(weights, tensors)
        else:
            record = changed(record, self.chance)
        if self.chance.random() < 0.8:  # the fingerprint, too, is right
            names = ("format", "base", "hash", "preprocessing", "active", "class_names")
            settings = {name: record.get(name) for name in names}
            record["fingerprint"] = fingerprint_of(settings, tensors)
        self._seal(path, record)

    def _forge_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        name = self.chance.choice(sorted(tensors))
        shape = self.chance.choice([(), (0,), (1,), (5,), (2, 3), (11, 7), (1, 1, 1, 1)])
        act = self.chance.random()
        if act < 0.3:
            del tensors[name]
        elif act < 0.6:
            tensors[name] = torch.ones(shape)
        elif act < 0.8:
            kinds = (torch.int64, torch.bool, torch.bfloat16, torch.complex64, torch.uint8)
            tensors[name] = tensors[name].to(self.chance.choice(kinds))
        elif act < 0.9:
            tensors[name] = torch.full_like(tensors[name], self.chance.choice((-1, 0, 1)))
        else:
            tensors[name + self.chance.choice(("x", ".y", "\n"))] = torch.ones(shape)

    def _seal(self, path: Path, record: Any) -> None:
        try:
            write_sealed(path, record)
        except (ValueError, RecursionError):  # too deep to be written by us: written by hand
            path.write_text('{"format": 1, "hash": ' + "[" * 60_000 + "]" * 60_000 + "}")

    def estimator(self) -> None:
        target = self._copied("estimator")
        (inside,) = target.glob("fitted-*")
        path = target / "flowhasher.json"
        act = self.chance.random()
        if act < 0.65:
            self._seal(path, changed(read_sealed(path), self.chance))
        elif act < 0.8:
            self._forge_encoder(inside / "encoder")
        elif act < 0.9:
            path.write_bytes(damaged(path.read_bytes(), self.chance))
        else:
            labels = inside / "labels.safetensors"
            tensors = read_tensors(labels)
            self._forge_tensors(tensors)
            record = read_sealed(path) | {"labels_sha256": write_tensors(labels, tensors)}
            self._seal(path, record)
        found = FlowHasher.load(target)
        try:
            found.kneighbors(self.rows[:3], 2)
        except ValueError:
            return  # a parameter that cannot be used, which scikit-learn says, in its own words

    def npy(self) -> None:
        path = self.folder / "forged.npy"
        if self.chance.random() < 0.4:
            path.write_bytes(damaged(npy_bytes(self.numbers), self.chance))
        else:
            path.write_bytes(self._forged_npy())
        found = open_collection(path)
        expected = np.load(path, allow_pickle=False)
        taken = found.take(np.arange(min(len(found), 100)))
        np.testing.assert_array_equal(taken, expected[:100].astype(taken.dtype))

    def _forged_npy(self) -> bytes:
        chance = self.chance
        sides = (-1, 0, 1, 5, 12, 64, True, 1 << 31, 1 << 62, 10**30, 2.5, "'a'", None)
        shape = tuple(chance.choice(sides) for _ in range(chance.choice((0, 1, 2, 2, 2, 3, 40))))
        kinds = ("'<f4'", "'<f8'", "'|O'", "'|u1'", "'<U0'", "'|S0'", "'|V0'", "'<U999999999'",
                 "'M8[s]'", "5", "[('a', '<f4')]", "'f4,f4'", "[]", "'|b1'")  # fmt: skip
        text = f"{{'descr': {chance.choice(kinds)}, 'fortran_order': False, 'shape': {shape}, }}"
        if chance.random() < 0.1:
            text = chance.choice(("[" * 4000, "{'descr'", "(" * 90 + ")" * 90, "", "5", "{}"))
        return npy_head(text, chance.choice((1, 1, 2, 3, 9))) + self.numbers.tobytes()

    def npz(self) -> None:
        chance, path = self.chance, self.folder / "forged.npz"
        method = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED,
                                zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))  # fmt: skip
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", method) as archive:
            forged = chance.random() < 0.4
            items = self._forged_npy() if forged else npy_bytes(self.numbers)
            archive.writestr("X.npy", items)
            archive.writestr(
                chance.choice(("y.npy", "y", "y.npy", "a\nb.npy")), npy_bytes(self.labels)
            )
        whole = content.getvalue()
        act = chance.random()
        if act < 0.3:
            whole = damaged(whole, chance)
        elif act < 0.6:
            whole = forged_directory(whole, chance)
        path.write_bytes(whole)
        splits = arrays(path, validation=0.4)
        try:
            expected = np.load(path)["X"]
        except zipfile.BadZipFile:
            return  # what is mapped in place is not summed up: that would read all of it
        rows = splits.train.take(np.arange(len(splits.train)))
        assert {row.tobytes() for row in rows} <= {row.tobytes() for row in expected.astype("f4")}

    def parquet(self) -> None:
        import pyarrow
        import pyarrow.parquet

        path = self.folder / "forged.parquet"
        table = pyarrow.table({"X": list(self.numbers), "y": self.labels})
        compression = self.chance.choice(("none", "snappy", "zstd"))
        pyarrow.parquet.write_table(table, path, compression=compression)
        path.write_bytes(damaged(path.read_bytes(), self.chance))
        found = open_collection(path)
        assert found.take(np.arange(len(found))).ndim == 2


def npy_bytes(array: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def npy_head(text: str, version: int = 1) -> bytes:
    """The beginning of an ``.npy`` file whose header is ``text``."""
    width = "<H" if version == 1 else "<I"
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + struct.pack(width, len(text) + 1)
        + text.encode()
        + b"\n"
    )


def forged_directory(content: bytes, chance: random.Random) -> bytes:
    """A zip file whose central directory tells something else of the first member."""
    place = content.index(b"PK\x01\x02")
    forged = bytearray(content)
    offset, width = chance.choice(((8, "<H"), (10, "<H"), (20, "<I"), (24, "<I"), (42, "<I")))
    value = chance.choice((0, 1, 9, 97, 0x7FFF)) if width == "<H" else (
        chance.choice((0, 1, 77, 1 << 31, 0xFFFFFFFE)))  # fmt: skip
    struct.pack_into(width, forged, place + offset, value)
    return bytes(forged)


def open_forgeries(folder: Path, count: int, seed: int = 0) -> collections.Counter[str]:
    """Open ``count`` forgeries of all kinds in turns; how often each outcome came.

    Raises:
        AssertionError: something else came than a right answer or an error of ours in one line.
    """
    forger = Forger(folder, seed)
    outcomes: collections.Counter[str] = collections.Counter()
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        forger.chance.seed(f"{seed} {number}")  # so that each can be made again by itself
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                getattr(forger, kind)()
            outcome = "opened"
        except OURS as error:
            outcome = type(error).__name__
            text = str(error)
            assert text.isprintable(), f"{kind} {number}: {text!r:.3000}"
            assert len(text) < LONGEST, f"{kind} {number}: {text!r:.3000}"
        except BaseException:
            print(f"forgery {number} of seed {seed}: {kind}", file=sys.stderr)
            raise
        outcomes[f"{kind} {outcome}"] += 1
    return outcomes


if __name__ == "__main__":
    import resource

    wanted, start = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as place:
        open_forgeries(Path(place) / "warm", 0, start)  # libraries and kernels are in memory then
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        counted = open_forgeries(Path(place), wanted, start)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    print(json.dumps({"outcomes": dict(sorted(counted.items())), "megabytes": grown}))
