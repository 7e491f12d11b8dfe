"""An encoder as one ONNX model: preprocessing, both networks and the order of buckets."""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from flowhash.durable_files import replace_file
from flowhash.errors import InputError
from flowhash.extras import require

if TYPE_CHECKING:
    from flowhash.encoder.encoder import Encoder

# From 19 on, an average pool's windows that hang over the edge are divided by what they hold.
OPSET = 20
LARGEST = 2_000_000_000  # bytes of weights; a protocol buffer ends at 2 GiB, with the graph
TOLERANCE = 1e-3  # of what ONNX runtime makes, against torch, next to the largest output


def export_onnx(encoder: Encoder, path: str | Path, first: int | None = None) -> None:
    """Write an encoder as one ONNX model, and see that ONNX Runtime makes of it what torch makes.

    The model has one input, ``items``: uint8 [n, height, width, 3] or float32 [n, numbers], as the
    data set holds them; n may be any number. Its outputs are ``embeddings`` float32 [n, dim],
    ``activations`` float32 [n, d] and ``ordered_buckets`` int32 [n, first], as
    ``flowhash.ordered_buckets`` gives them, ready for ``HashTable.search``. Metadata has the
    entries ``flowhash.fingerprint``, ``flowhash.active`` and ``flowhash.class_names`` (JSON).

    Args:
        encoder: what to export.
        path: the file to write, replaced in one step.
        first: how many buckets to order; all by default, so that any search finds enough of them.

    Raises:
        InputError: ``first`` is out of range, or the networks cannot be exported.
        MissingExtraError: onnx, onnxscript or onnxruntime is not installed.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require(package, "onnx")
    count = encoder.buckets if first is None else first
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= encoder.buckets:
        raise InputError(f"first is {first!r}; expected a whole number from 1 to {encoder.buckets}")
    encoder.networks.cpu()
    graph = _Graph(encoder, count).eval().requires_grad_(False)
    size = sum(value.nbytes for value in (*graph.parameters(), *graph.buffers()))
    if size > LARGEST:
        raise InputError(
            f"the networks have {size} bytes of weights; one ONNX file holds {LARGEST} at the "
            "most. Use smaller networks, or one that ranks with its own outputs"
        )
    model = _exported(graph, _example(encoder, 2))
    properties = {
        "fingerprint": encoder.fingerprint,
        "active": str(encoder.active),
        "class_names": json.dumps(encoder.class_names, ensure_ascii=False),
    }
    for name, value in properties.items():
        model.metadata_props.add(key=f"flowhash.{name}", value=value)
    content = model.SerializeToString()
    _compare(content, graph, _example(encoder, 3))
    replace_file(Path(path), content)


class _Graph(nn.Module):
    """What is exported: from items as they are stored to all that a search takes."""

    mean: Tensor
    inverse: Tensor

    def __init__(self, encoder: Encoder, first: int) -> None:
        super().__init__()
        preprocessing = encoder.preprocessing
        self.networks = encoder.networks
        self.first = first
        self.images = preprocessing.kind == "images"
        self.scale = float(np.float32(preprocessing.scale))
        self.register_buffer("mean", torch.from_numpy(np.array(preprocessing.mean)))
        self.register_buffer("inverse", torch.from_numpy(np.array(1 / preprocessing.std)))

    def forward(self, items: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings [n, dim], activations [n, d], ordered buckets [n, first]."""
        ready = (items.to(torch.float32) * self.scale - self.mean) * self.inverse
        if self.images:
            ready = ready.permute(0, 3, 1, 2)
        embeddings, activations = self.networks.both(ready)
        if embeddings is activations:  # an output has one name
            embeddings = activations.clone()
        # ONNX orders equal values by their place, as flowhash.ordered_buckets does; torch does not.
        order = torch.topk(activations, self.first, dim=1).indices
        return embeddings, activations, order.to(torch.int32)


def _example(encoder: Encoder, count: int) -> Tensor:
    size = encoder.preprocessing.size
    generator = torch.Generator().manual_seed(count)
    if size is not None:
        shape = (count, *size, 3)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    if encoder.input_dim is None:
        raise InputError(
            "nothing says how many numbers a vector has that this encoder takes; give its "
            "preprocessing a mean [numbers]"
        )
    return torch.randn(count, encoder.input_dim, generator=generator)


def _exported(graph: nn.Module, example: Tensor) -> Any:
    try:
        with _quiet():
            program = torch.onnx.export(
                graph,
                (example,),
                dynamo=True,
                input_names=["items"],
                output_names=["embeddings", "activations", "ordered_buckets"],
                dynamic_shapes=({0: torch.export.Dim("n")},),
                opset_version=OPSET,
                verbose=False,
            )
    except Exception as error:  # exporters fail in as many ways as there are networks
        reason = str(error).strip().split("\n")[0]  # pages follow, and are in the chained error
        raise InputError(
            f"torch cannot export these networks to ONNX: {reason:.300}. A network of your own has "
            "to take any number of items and to use operations that ONNX knows"
        ) from error
    assert program is not None
    return program.model_proto


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what torch tells its developers, such as that torchvision is not installed."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _compare(content: bytes, graph: nn.Module, items: Tensor) -> None:
    """Run the model once: exporters and runtimes have differed without a word before."""
    runtime = require("onnxruntime", "onnx")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    with torch.inference_mode():
        expected = graph(items)
    found = session.run(None, {"items": items.numpy()})
    for name, right, made in zip(("embeddings", "activations"), expected, found, strict=False):
        difference = float(np.abs(made - right.numpy()).max())
        if not difference <= TOLERANCE * max(1.0, float(right.abs().max())):
            raise InputError(
                f"ONNX Runtime's {name} differ from torch's by up to {difference:.3g}; nothing was "
                "written. Look for a layer that the exporter gets wrong, or try another version"
            )
