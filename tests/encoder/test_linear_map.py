"""Few vectors through linear networks without torch: what torch and numpy make of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flowhash.data import Preprocessing
from flowhash.encoder import Encoder
from flowhash.encoder.linear_map import MOST_ROWS
from flowhash.errors import InputError
from flowhash.learn import adapt_encoder, router_encoder
from flowhash.learn.routing.neighbour_router import NeighbourRouter
from flowhash.networks import (
    BaseEmbeddings,
    BucketOrder,
    EmbeddingNetwork,
    PlainVectors,
    build_backbone,
)
from flowhash.serve.search_executor import QueryEncoder

DIM, BUCKETS = 13, 37
KINDS = ("router", "whitened", "chained", "alone", "ordered by nothing")


def rows_of(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(3, 2, (count, DIM)).astype(np.float32)


def preprocessing(shape: tuple[int, ...] = (DIM,)) -> Preprocessing:
    random = np.random.default_rng(5)
    mean = np.asarray(random.normal(size=shape), np.float32)
    return Preprocessing("vectors", None, 0.37, mean, np.float32(1.9) * np.ones((), np.float32))


def encoder_of(kind: str) -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        hashing = EmbeddingNetwork(PlainVectors(DIM), BUCKETS)
        base: EmbeddingNetwork | None = EmbeddingNetwork(PlainVectors(DIM), None)
        if kind in ("whitened", "chained"):
            base = EmbeddingNetwork(PlainVectors(DIM), 6)
        if kind == "chained":
            hashing = EmbeddingNetwork(BaseEmbeddings(6), BUCKETS)
        if kind == "alone":
            base = None
        if kind == "ordered by nothing":
            hashing.order = BucketOrder(torch.full((2, BUCKETS), 0.5), 0.0)
    return Encoder(base, hashing, preprocessing(() if kind == "router" else (DIM,)), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_few_are_what_torch_makes_of_them_and_what_numpy_does(kind: str) -> None:
    encoder = encoder_of(kind)
    items = rows_of(MOST_ROWS + 1)
    many = encoder.encode(items)
    assert encoder.encode_few(items) is None  # torch's
    for count in (1, 3, MOST_ROWS):
        few = encoder.encode_few(items[:count])
        assert few is not None
        assert (few.active, few.fingerprint) == (1, encoder.fingerprint)
        for made in (few, encoder.encode(items[:count]), QueryEncoder(encoder, 1)(items[:count])):
            np.testing.assert_allclose(made.activations, many.activations[:count], 1e-5, 1e-5)
            np.testing.assert_allclose(made.embeddings, many.embeddings[:count], 1e-5, 1e-5)
    if kind in ("router", "ordered by nothing"):  # stored vectors and queries are the same
        np.testing.assert_array_equal(few.embeddings, many.embeddings[:MOST_ROWS])
    taken = encoder.preprocessing
    vectors = (items.astype(np.float64) * taken.scale - taken.mean) / taken.std
    layers = [network.head for network in (encoder.base, encoder.hash) if network]
    for layer in layers[-2 if kind == "chained" else -1 :]:
        weights, biases = (value.double().numpy() for value in layer.parameters())
        vectors = vectors @ weights.T + biases
    np.testing.assert_allclose(few.activations, vectors[:MOST_ROWS], 1e-5, 1e-5)


@pytest.mark.parametrize("kind", ["router", "chained"])
def test_stored_embeddings_have_the_same_activations(kind: str) -> None:
    encoder = encoder_of(kind)
    made = encoder.encode(rows_of(200))
    for count in (1, 5, 200):
        stored = encoder.encode_stored(made.embeddings[:count])
        np.testing.assert_allclose(stored.activations, made.activations[:count], 1e-5, 1e-5)
        server = QueryEncoder(encoder, 1).activations_of(made.embeddings[:count])
        np.testing.assert_allclose(server, made.activations[:count], 1e-5, 1e-5)


def test_an_adapted_router_needs_no_torch_for_a_query_either() -> None:
    weights = np.random.default_rng(2).normal(size=(8, DIM)).astype(np.float32)
    encoder = router_encoder(NeighbourRouter(weights, np.zeros(8, np.float32)), preprocessing())
    made = encoder.encode(rows_of(400))
    adapted = adapt_encoder(encoder, made.embeddings, made.codes)
    few = adapted.encode_few(rows_of(400)[:2])
    assert few is not None
    everything = adapted.encode(rows_of(400)).activations
    np.testing.assert_allclose(few.activations, everything[:2], 1e-4, 1e-4)


@pytest.mark.parametrize("kind", ["weighted", "unit", "hidden", "large", "double"])
def test_other_networks_are_left_to_torch(kind: str) -> None:
    hashing = EmbeddingNetwork(PlainVectors(DIM), BUCKETS)
    base: Any = EmbeddingNetwork(PlainVectors(DIM), 6, unit=kind == "unit")
    if kind == "weighted":
        hashing.order = BucketOrder(torch.full((2, BUCKETS), 0.5), 4.0)
    if kind == "hidden":
        spec = {"name": "mlp", "inputs": DIM, "hidden": [7]}
        hashing = EmbeddingNetwork(build_backbone(spec), BUCKETS)
    if kind == "large":
        hashing = EmbeddingNetwork(PlainVectors(DIM), 1 << 18)
    if kind == "double":
        hashing.head = hashing.head.double()
    encoder = Encoder(base, hashing, preprocessing(), 1)
    assert encoder.encode_few(rows_of(1)) is None
    if kind != "double":
        assert encoder.encode(rows_of(1)).activations.shape == (1, hashing.outputs)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1e38, 1e17])
def test_what_cannot_be_used_is_refused_as_in_a_batch(wrong: float) -> None:
    encoder, items = encoder_of("router"), rows_of(3)
    items[1, 4] = wrong
    said = []
    for count in (3, MOST_ROWS + 3):
        with pytest.raises(InputError) as refusal:
            encoder.encode(np.concatenate((items, rows_of(count - 3))))
        said.append(str(refusal.value))
    assert said[0] == said[1]


def test_arrays_of_other_kinds_are_taken_as_before() -> None:
    encoder, items = encoder_of("router"), rows_of(4)
    wanted = encoder.encode(items)
    locked = items.copy()
    locked.flags.writeable = False
    turned = np.asfortranarray(items)
    for given in (items.astype(np.float64), locked, turned, items.tolist(), torch.tensor(items)):
        made = encoder.encode(given)
        np.testing.assert_array_equal(made.embeddings, wanted.embeddings)
        np.testing.assert_allclose(made.activations, wanted.activations, 1e-5, 1e-5)
    assert len(encoder.encode(items[:0])) == 0
    with pytest.raises(InputError, match="batch_size is 0"):
        encoder.encode(items, batch_size=0)
    with pytest.raises(InputError, match="device is 'tpu'"):
        encoder.encode(items, device="tpu")


def test_threads_at_once_get_each_their_own_answer() -> None:
    encoder, items = encoder_of("router"), rows_of(60)
    wanted = encoder.encode(items)
    fresh = encoder_of("router")  # whose map is made by whoever comes first

    def ask(place: int) -> NDArray[np.float32]:
        row = place % 60
        return fresh.encode(items[row : row + 1]).activations[0]

    with ThreadPoolExecutor(8) as pool:
        for place, made in enumerate(pool.map(ask, range(2_000))):
            np.testing.assert_array_equal(made, wanted.activations[place % 60])
