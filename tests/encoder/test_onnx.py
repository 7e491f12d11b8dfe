"""The exported model, run by ONNX Runtime, makes what torch makes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import flowhash
from flowhash.data.preprocess import Preprocessing
from flowhash.encoder import Encoder, onnx_export
from flowhash.errors import InputError, MissingExtraError
from flowhash.learn import adapt_encoder
from flowhash.networks import EmbeddingNetwork, custom_backbone
from tests.encoder.encoders import CLASSES, DIM, SIZE, items_of, make

runtime: Any = pytest.importorskip("onnxruntime", reason="needs flowhash[onnx]")
pytest.importorskip("onnxscript", reason="needs flowhash[onnx]")

# Of float32 sums in another order; outputs are around one. A window of the average pool that is
# divided by the wrong count would be off by a hundred times as much.
TOLERANCE = 2e-5


def run(path: Path, items: NDArray[Any]) -> list[NDArray[Any]]:
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    made: list[NDArray[Any]] = session.run(
        ["embeddings", "activations", "ordered_buckets"], {"items": items}
    )
    return made


def assert_same(encoder: Encoder, path: Path, items: NDArray[Any], first: int = 11) -> None:
    expected = encoder.encode(items)
    embeddings, activations, order = run(path, items)
    assert embeddings.dtype == activations.dtype == np.float32
    assert order.dtype == np.int32
    np.testing.assert_allclose(embeddings, expected.embeddings, atol=TOLERANCE, rtol=TOLERANCE)
    np.testing.assert_allclose(activations, expected.activations, atol=TOLERANCE, rtol=TOLERANCE)
    np.testing.assert_array_equal(order, flowhash.ordered_buckets(activations, first))


@pytest.mark.parametrize("kind", ["nin", "residual", "vit", "custom", "mlp", "linear"])
def test_every_network_for_any_number_of_items(kind: str, tmp_path: Path) -> None:
    encoder = make(kind, shared=kind == "residual", base=kind != "linear", ordered=kind == "mlp")
    path = tmp_path / "model.onnx"
    encoder.export_onnx(path)
    for count in (1, 3, 17):
        assert_same(encoder, path, items_of(kind, count, seed=count))
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]  # no weights beside it


@pytest.mark.parametrize("kind", ["residual", "mlp", "custom"])
def test_buckets_on_embeddings(kind: str, tmp_path: Path) -> None:
    """An adapted encoder, whose hash network takes what the base makes."""
    encoder, items = make(kind), items_of(kind, 40)
    made = encoder.encode(items)
    adapted = adapt_encoder(encoder, made.embeddings, made.codes)
    assert adapted.networks.chained
    adapted.export_onnx(tmp_path / "model.onnx")
    for count in (1, 17):
        assert_same(adapted, tmp_path / "model.onnx", items_of(kind, count, seed=count))


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_classes_behind_embeddings(metric: str, tmp_path: Path) -> None:
    encoder, items = make("mlp", ordered=True), items_of("mlp", 60)
    made = encoder.encode(items)
    codes = np.arange(60)[:, None] % 11  # of all three classes
    adapted = adapt_encoder(encoder, made.embeddings, codes, metric=metric)
    assert adapted.hash.backbone.classes == 3
    adapted.export_onnx(tmp_path / "model.onnx")
    assert_same(adapted, tmp_path / "model.onnx", items_of("mlp", 17, seed=1))


def test_buckets_without_items_come_last(tmp_path: Path) -> None:
    encoder = make("mlp")
    made = encoder.encode(items_of("mlp", 3))
    adapted = adapt_encoder(encoder, made.embeddings, made.codes)
    adapted.export_onnx(tmp_path / "model.onnx")
    asked = 1e3 * items_of("mlp", 17)
    assert_same(adapted, tmp_path / "model.onnx", asked)
    order = run(tmp_path / "model.onnx", asked)[2]
    used = set(adapted.encode_stored(made.embeddings).ordered_buckets(1)[:, 0].tolist())
    assert {tuple(sorted(row)) for row in order[:, : len(used)].tolist()} == {tuple(sorted(used))}


def test_the_model_says_what_it_takes_gives_and_is(tmp_path: Path) -> None:
    for kind, shape, dtype in (
        ("nin", ["n", *SIZE, 3], "tensor(uint8)"),
        ("mlp", ["n", DIM], "tensor(float)"),
    ):
        encoder = make(kind)
        encoder.export_onnx(tmp_path / "model.onnx", first=3)
        session = runtime.InferenceSession(tmp_path / "model.onnx")
        (taken,) = session.get_inputs()
        assert (taken.name, taken.shape, taken.type) == ("items", shape, dtype)
        assert {given.name: (given.shape, given.type) for given in session.get_outputs()} == {
            "embeddings": (["n", 4], "tensor(float)"),
            "activations": (["n", 11], "tensor(float)"),
            "ordered_buckets": (["n", 3], "tensor(int32)"),
        }
        properties = session.get_modelmeta().custom_metadata_map
        assert properties["flowhash.fingerprint"] == encoder.fingerprint
        assert properties["flowhash.active"] == "2"
        assert json.loads(properties["flowhash.class_names"]) == list(CLASSES)
        assert_same(encoder, tmp_path / "model.onnx", items_of(kind, 5), first=3)


class Pools(nn.Module):
    """NIN's two kinds of pool and nothing else, so that no average hides a window at the edge."""

    def forward(self, images: Tensor) -> Tensor:
        largest = nn.functional.max_pool2d(images, 3, 2, ceil_mode=True)
        return nn.functional.avg_pool2d(largest, 3, 2, ceil_mode=True).flatten(1)


@pytest.mark.parametrize("size", [(8, 12), (9, 9), (7, 10), (5, 6)])
def test_windows_that_hang_over_the_edge(size: tuple[int, int], tmp_path: Path) -> None:
    features = Pools()(torch.zeros(1, 3, *size)).shape[1]
    network = EmbeddingNetwork(custom_backbone(Pools(), features), None)
    encoder = Encoder(None, network, Preprocessing("images", size, 1 / 255), 1)
    encoder.export_onnx(tmp_path / "model.onnx")
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (4, *size, 3), dtype=np.uint8)
    assert_same(encoder, tmp_path / "model.onnx", images, features)


class Steps(nn.Module):
    """Few different values, so that many buckets tie; zeros of both signs too."""

    def forward(self, vectors: Tensor) -> Tensor:
        return (vectors.round() / 4).repeat(1, 20)


def test_ties_go_to_the_lower_bucket(tmp_path: Path) -> None:
    network = EmbeddingNetwork(custom_backbone(Steps(), 20 * DIM), None)
    preprocessing = Preprocessing("vectors", None, 1.0, np.zeros(DIM, np.float32))
    encoder = Encoder(None, network, preprocessing, 1)
    items = np.random.default_rng(0).normal(size=(17, DIM)).astype(np.float32)
    items[3] = 0.0
    for first in (7, 100):
        encoder.export_onnx(tmp_path / "model.onnx", first=first)
        assert_same(encoder, tmp_path / "model.onnx", items, first)
    assert len(np.unique(encoder.encode(items).activations[0])) < 6


@pytest.mark.parametrize("first", [0, 12, -1, 2.5, True, "all"])
def test_first_is_a_number_of_buckets(first: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"first is .*; expected a whole number from 1 to 11"):
        make("mlp").export_onnx(tmp_path / "model.onnx", first)


class OneByOne(nn.Module):
    """Looks at the numbers it gets, which no graph can."""

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors if float(vectors.sum()) > 0 else -vectors


def test_what_cannot_be_exported_says_so_and_writes_nothing(tmp_path: Path) -> None:
    preprocessing = Preprocessing("vectors", None, 1.0, np.zeros(DIM, np.float32))
    network = EmbeddingNetwork(custom_backbone(OneByOne(), DIM), 11)
    with pytest.raises(InputError, match="torch cannot export these networks to ONNX"):
        Encoder(None, network, preprocessing, 1).export_onnx(tmp_path / "model.onnx")
    unknown = EmbeddingNetwork(custom_backbone(nn.Linear(DIM, 3), 3), 11)
    with pytest.raises(InputError, match="nothing says how many numbers a vector has"):
        Encoder(None, unknown, Preprocessing("vectors"), 1).export_onnx(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_differs_from_torch_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export, "TOLERANCE", -1.0)
    with pytest.raises(InputError, match=r"embeddings differ from torch's by up to .*nothing was"):
        make("mlp").export_onnx(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_model_too_large_for_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = make("mlp", shared=True)
    # Weights and biases of the hidden layer, once, of both heads, and mean and spread.
    count = 5 * 7 + 7 + (7 * 4 + 4) + (7 * 11 + 11) + 5 + 1
    monkeypatch.setattr(onnx_export, "LARGEST", 4 * count - 1)
    with pytest.raises(InputError, match=rf"have {4 * count} bytes of weights; one ONNX file"):
        encoder.export_onnx(tmp_path / "model.onnx")
    monkeypatch.setattr(onnx_export, "LARGEST", 4 * count)
    encoder.export_onnx(tmp_path / "model.onnx")


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"onnxscript .*flowhash\[onnx\]"):
        make("mlp").export_onnx(tmp_path / "model.onnx")
