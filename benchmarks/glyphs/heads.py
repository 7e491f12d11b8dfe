"""What is compared: last layers on the trunk's embedding, and k-means."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from flowhash.codes import topk_codes
from flowhash.data import ArrayItems, LabelledItems, Preprocessing, Splits
from flowhash.encoder import Encoder
from flowhash.learn import (
    Checkpoints,
    Schedule,
    Settings,
    adapt_encoder,
    hash_start,
    read_journal,
    train,
    vector_settings,
)
from flowhash.learn.whitening import whitening
from flowhash.networks import BaseEmbeddings, EmbeddingNetwork, build_backbone

BATCH, RATE = 512, 3e-3  # of the rivals' heads: as many items a step as FlowHash's, and its rate
BLOCK = 2_048  # rows whose scores are made at once
TURNS = 20  # of k-means, as many as an adaptation has
PECOS = """
import sys, time
import numpy as np
import scipy.sparse as sparse
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel

given = np.load(sys.argv[1])
rows, labels = given["rows"], given["labels"]
truth = sparse.csr_matrix((np.ones(len(rows), np.float32), (np.arange(len(rows)), labels)))
began = time.process_time()
chain = Indexer.gen(LabelEmbeddingFactory.create(truth, rows, method="pifa"), max_leaf_size=100)
model = XLinearModel.train(rows, truth, C=chain, threads=1)
spent = time.process_time() - began
parts = model.model.model_chain
count = sum(part.W.nnz for part in parts)
right = [
    float((np.asarray(model.predict(given[name], only_topk=1).argmax(1))[:, 0] == given[name + "_labels"]).mean())
    for name in ("new", "face")
]
print([*right, count, spent])
"""  # noqa: E501


@dataclass(frozen=True, eq=False)
class Metric:
    """A linear map of the trunk's embedding, whose distances rank: matrix [dim, dim], shift [dim].

    Attributes:
        matrix: that vectors are multiplied by.
        shift: that is added then.
    """

    matrix: NDArray[np.float32]
    shift: NDArray[np.float32]

    def of(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Vectors to rank by [n, dim]."""
        return np.asarray(rows @ self.matrix.T + self.shift)


def whitened_metric(rows: NDArray[np.float32], labels: NDArray[np.int64]) -> Metric:
    """That of FlowHash's `rank="whitened"`, for the rivals."""
    matrix, middle = whitening(rows, labels)
    return Metric(matrix.astype(np.float32), (-matrix @ middle).astype(np.float32))


@dataclass(frozen=True, eq=False)
class Head:
    """A matrix whose rows are buckets, with what it took.

    Attributes:
        weights: [d, dim].
        biases: [d].
        loads: of the classes' codes, where it has such, or None [d].
        seconds: of one processor's time, in training.
        solver: milliseconds of them in a step's codes, or None.
        trained: whether its numbers are parameters that a training with labels made.
        metric: what ranks, or None for the trunk's embedding as it is.
    """

    weights: NDArray[np.float32]
    biases: NDArray[np.float32]
    loads: NDArray[np.int64] | None = None
    seconds: float = 0.0
    solver: float | None = None
    trained: bool = True
    metric: Metric | None = None

    @property
    def parameters(self) -> int:
        """How many numbers were learned."""
        return self.weights.size + self.biases.size

    def scores(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of the buckets [n, d]."""
        return np.asarray(rows @ self.weights.T + self.biases)

    def embedded(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """What ranks [n, dim]."""
        return rows if self.metric is None else self.metric.of(rows)

    def after(self, metric: Metric) -> Head:
        """Of a layer that takes what a metric makes: the same one on the trunk's embedding."""
        biases = self.biases + self.weights @ metric.shift
        return replace(self, weights=self.weights @ metric.matrix, biases=biases, metric=metric)


def linear_head(
    rows: NDArray[np.float32], labels: NDArray[np.int64], codes: NDArray[np.int64], buckets: int,
    steps: int, start: NDArray[np.float32] | None = None,
) -> Head:  # fmt: skip
    """Cross-entropy towards given buckets of each class [classes, k]: a softmax, or MACH's.

    With codes 0, 1, 2, … it is a softmax over the classes. ``start`` has weights and biases
    [d, dim + 1].
    """
    began = time.process_time()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng, layer = np.random.default_rng(0), nn.Linear(rows.shape[1], buckets)
    if start is not None:
        layer.weight.data, layer.bias.data = torch.from_numpy(start).split(rows.shape[1], 1)
        layer.bias.data = layer.bias.data[:, 0]
    optimiser = torch.optim.Adam(layer.parameters(), RATE)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * Schedule("cycle").scale(step, steps)
        chosen = rng.integers(0, len(rows), BATCH)
        likely = functional.log_softmax(layer(torch.from_numpy(rows[chosen])), 1)
        loss = -likely.gather(1, torch.from_numpy(codes[labels[chosen]])).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    weights, biases = (each.detach().numpy() for each in (layer.weight, layer.bias))
    loads = np.bincount(codes.ravel(), minlength=buckets)
    return Head(weights, biases, loads, time.process_time() - began)


def random_codes(classes: int, buckets: int, active: int) -> NDArray[np.int64]:
    """Buckets of each class by lot, as MACH hashes them [classes, k]."""
    rng = np.random.default_rng(1)
    return np.stack([rng.choice(buckets, active, replace=False) for _ in range(classes)])


def means_head(rows: NDArray[np.float32], buckets: int, metric: Metric | None = None) -> Head:
    """k-means of FAISS, where a metric is given in that one: the nearest mean is the bucket."""
    began = time.process_time()
    rows = rows if metric is None else metric.of(rows)
    means = faiss.Kmeans(
        rows.shape[1], buckets, niter=TURNS, seed=0, min_points_per_centroid=1,
        max_points_per_centroid=1_000,
    )  # fmt: skip
    means.train(rows)
    centres = means.centroids
    half = -np.square(centres).sum(axis=1) / 2
    head = Head(centres, half, None, time.process_time() - began, trained=False)
    return head if metric is None else head.after(metric)


@dataclass(frozen=True)
class FlowTraining:
    """How FlowHash is trained; what is not said is `vector_settings`'s.

    Attributes:
        buckets: d.
        active: k.
        seed: of the head.
        steps: of training.
        changes: of the hash stage.
        penalty: λ, or None for its own.
        rank: by what items rank, as ``Settings`` has it.
    """

    buckets: int
    active: int
    seed: int
    steps: int
    changes: dict[str, Any] = field(default_factory=dict)
    penalty: float | None = None
    rank: str = "base"


def flow_head(
    told: FlowTraining, folder: Path, train_part: tuple[Any, Any], held_part: tuple[Any, Any]
) -> tuple[Encoder, Head, dict[str, float]]:
    """FlowHash's encoder, its head, and its last validation. Parts are rows and labels from 0 on.

    What is finished is kept in the folder, and is not trained again.
    """
    settings, splits = _training(told, train_part, held_part)
    began = time.process_time()
    encoder = train(splits, settings, folder, device="cpu", quiet=True)
    kept = folder / "seconds.json"
    if not kept.exists():
        kept.write_text(json.dumps(time.process_time() - began))
    seconds = json.loads(kept.read_text())
    best = Checkpoints(folder / "hash").load("best")
    assert best is not None
    codes = np.array(best.record["chosen"])
    lines = read_journal(folder / "metrics.jsonl")
    share = np.mean([line["solver_share"] for line in lines if "solver_share" in line])
    loads = np.bincount(codes[codes >= 0], minlength=told.buckets)
    solver = 1000 * float(share) * seconds / told.steps
    head = replace(_layer(encoder), loads=loads, seconds=seconds, solver=solver)
    checked = [line for line in lines if line.get("validation")]
    return encoder, head, {name: checked[-1][name] for name in ("pr1", "suf", "empty_buckets")}


def _layer(encoder: Encoder) -> Head:
    """The last layer of an encoder, on the trunk's embedding, and by what it ranks."""
    assert encoder.hash.order is None  # classes are not cut: no matrix beside the layer
    assert encoder.base is not None
    (weights, biases), metric = _numbers(encoder.hash.head), None
    if isinstance(encoder.base.head, nn.Linear):
        metric = Metric(*_numbers(encoder.base.head))
    head = Head(weights, biases, metric=metric)
    if metric is not None and isinstance(encoder.hash.backbone, BaseEmbeddings):
        return head.after(metric)
    return head


def _numbers(layer: nn.Module) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    assert isinstance(layer, nn.Linear)
    return layer.weight.detach().numpy(), layer.bias.detach().numpy()


def adapted_head(encoder: Encoder, head: Head, rows: NDArray[np.float32], seed: int) -> Head:
    """The buckets of a trained head, fitted to the items of a table, without labels."""
    began = time.process_time()
    codes = np.concatenate([
        topk_codes(head.scores(rows[start : start + BLOCK]), encoder.active)
        for start in range(0, len(rows), BLOCK)
    ])  # fmt: skip
    adapted = adapt_encoder(encoder, head.embedded(rows), codes, seed=seed)
    return replace(_layer(adapted), seconds=time.process_time() - began, trained=False)


def start_head(told: FlowTraining, train_part: tuple[Any, Any]) -> Head:
    """Where FlowHash's last layer begins: no step is taken."""
    settings, splits = _training(told, train_part, train_part)
    plain = build_backbone({"name": "linear", "inputs": train_part[0].shape[1]})
    began = time.process_time()
    last = hash_start(splits, settings, EmbeddingNetwork(plain, None), device="cpu").head
    return Head(*_numbers(last), None, time.process_time() - began)


def _training(
    told: FlowTraining, train_part: tuple[Any, Any], held_part: tuple[Any, Any]
) -> tuple[Settings, Splits]:
    settings = vector_settings(
        train_part[1], told.buckets, active=told.active, steps=told.steps, seed=told.seed,
        penalty=told.penalty,
    )  # fmt: skip
    stage = replace(settings.hash, **told.changes)
    settings = replace(
        settings, hash=stage, validate_every=max(50, told.steps // 3), rank=told.rank
    )
    names = tuple(map(str, range(int(train_part[1].max()) + 1)))
    parts = [
        LabelledItems(ArrayItems(rows), labels, names, "glyphs")
        for rows, labels in (train_part, held_part)
    ]
    return settings, Splits(parts[0], parts[1], None, Preprocessing("vectors"))


def pecos_figures(python: Path, folder: Path, arrays: dict[str, NDArray[Any]]) -> list[float]:
    """Arg-max accuracy of XR-Linear on two sets of queries, its parameters, and its seconds.

    The package libpecos wants packages of its own, so that another interpreter runs it.
    """
    path = folder / "pecos.npz"
    np.savez(path, **arrays)
    done = subprocess.run(
        [str(python), "-c", PECOS, str(path)], capture_output=True, text=True, check=True
    )
    return list(map(float, json.loads(done.stdout.strip().splitlines()[-1])))
