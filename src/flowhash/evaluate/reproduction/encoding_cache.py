"""Outputs of networks for whole splits, kept on disk; a backbone that several share runs once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from flowhash.data import Augmentation, LabelledItems, Preprocessing, release_pages
from flowhash.durable_files import atomic_file, remove_strays, replace_file
from flowhash.errors import DamagedFileError, InputError
from flowhash.networks import EmbeddingNetwork, device_of, run_networks
from flowhash.progress_bars import tracked

BATCH = 500  # images that go through a network at once
ROWS = 10_000  # features that go through a last layer at once
Parts = Iterator[NDArray[np.float32]]


class Encodings:
    """Makes and keeps features of backbones and outputs of networks, by their weights.

    They go to disk batch by batch and are mapped from there: what is in memory does not grow with
    the number of items.

    Args:
        folder: where they are kept.
        preprocessing: what the networks take.
        device: "auto", "cpu" or "cuda".
        quiet: no progress on the terminal.
    """

    def __init__(
        self, folder: Path, preprocessing: Preprocessing, device: str = "auto", quiet: bool = False
    ) -> None:
        self.folder, self.preprocessing, self.quiet = folder, preprocessing, quiet
        self.device = device_of(device)

    def outputs(
        self, items: LabelledItems, name: str, network: EmbeddingNetwork
    ) -> NDArray[np.float32]:
        """A network's outputs [n, outputs]; its backbone's features are computed once."""
        known = f"outputs-{name}-{self._split(items)}-{digest(network)}"
        return self._kept(known, items, self._finished(items, name, network))

    def features(
        self,
        items: LabelledItems,
        name: str,
        network: EmbeddingNetwork,
        augmentation: Augmentation | None = None,
        seed: tuple[int, ...] = (),
    ) -> NDArray[np.float32]:
        """A backbone's features [n, features], of images or of augmented ones.

        Args:
            items: a split.
            name: of it, in the file's name.
            network: whose backbone.
            augmentation: what is done to each image, or None.
            seed: of the augmentation.
        """

        def batch(start: int) -> NDArray[np.float32]:
            taken = items.take(np.arange(start, min(start + BATCH, len(items))))
            if augmentation is None:
                return self.preprocessing(taken)
            draws = augmentation.draw(len(taken), np.random.default_rng([*seed, start]))
            return self.preprocessing.augmented(taken, draws, augmentation)

        def parts() -> Parts:
            starts = range(0, len(items), BATCH)
            batches = (batch(start) for start in starts)
            made = run_networks([network.backbone.to(self.device)], batches, self.device)
            shown = made if self.quiet else tracked(made, f"encode {name}", len(starts))
            yield from (part for [part] in shown)

        way = "" if augmentation is None else _short(repr((augmentation, seed)).encode())
        known = f"{self._split(items)}{way}-{digest(network.backbone)}"
        return self._kept(f"features-{name}-{known}", items, parts())

    def _kept(self, name: str, items: LabelledItems, parts: Parts) -> NDArray[np.float32]:
        """What the file holds, mapped; where there is none, its parts are put in place at once."""
        path = self.folder / f"{name}.npy"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            began = time.perf_counter()
            remove_strays(path)
            with atomic_file(path) as file:
                _write_parts(file, parts, len(items))
                spent = repr(time.perf_counter() - began).encode()
                replace_file(path.with_suffix(".seconds"), spent)
        try:
            found: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise DamagedFileError(
                f"{path} is damaged ({error}); delete it, and the same command makes it anew"
            ) from error
        return found

    def seconds(self) -> float:
        """How long the backbones took for what is kept."""
        return sum(float(path.read_text()) for path in self.folder.glob("features-*.seconds"))

    def _split(self, items: LabelledItems) -> str:
        """What tells two splits of one name apart, without reading all items."""
        if len(items) == 0:
            raise InputError(f"{items.source} has no items to encode; expected one or more")
        some = items.take(np.linspace(0, len(items) - 1, 16).astype(np.int64))
        arrays = self.preprocessing.arrays()
        parts = [items.labels, some, *(arrays[name] for name in sorted(arrays))]
        return _short(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))

    def _finished(self, items: LabelledItems, name: str, network: EmbeddingNetwork) -> Parts:
        features = self.features(items, name, network)
        network = network.to(self.device).eval()
        for start in range(0, len(features), ROWS):
            rows = torch.from_numpy(np.array(features[start : start + ROWS]))
            release_pages(features)
            with torch.inference_mode():  # not around the yield: the caller's code would be in it
                made = network.finish(rows.to(self.device)).float().cpu().numpy()
            yield made


def _write_parts(file: IO[bytes], parts: Parts, count: int) -> None:
    """Write [n, …] arrays one after the other as one ``.npy`` file of ``count`` rows."""
    shape: tuple[int, ...] | None = None
    rows = 0
    for part in parts:
        if shape is None:
            shape = part.shape[1:]
            # Little-endian, as numpy.save writes it on the machines that torch runs on.
            head = {"descr": "<f4", "fortran_order": False, "shape": (count, *shape)}
            np.lib.format.write_array_header_1_0(file, head)
        if part.shape[1:] != shape:
            raise InputError(
                f"the network made rows of shape {list(part.shape[1:])} after rows of "
                f"{list(shape)}; expected one shape. Give items of one size"
            )
        file.write(np.ascontiguousarray(part, "<f4").data)
        rows += len(part)
    if rows != count:
        raise InputError(
            f"the network made {rows} rows of {count} items; expected one for each. Its forward "
            "must keep the batch's length"
        )


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def digest(network: nn.Module) -> str:
    """What tells the weights of two networks apart."""
    found = hashlib.sha256(repr(getattr(network, "spec", "")).encode())
    for name, value in network.state_dict().items():
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
