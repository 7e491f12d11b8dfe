"""Searches over HTTP find what the table itself finds, and what brute force finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from flowhash.encoder import Encoder
from flowhash.table import HashTable, Hits
from tests.encoder.encoders import items_of
from tests.serve.conftest import Servers
from tests.serve.servers import (
    ACTIVE,
    BUCKETS,
    DIM,
    ITEMS,
    Server,
    image_file,
    message_of,
    payload_of,
    raw_items,
    string_id,
)


def assert_hits(answer: dict[str, Any], hits: Hits, row: int = 0) -> None:
    """The answer is that of the table, bit for bit, in this row."""
    count = int(hits.counts[row])
    found = answer["hits"]
    assert [hit["id"] for hit in found] == hits.ids[row, :count].tolist()
    distances = np.array([hit["distance"] for hit in found], np.float32)
    np.testing.assert_allclose(distances, hits.distances[row, :count], rtol=1e-5, atol=1e-6)
    assert answer["scanned"] == hits.scanned[row]


def by_cosine(queries: NDArray[np.float32], items: NDArray[np.float32]) -> NDArray[np.float64]:
    left, right = (rows.astype(np.float64) for rows in (queries, items))
    left /= np.linalg.norm(left, axis=1, keepdims=True)
    right /= np.linalg.norm(right, axis=1, keepdims=True)
    found: NDArray[np.float64] = 1 - left @ right.T
    return found


def test_vectors_are_searched_as_the_encoder_searches_them(servers: Servers) -> None:
    server = servers.vectors
    assert server.encoder is not None
    encoder = Encoder.load(server.encoder)
    vectors = items_of("mlp", 40, seed=5)
    with HashTable.open(server.table) as table:
        expected = encoder.search(table, vectors, top=7)
        order = encoder.encode(vectors).ordered_buckets(ACTIVE)
        codes = {item: table[item].code.tolist() for item in table}
    together = server.search(vectors=vectors.tolist(), top=7)
    assert together["exhaustive"] is None
    assert together["items"] == len(HashTable.open(server.table))
    for row in range(40):
        assert_hits(together["answers"][row], expected, row)
        assert together["answers"][row]["opened"] == order[row].tolist()
        for hit in together["answers"][row]["hits"]:
            assert hit["buckets"] == codes[hit["id"]]
    for row in range(5):
        alone = server.search(vector=vectors[row].tolist(), top=7, payloads=False)
        assert_hits(alone["answers"][0], expected, row)
        assert {hit["payload"] for hit in alone["answers"][0]["hits"]} == {None}
        assert {hit["buckets"] for hit in alone["answers"][0]["hits"]} == {None}
    # Few hits without payloads are written in one go, as above; so many piece by piece.
    many = server.search(vectors=vectors.tolist(), top=7, payloads=False)
    few = server.search(vectors=vectors[:9].tolist(), top=7, payloads=False)
    assert many["answers"][:9] == few["answers"]
    for row in range(40):
        assert_hits(many["answers"][row], expected, row)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    top=st.integers(1, 50),
    probe=st.none() | st.integers(1, BUCKETS),
    at_least=st.none() | st.integers(1, 2 * ITEMS),
    payloads=st.booleans(),
)
def test_all_options_mean_what_they_mean_to_the_table(
    servers: Servers, seed: int, top: int, probe: int | None, at_least: int | None, payloads: bool
) -> None:
    random = np.random.default_rng(seed)
    order = random.permutation(BUCKETS).astype(np.int32)
    query = random.normal(size=DIM).astype(np.float32)
    options: dict[str, Any] = {"probe": probe, "at_least": at_least, "payloads": payloads}
    asked = {"embedding": query.tolist(), "buckets": order.tolist(), "top": top, **options}
    answer = servers.strings.search(**asked)["answers"][0]
    with HashTable.open(servers.strings.table) as table:
        expected = table.search(order[None], query[None], top, **options)
        assert_hits(answer, expected)
        opened = answer["opened"]
        assert opened == order[: len(opened)].tolist()
        inside = {item for bucket in opened for item in table.bucket(bucket).tolist()}
        assert answer["scanned"] == len(inside)
        if at_least is None:
            assert len(opened) == (probe or ACTIVE)
        else:
            assert len(opened) == BUCKETS or len(inside) >= at_least
        for hit in answer["hits"]:
            assert hit["buckets"] == (table[hit["id"]].code.tolist() if payloads else None)


def test_brute_force_finds_the_same(servers: Servers) -> None:
    codes, embeddings = raw_items(1)
    random = np.random.default_rng(8)
    for _ in range(10):
        order = random.permutation(BUCKETS)[:3]
        query = random.normal(size=(1, DIM)).astype(np.float32)
        asked = {"embedding": query[0].tolist(), "buckets": order.tolist(), "probe": 3, "top": 12}
        found = servers.strings.search(**asked)["answers"][0]
        inside = np.flatnonzero(np.isin(codes, order).any(1))
        distances = by_cosine(query, embeddings[inside])[0]
        nearest = np.argsort(distances)[:12]
        assert [hit["id"] for hit in found["hits"]] == [string_id(row) for row in inside[nearest]]
        np.testing.assert_allclose(
            [hit["distance"] for hit in found["hits"]], distances[nearest], atol=1e-6
        )
        assert found["scanned"] == len(inside)


def test_hits_come_with_what_is_stored(servers: Servers) -> None:
    codes, _ = raw_items(1)
    rows = {string_id(row): row for row in range(ITEMS)}
    asked = {"embedding": [1, 0, 0, 0], "buckets": list(range(BUCKETS)), "probe": BUCKETS}
    hits = servers.strings.search(**asked, top=ITEMS)["answers"][0]["hits"]
    assert len(hits) == ITEMS
    for hit in hits:
        row = rows[hit["id"]]
        payload = payload_of(row)
        assert hit["label"] == (payload and payload["label"])
        assert hit["name"] == (payload and payload["name"])
        assert hit["payload"] == (payload and {"number": row})
        assert hit["picture"] is None
        assert hit["buckets"] == codes[row].tolist()


def test_an_id_finds_its_neighbours_but_not_itself(servers: Servers) -> None:
    codes, embeddings = raw_items(1)
    for row in (0, 2, 3, 4, 5):
        found = servers.strings.search(id=string_id(row), top=5)["answers"][0]
        inside = np.flatnonzero(np.isin(codes, codes[row]).any(1))
        distances = by_cosine(embeddings[[row]], embeddings[inside])[0]
        nearest = [place for place in inside[np.argsort(distances)].tolist() if place != row][:5]
        assert [hit["id"] for hit in found["hits"]] == [string_id(place) for place in nearest]
        assert found["opened"] == codes[row].tolist()
        assert found["scanned"] == len(inside)
    for item in ("nobody", 3):
        message = message_of(servers.strings.client.post("/search", json={"id": item}), 404)
        assert repr(item) in message
    answer = servers.strings.client.post("/search", json={"id": string_id(0), "probe": 3})
    assert "own 2 buckets" in message_of(answer, 422)


def test_comparison_opens_everything(servers: Servers) -> None:
    _, embeddings = raw_items(1)
    query = np.array([[1, -2, 0.5, 0.1]], np.float32)
    asked = {"embedding": query[0].tolist(), "buckets": [3, 4], "top": 9, "compare": True}
    found = servers.strings.search(**asked)
    beside = found["exhaustive"]
    distances = by_cosine(query, embeddings)[0]
    nearest = np.argsort(distances)[:9]
    assert beside["answers"][0]["ids"] == [string_id(row) for row in nearest]
    np.testing.assert_allclose(beside["answers"][0]["distances"], distances[nearest], atol=1e-6)
    assert beside["scanned"] == found["items"] == ITEMS
    assert min(beside["milliseconds"], found["milliseconds"]) > 0
    assert found["answers"][0]["scanned"] < ITEMS
    beside = servers.strings.search(id=string_id(7), top=3, compare=True)["exhaustive"]
    assert len(beside["answers"][0]["ids"]) == 3
    assert string_id(7) not in beside["answers"][0]["ids"]


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF"])
def test_an_image_is_searched_as_the_encoder_searches_it(servers: Servers, kind: str) -> None:
    server = servers.images
    assert server.encoder is not None
    encoder = Encoder.load(server.encoder)
    image = items_of("residual", 1, seed=3)[0]
    content = image_file(image, kind, **({"lossless": True} if kind == "WEBP" else {}))
    expected = found_by(encoder, server, content)
    answer = server.client.post(
        "/search", files={"image": content}, data={"top": "5", "compare": "true", "probe": ""}
    )
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert_hits(body["answers"][0], expected)
    assert body["exhaustive"]["scanned"] == 60
    for hit in body["answers"][0]["hits"]:
        assert hit["picture"] == f"/pictures/{hit['id']}"
        assert "picture" not in hit["payload"]


def found_by(encoder: Encoder, server: Server, content: bytes) -> Hits:
    """What the encoder makes of the same file, read by Pillow here."""
    import io

    from PIL import Image

    with HashTable.open(server.table) as table, Image.open(io.BytesIO(content)) as image:
        return encoder.search(table, [image], top=5)


def test_a_large_jpeg_gives_what_the_file_gives(servers: Servers, tmp_path: Any) -> None:
    server = servers.images
    assert server.encoder is not None
    random = np.random.default_rng(2)
    small = random.integers(0, 255, (12, 15, 3), dtype=np.uint8)
    content = image_file(np.kron(small, np.ones((60, 60, 1), np.uint8)), "JPEG")
    path = tmp_path / "large.jpg"
    path.write_bytes(content)
    with HashTable.open(server.table) as table:
        expected = Encoder.load(server.encoder).search(table, [path], top=5)
    answer = server.client.post("/search", files={"image": content}, data={"top": "5"})
    assert_hits(answer.json()["answers"][0], expected)


def test_what_a_server_cannot_encode_it_refuses(servers: Servers) -> None:
    search = servers.strings.client.post
    answer = search("/search", json={"vector": [1, 2]})
    assert "embedding and buckets" in message_of(answer, 422, "no_encoder")
    answer = search("/search", files={"image": b"x"})
    assert "vectors" in message_of(answer, 422, "no_images")
    answer = servers.images.client.post("/search", json={"vector": [1, 2]})
    assert "images" in message_of(answer, 422, "no_vectors")
    answer = servers.vectors.client.post("/search", json={"vector": [1, 2]})
    assert "vector has 2 numbers; expected 5" in message_of(answer, 422)
