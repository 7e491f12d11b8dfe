"""What is kept of networks' outputs: written in pieces, equal to what one piece would be."""

from __future__ import annotations

import io
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from flowhash.data import LabelledItems, Preprocessing
from flowhash.data.item_sources import ArrayItems
from flowhash.errors import InputError
from flowhash.evaluate.reproduction import encoding_cache as encoding
from flowhash.evaluate.reproduction.encoding_cache import Encodings
from flowhash.networks import EmbeddingNetwork, build_backbone, custom_backbone


def vectors(count: int, dim: int = 6) -> LabelledItems:
    made = np.random.default_rng(count).normal(size=(count, dim)).astype(np.float32)
    return LabelledItems(ArrayItems(made), np.zeros(count, np.int64), ("all",), "vectors")


def deep(dim: int, outputs: int) -> EmbeddingNetwork:
    backbone = build_backbone({"name": "mlp", "inputs": dim, "hidden": [dim + 1]})
    return EmbeddingNetwork(backbone, outputs, unit=True).eval()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "BATCH", 4)
    monkeypatch.setattr(encoding, "ROWS", 7)


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 30),
    dim=st.integers(1, 5),
    width=st.integers(1, 4),
    pieces=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_pieces_make_the_file_that_numpy_would_save(
    count: int, dim: int, width: int, pieces: tuple[int, int]
) -> None:
    items, network = vectors(count, dim), deep(dim, width)
    with torch.no_grad():
        inputs = torch.from_numpy(items.take(np.arange(count)))
        expected = {
            "features": network.backbone(inputs).numpy(),
            "outputs": network(inputs).numpy(),
        }
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "BATCH", pieces[0])
        patch.setattr(encoding, "ROWS", pieces[1])
        folder = Path(name)
        encodings = Encodings(folder, Preprocessing("vectors"), "cpu", quiet=True)
        made = {
            "outputs": np.array(encodings.outputs(items, "test", network)),
            "features": np.array(encodings.features(items, "test", network)),
        }
        for kind, values in expected.items():
            np.testing.assert_allclose(made[kind], values, atol=1e-6)
            (path,) = folder.glob(f"{kind}-*.npy")
            saved = io.BytesIO()
            np.save(saved, made[kind])
            assert path.read_bytes() == saved.getvalue()
        left = {path.suffix for path in folder.iterdir()}
        assert left == {".npy", ".seconds"}


def test_memory_does_not_grow_with_the_items(tmp_path: Path, monkeypatch: Any) -> None:
    """Arrays of numpy that are alive at once, against what all outputs take."""
    monkeypatch.setattr(encoding, "ROWS", 500)
    items, network = vectors(20_000, 32), deep(32, 64)
    Encodings(tmp_path / "warm", Preprocessing("vectors"), "cpu", True).outputs(
        vectors(1_000, 32), "test", network
    )  # imports and kernels take memory of their own
    encodings = Encodings(tmp_path, Preprocessing("vectors"), "cpu", quiet=True)
    tracemalloc.start()
    try:
        made = encodings.outputs(items, "test", network)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made.shape == (20_000, 64)
    assert peak < made.nbytes / 4


def test_what_fails_in_the_middle_leaves_nothing(
    small_pieces: None, tmp_path: Path, monkeypatch: Any
) -> None:
    items, network = vectors(20), deep(6, 3)
    encodings = Encodings(tmp_path, Preprocessing("vectors"), "cpu", quiet=True)
    original, calls = network.finish, []

    def stopped(features: Any) -> Any:
        calls.append(len(features))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(features)

    monkeypatch.setattr(network, "finish", stopped)
    with pytest.raises(KeyboardInterrupt):
        encodings.outputs(items, "test", network)
    names = sorted(path.name.partition("-")[0] for path in tmp_path.iterdir())
    assert names == ["features", "features"]  # whole, with its seconds
    monkeypatch.setattr(network, "finish", original)
    assert encodings.outputs(items, "test", network).shape == (20, 3)


class Halved(nn.Module):
    """A network that forgets every other item."""

    def forward(self, items: Any) -> Any:
        return items[::2]


def test_refuses_what_is_no_row_for_each_item(small_pieces: None, tmp_path: Path) -> None:
    halved = EmbeddingNetwork(custom_backbone(Halved(), features=6), 3)
    encodings = Encodings(tmp_path, Preprocessing("vectors"), "cpu", quiet=True)
    with pytest.raises(InputError, match="made 4 rows of 8 items; expected one for each"):
        encodings.features(vectors(8), "test", halved)
    with pytest.raises(InputError, match="vectors has no items to encode"):
        encodings.features(vectors(0), "test", deep(6, 3))
    assert not list(tmp_path.glob("*.npy*"))
