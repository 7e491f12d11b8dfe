"""Items are added, shown and deleted; what was acknowledged is on disk."""

from __future__ import annotations

import base64
import io
import signal
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from PIL import Image

from flowhash.encoder import Encoder
from flowhash.table import HashTable
from tests.encoder.encoders import items_of
from tests.serve.conftest import Servers
from tests.serve.servers import (
    ACTIVE,
    BUCKETS,
    DIM,
    ITEMS,
    KEY,
    image_file,
    make_strings,
    message_of,
    payload_of,
    raw_items,
    serving,
    start,
    started,
    string_id,
)

HEADERS = {"X-API-Key": KEY}


def path_of(item: int | str) -> str:
    return f"/items/{quote(str(item), safe='')}"


def raw(row: int, **more: Any) -> dict[str, Any]:
    codes, embeddings = raw_items(77)
    return {"embedding": embeddings[row].tolist(), "code": codes[row].tolist(), **more}


def test_any_id_can_be_got(servers: Servers) -> None:
    codes, _ = raw_items(1)
    for row in range(30):
        answer = servers.strings.client.get(path_of(string_id(row)))
        payload = payload_of(row)
        assert answer.status_code == 200, string_id(row)
        assert answer.json() == {
            "id": string_id(row),
            "label": payload and payload["label"],
            "name": payload and payload["name"],
            "picture": None,
            "payload": payload and {"number": row},
            "buckets": codes[row].tolist(),
        }
    assert servers.vectors.client.get("/items/17").json()["id"] == 17
    for wrong in ("nobody", "017", "1.0", "99999", str(1 << 70), "１７"):
        answer = servers.vectors.client.get(path_of(wrong))
        assert "whole numbers" in message_of(answer, 404, "not_found")


def test_items_come_and_go(servers: Servers) -> None:
    client = servers.strings.client
    names = ["new/ä b/1", "..%2f..", "#?&", "猫"]
    items = [raw(row, id=name, label="new", name="n", payload={"x": [row]})
             for row, name in enumerate(names)]  # fmt: skip
    answer = client.post("/items", json={"items": items}, headers=HEADERS)
    assert answer.status_code == 201, answer.text
    added = answer.json()
    assert added["ids"] == names
    assert added["buckets"] == [item["code"] for item in items]
    assert added["total"] == ITEMS + 4
    with HashTable.open(servers.strings.table) as table:  # on disk, seen by another process
        assert len(table) == ITEMS + 4
        for row, name in enumerate(names):
            kept = table[name]
            assert kept.payload == {"x": [row], "label": "new", "name": "n"}
            np.testing.assert_array_equal(kept.embedding, np.float32(items[row]["embedding"]))
            assert kept.code.tolist() == items[row]["code"]
    shown = client.get(path_of(names[0])).json()
    assert (shown["label"], shown["payload"], shown["name"]) == ("new", {"x": [0]}, "n")
    hits = servers.strings.search(embedding=items[2]["embedding"], buckets=items[2]["code"], top=1)[
        "answers"
    ][0]["hits"]
    assert hits[0]["id"] == names[2]
    # The same id again replaces.
    answer = client.post("/items", json={"items": [raw(9, id=names[0])]}, headers=HEADERS)
    assert answer.json()["total"] == ITEMS + 4
    assert client.get(path_of(names[0])).json()["label"] is None
    for left, name in enumerate(reversed(names)):
        answer = client.delete(path_of(name), headers=HEADERS)
        assert answer.json() == {"deleted": 1, "total": ITEMS + 3 - left}
        message_of(client.delete(path_of(name), headers=HEADERS), 404)
        message_of(client.get(path_of(name)), 404)
    assert len(HashTable.open(servers.strings.table)) == ITEMS


def test_a_string_table_makes_up_ids(servers: Servers) -> None:
    client = servers.strings.client
    answer = client.post("/items", json={"items": [raw(0), raw(1)]}, headers=HEADERS)
    ids = answer.json()["ids"]
    assert len(set(ids)) == 2
    for item in ids:
        assert client.delete(path_of(item), headers=HEADERS).status_code == 200


def test_vectors_are_encoded(servers: Servers) -> None:
    server = servers.vectors
    assert server.encoder is not None
    made = Encoder.load(server.encoder).encode(items_of("mlp", 3, seed=9))
    items = [{"vector": vector.tolist(), "label": "z"} for vector in items_of("mlp", 3, seed=9)]
    answer = server.client.post("/items", json={"items": items}).json()
    assert answer["buckets"] == made.codes.tolist()
    with HashTable.open(server.table) as table:
        for item, embedding in zip(answer["ids"], made.embeddings, strict=True):
            np.testing.assert_allclose(table[item].embedding, embedding, rtol=1e-5, atol=1e-6)
    for item in answer["ids"]:
        server.client.delete(f"/items/{item}")


def test_images_are_encoded_and_get_a_thumbnail(servers: Servers) -> None:
    server = servers.images
    assert server.encoder is not None
    random = np.random.default_rng(6)
    large = np.kron(random.integers(0, 255, (5, 10, 3)), np.ones((40, 40, 1))).astype(np.uint8)
    contents = [image_file(items_of("residual", 1, seed=4)[0]), image_file(large, "JPEG")]
    files = [("image", (f"C:\\pictures\\{place}.png", content))
             for place, content in enumerate(contents)]  # fmt: skip
    answer = server.client.post("/items", files=files, data={"label": "both"})
    assert answer.status_code == 201, answer.text
    ids = answer.json()["ids"]
    pictures = [Image.open(io.BytesIO(content)) for content in contents]
    made = Encoder.load(server.encoder).encode([pictures[0]])
    assert answer.json()["buckets"][0] == made.codes[0].tolist()
    for place, item in enumerate(ids):
        shown = server.client.get(f"/items/{item}").json()
        assert (shown["label"], shown["name"]) == ("both", f"{place}.png")
        assert shown["picture"] == f"/pictures/{item}"
        picture = server.client.get(shown["picture"])
        small = Image.open(io.BytesIO(picture.content))
        assert picture.headers["content-type"] == f"image/{small.format.lower()}"  # type: ignore[union-attr]
        width, height = pictures[place].size
        assert abs(small.width / small.height - width / height) < 0.05
        assert max(small.size) <= 96
        tag = {"If-None-Match": picture.headers["etag"]}
        assert server.client.get(shown["picture"], headers=tag).status_code == 304
        assert server.client.delete(f"/items/{item}").status_code == 200
    message_of(server.client.get(f"/pictures/{ids[0]}"), 404)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"vector": [1, 2]}, "no encoder"),
        ({"embedding": [1, 2, 3], "code": [1, 2]}, "embedding has 3 numbers; expected 4"),
        ({"embedding": [1, 2, 3, 4], "code": [1, 2, 3]}, "3 buckets; expected 1 to 2"),
        ({"embedding": [1, 2, 3, 4], "code": [1, -1]}, "items.0.code.1"),
        ({"embedding": [1, 2, 3, 4], "code": [1, 1]}, "different buckets"),
        ({"embedding": [1, 2, 3, 4], "code": [1, 99]}, "from 0 to 10"),
        ({"embedding": [1, 2, 3, 4]}, "items.0.code is missing"),
        ({"code": [1, 2]}, "items.0.embedding is missing"),
        ({"embedding": [0, 0, 0, 0], "code": [1, 2]}, "length"),
        ({"embedding": [1, 2, 3, 1e39], "code": [1, 2]}, "items.0.embedding.3"),
        ({"embedding": [1, 2, 3, "4"], "code": [1, 2]}, "items.0.embedding.3 is '4'"),
        (raw(0, id=5), "strings as ids"),
        (raw(0, id=""), "items.0.id"),
        (raw(0, id="a\nb"), "control characters"),
        (raw(0, id="\x7f"), "control characters"),
        (raw(0, **{f"x{number}": 1 for number in range(40)}), "items.0 has 42 names"),
        (raw(0, id="x" * 2000), "items.0.id"),
        (raw(0, label=3), "items.0.label"),
        (raw(0, payload=[1]), "items.0.payload"),
        (raw(0, payload={"picture": "data:text/html;base64,PGI+"}), "no picture"),
        (raw(0, payload={"x": "y" * (1 << 20)}), "at most 1048576"),
        (raw(0, colour="red"), "items.0.colour is not known"),
        ({}, "items.0.vector is missing"),
    ],
)
def test_what_cannot_be_stored_is_named(servers: Servers, item: Any, reason: str) -> None:
    answer = servers.strings.client.post("/items", json={"items": [item]}, headers=HEADERS)
    assert reason in message_of(answer, 422)
    for body in ([item], {"items": item}, {"items": []}, {"items": [item], "more": 1}, 5, "x"):
        answer = servers.strings.client.post("/items", json=body, headers=HEADERS)
        message_of(answer, 422)
    assert servers.strings.client.get("/health").json()["items"] == ITEMS


def test_an_item_in_fewer_than_k_buckets(servers: Servers) -> None:
    client = servers.strings.client
    item = {**raw(0, id="short"), "code": [4]}
    added = client.post("/items", json={"items": [item, raw(1, id="long")]}, headers=HEADERS)
    assert added.json()["buckets"] == [[4], raw(1)["code"]]
    assert client.get("/items/short").json()["buckets"] == [4]
    (found,) = servers.strings.search(id="short", top=3)["answers"]
    assert found["opened"] == [4]
    assert all(hit["id"] != "short" and 4 in hit["buckets"] for hit in found["hits"])
    asked = {"embedding": item["embedding"], "buckets": [4, 5], "top": 1}
    (hit,) = servers.strings.search(**asked)["answers"][0]["hits"]
    assert (hit["id"], hit["buckets"]) == ("short", [4])
    answer = client.post("/search", json={"id": "short", "probe": 2})
    assert "own 1 buckets" in message_of(answer, 422)
    for name in ("short", "long"):
        assert client.delete(f"/items/{name}", headers=HEADERS).status_code == 200


def test_items_of_two_kinds_are_refused(servers: Servers) -> None:
    items = [raw(0, id="a"), {"vector": [1.0], "id": "b"}]
    answer = servers.strings.client.post("/items", json={"items": items}, headers=HEADERS)
    assert "two requests" in message_of(answer, 422)
    items = [raw(0, id="a"), raw(1)]
    answer = servers.strings.client.post("/items", json={"items": items}, headers=HEADERS)
    assert "every item one, or none" in message_of(answer, 422)


def test_a_stored_picture_is_served_but_nothing_else(servers: Servers) -> None:
    client = servers.strings.client
    content = image_file(np.zeros((3, 3, 3), np.uint8))
    address = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    item = raw(0, id="with/picture", payload={"picture": address, "more": 1})
    assert client.post("/items", json={"items": [item]}, headers=HEADERS).status_code == 201
    shown = client.get(path_of("with/picture")).json()
    assert shown["payload"] == {"more": 1}
    assert shown["picture"] == "/pictures/with%2Fpicture"
    picture = client.get(shown["picture"])
    assert picture.content == content
    assert picture.headers["content-type"] == "image/png"
    assert "sandbox" in picture.headers["content-security-policy"]
    client.delete(path_of("with/picture"), headers=HEADERS)
    with HashTable.create(buckets=BUCKETS, dim=DIM, active=ACTIVE) as table:
        codes, embeddings = raw_items(0, 1)
        table.add(codes, embeddings, [5], [{"picture": "data:text/html;base64,PGI+"}])
        from flowhash.serve import create_app
        from tests.serve.test_limits import ask

        app = create_app(table)
        message_of(ask(app, "GET", "/pictures/5"), 404)
        assert ask(app, "GET", "/items/5").json()["picture"] is None


def test_samples_are_drawn_from_all_items(servers: Servers) -> None:
    get = servers.strings.client.get
    first, again, other = (
        get("/items", params={"count": 20, "seed": seed}).json() for seed in (1, 1, 2)
    )
    assert first == again != other
    assert first["total"] == ITEMS
    assert len({item["id"] for item in first["items"]}) == 20
    every = get("/items", params={"count": 1000}).json()["items"]
    assert {item["id"] for item in every} == {string_id(row) for row in range(ITEMS)}
    for wrong in ({"count": 0}, {"count": 1001}, {"seed": -1}, {"count": "many"}):
        assert next(iter(wrong)) in message_of(get("/items", params=wrong), 422)


def test_searches_go_on_while_items_come_and_go(servers: Servers) -> None:
    """Whoever searches sees an item whole or not at all, and nothing fails."""
    server = servers.vectors
    vectors = items_of("mlp", 30, seed=21)
    failures: list[Any] = []
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            while not over.is_set():
                body = {"vector": vectors[0].tolist(), "top": 20}
                answer = client.post("/search", json=body)
                if answer.status_code != 200:
                    failures.append(answer.text)
                    continue
                hits = answer.json()["answers"][0]["hits"]
                new = [hit for hit in hits if hit["id"] >= 1000]
                failures.extend(hit for hit in new if hit["payload"] != {"row": hit["id"] - 1000})

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        items = [{"vector": vector.tolist(), "id": 1000 + row, "payload": {"row": row}}
                 for row, vector in enumerate(vectors)]  # fmt: skip
        assert server.client.post("/items", json={"items": items}).status_code == 201
        for row in range(10):
            assert server.client.delete(f"/items/{1000 + row}").status_code == 200
    over.set()
    for thread in threads:
        thread.join()
    assert failures == []
    for row in range(10, 30):
        server.client.delete(f"/items/{1000 + row}")
    assert server.client.get("/health").json()["items"] == ITEMS


def test_concurrent_writes_are_all_kept(servers: Servers) -> None:
    ids: list[int] = []

    def add(start: int) -> None:
        with httpx.Client(base_url=servers.vectors.url, timeout=60) as client:
            for row in range(5):
                vector = items_of("mlp", 1, seed=start + row)[0].tolist()
                answer = client.post("/items", json={"items": [{"vector": vector}]})
                ids.extend(answer.json()["ids"])

    threads = [threading.Thread(target=add, args=(100 * place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 20
    with HashTable.open(servers.vectors.table) as table:
        assert all(item in table for item in ids)
    for item in ids:
        assert servers.vectors.client.delete(f"/items/{item}").status_code == 200


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    table = make_strings(tmp_path)
    server = started(start(table), table, None)
    acknowledged: list[str] = []
    deleted: list[str] = []
    broken = threading.Event()

    def write() -> None:
        try:
            for number in range(10**6):
                name = f"new/{number}"
                body = {"items": [raw(number % ITEMS, id=name)]}
                if server.client.post("/items", json=body).status_code == 201:
                    acknowledged.append(name)
                if number % 5 == 4:
                    gone = acknowledged[-3]
                    if server.client.delete(path_of(gone)).status_code == 200:
                        deleted.append(gone)
        except httpx.HTTPError:
            broken.set()

    writer = threading.Thread(target=write)
    writer.start()
    while len(acknowledged) < 12:
        assert writer.is_alive()
    server.process.send_signal(signal.SIGKILL)
    writer.join()
    assert broken.is_set()
    assert server.process.wait(60) == -signal.SIGKILL
    assert server.process.stdout is not None
    server.process.communicate()
    with HashTable.open(table, "r+") as again:
        assert again.check() == []
        for name in acknowledged:
            # The one that was being deleted when the process died may be there or not.
            if name != f"new/{len(acknowledged) - 3}" or name in deleted:
                assert (name in again) == (name not in deleted)


def test_a_reader_sees_what_a_writer_commits(tmp_path: Path) -> None:
    path = make_strings(tmp_path)
    with (
        serving((path, None, {"read_only": True})) as (reader,),
        HashTable.open(path, "r+") as table,
    ):
        assert "only reads" in message_of(
            reader.client.post("/items", json={"items": [raw(0)]}), 403, "read_only"
        )
        codes, embeddings = raw_items(5, 1)
        table.add(codes, embeddings, ["later"])
        seen = threading.Event()
        for _ in range(600):
            if reader.client.get("/items/later").status_code == 200:
                break
            seen.wait(0.1)
        else:
            pytest.fail("the reader never saw it")
        assert reader.client.get("/stats").json()["writable"] is False
