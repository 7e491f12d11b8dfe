"""What is too much, too large, too slow or no JSON is refused, with words."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from flowhash.errors import InputError
from flowhash.serve import ServeOptions, create_app
from flowhash.table import HashTable
from tests.serve.conftest import Servers
from tests.serve.servers import (
    ACTIVE,
    BUCKETS,
    DIM,
    ITEMS,
    finished,
    image_file,
    message_of,
    payload_of,
    raw_items,
    serving,
)

GOOD = {"embedding": [1, 2, 3, 4], "buckets": [1, 2]}


def small_table() -> HashTable:
    codes, embeddings = raw_items(0)
    table = HashTable.create(buckets=BUCKETS, dim=DIM, active=ACTIVE)
    table.add(codes, embeddings, payloads=[payload_of(row) for row in range(ITEMS)])
    return table


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def ask(app: Any, method: str, path: str, **options: Any) -> httpx.Response:
    """One request to an application in this process."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        base = "http://127.0.0.1:8000"
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            return await client.request(method, path, **options)

    return finished(send())


def exchange(url: str, sent: bytes) -> bytes:
    """Send bytes as they are and read until the server closes."""
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port or 80), timeout=60) as connection:
        connection.sendall(sent)
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
    return received


def test_large_bodies_are_refused_before_and_while_they_come() -> None:
    app = create_app(small_table(), options=ServeOptions(max_body=1000))
    for path in ("/search", "/items"):
        headers = {"Content-Type": "application/json"}
        answer = ask(app, "POST", path, content=b" " * 1001, headers=headers)
        assert "1000 bytes" in message_of(answer, 413, "too_large")
        read = 0

        async def endless() -> Any:
            nonlocal read
            while True:
                read += 100
                yield b" " * 100

        answer = ask(app, "POST", path, content=endless(), headers=headers)
        message_of(answer, 413, "too_large")
        assert read <= 1200
    answer = ask(app, "POST", "/search", content=json.dumps(GOOD), headers=headers)
    assert answer.status_code == 200
    answer = ask(app, "GET", "/health", headers={"Content-Length": "9" * 30})
    message_of(answer, 413)


def test_a_large_chunked_body_ends_a_real_connection(servers: Servers) -> None:
    head = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    body = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 10 + b"1\r\n \r\n"
    received = exchange(servers.strings.url, body)
    assert received.startswith(b"HTTP/1.1 413")
    assert servers.strings.client.get("/health").status_code == 200


def test_a_body_that_is_not_wanted_is_not_waited_for(tmp_path: Path) -> None:
    table = tmp_path / "table"
    HashTable.create(table, buckets=BUCKETS, dim=DIM, active=ACTIVE).close()
    with serving((table, None, {"timeout": 0.5})) as (server,):
        for status, kind, length in (
            (413, "application/json", 1 << 40),
            (415, "text/plain", 100),
            (408, "application/json", 100),
        ):
            for path in ("/search", "/items"):
                head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
                head += f"Content-Length: {length}\r\n\r\n{{"
                received = exchange(server.url, head.encode())  # until the server closes
                assert received.startswith(f"HTTP/1.1 {status}".encode())
                assert b"connection: close" in received.lower()


def test_without_a_key_the_body_is_not_waited_for(servers: Servers) -> None:
    head = "POST /items HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
    assert exchange(servers.strings.url, head.encode()).startswith(b"HTTP/1.1 401")
    answer = servers.strings.client.post("/items", json={})
    assert answer.status_code == 401
    assert "connection" not in servers.strings.client.get("/health").headers


@pytest.mark.parametrize(
    ("path", "start", "entry", "end", "reason"),
    [
        ("/search", b'{"vectors":[', b'["a"],', b"[1]]}", "lists and objects"),
        ("/search", b'{"vectors":[', b"[1],", b"[1]]}", "lists and objects"),
        ("/items", b'{"items":[', b"{},", b"{}]}", "lists and objects"),
        ("/search", b'{"id":"', b'\\"[', b'","topp":1}', "topp is not known"),
        ("/search", b'{"vectors":[[', b'"a",', b"1]]}", "vectors.0.0 is 'a'"),
        ("/search", b'{"vector":[', b'"a",', b"1]}", "vector.0 is 'a'"),
        ("/search", b'{"embedding":[1],"buckets":[', b'"a",', b"1]}", "buckets came"),
        ("/search", b'{"embedding":[', b'"a",', b'1],"buckets":[1]}', "embedding.0 is 'a'"),
        ("/search", b'{"id":[', b"1,", b"1]}", "id is [1, 1"),
        ("/items", b'{"items":[', b"1,", b"1]}", "items at once"),
        ("/items", b'{"items":[{"vector":[', b'"a",', b"1]}]}", "items.0.vector.0 is 'a'"),
    ],
)
def test_a_large_body_full_of_mistakes_is_refused_by_the_first(
    servers: Servers, path: str, start: bytes, entry: bytes, end: bytes, reason: str
) -> None:
    content = start + entry * ((10 << 20) // len(entry) - 20) + end
    headers = {"Content-Type": "application/json"}
    answer = servers.vectors.client.post(path, content=content, headers=headers)
    message = message_of(answer, 422)
    assert reason in message
    assert "more mistakes" not in message


def test_a_million_unknown_names_are_refused(servers: Servers) -> None:
    names = b",".join(b'"%d":1' % number for number in range(900_000))
    headers = {"Content-Type": "application/json"}
    for path, first in (("/search", b'"id":1'), ("/items", b'"items":[]')):
        content = b"{%s,%s}" % (first, names)
        answer = servers.vectors.client.post(path, content=content, headers=headers)
        assert "900001 names" in message_of(answer, 422)


async def meanwhile(app: Any, jobs: list[dict[str, Any]], go: threading.Event, path: str) -> Any:
    """The answer of ``path`` while ``jobs`` wait for ``go``, and the answers of these."""
    transport = httpx.ASGITransport(app)
    base = "http://localhost"
    async with httpx.AsyncClient(transport=transport, base_url=base, timeout=60) as client:
        waiting = [asyncio.create_task(client.post("/search", **job)) for job in jobs]
        await asyncio.sleep(0.2)
        answer = await client.get(path)
        assert not any(job.done() for job in waiting)
        go.set()
        return answer, await asyncio.gather(*waiting)


def test_large_bodies_are_read_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from flowhash.serve.request_body import LARGE
    from flowhash.serve.routes import search

    go = threading.Event()
    parse_json = search.parse_json
    monkeypatch.setattr(search, "parse_json", lambda body: go.wait(60) and parse_json(body))
    app = create_app(small_table())
    large = {
        "content": json.dumps(GOOD) + " " * LARGE,
        "headers": {"Content-Type": "application/json"},
    }
    health, answers = finished(meanwhile(app, [large], go, "/health"))
    assert health.status_code == answers[0].status_code == 200


def test_images_do_not_hold_up_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from flowhash.serve.routes import search
    from tests.encoder.encoders import items_of, make

    go = threading.Event()
    decode = search.decode
    monkeypatch.setattr(search, "decode", lambda *given: go.wait(60) and decode(*given))
    encoder = make("residual")
    table = encoder.create_table()
    images = items_of("residual", 20)
    encoder.add(table, images)
    app = create_app(table, encoder)
    jobs = [{"files": {"image": image_file(images[0])}}] * 9
    items, answers = finished(meanwhile(app, jobs, go, "/items"))
    assert items.status_code == 200
    assert [answer.status_code for answer in answers] == [200] * 9


def test_all_images_of_a_request_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    from flowhash.serve.routes import items
    from tests.encoder.encoders import items_of, make

    decode = items.decode_and_keep

    def slow(*given: Any) -> Any:
        time.sleep(0.3)
        return decode(*given)

    monkeypatch.setattr(items, "decode_and_keep", slow)
    encoder = make("residual")
    app = create_app(encoder.create_table(), encoder, ServeOptions(timeout=1))
    content = image_file(items_of("residual", 1)[0])
    answer = ask(app, "POST", "/items", files=[("image", content)] * 5)
    assert "1 s" in message_of(answer, 504)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"nonsense", "no JSON"),
        (b'{"embedding": [NaN, 1, 1, 1], "buckets": [1, 2]}', "NaN"),
        (b'{"embedding": [Infinity, 1, 1, 1], "buckets": [1, 2]}', "Infinity"),
        (b'{"embedding": [1e999, 1, 1, 1], "buckets": [1, 2]}', "infinity"),
        (b'{"id": "\xff"}', "UTF-8"),
        (b'{"id": "\\ud800"}', "surrogate"),
        (b"[" * 90_000, "depth"),
        (b'{"id":' * 5000 + b"1" + b"}" * 5000, "depth"),
    ],
)
def test_what_is_no_json_is_refused(servers: Servers, content: bytes, reason: str) -> None:
    headers = {"Content-Type": "application/json"}
    for path in ("/search", "/items"):
        server = servers.strings if path == "/search" else servers.vectors
        answer = server.client.post(path, content=content, headers=headers)
        assert reason in message_of(answer, 400, "bad_json")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "none of them"),
        ([], "a list"),
        ("x", "a text"),
        (None, "null"),
        ({"vector": [1], "id": 1}, "vector and id"),
        ({**GOOD, "top": 0}, "top is 0"),
        ({**GOOD, "top": 1001}, "at most 1000"),
        ({**GOOD, "top": 1.5}, "top is 1.5"),
        ({**GOOD, "top": "5"}, "top is '5'"),
        ({**GOOD, "top": True}, "top is True"),
        ({**GOOD, "top": 10**30}, "top is"),
        ({**GOOD, "probe": 0}, "probe is 0"),
        ({**GOOD, "probe": 1000}, "probe is 1000, and the table has 11 buckets; expected 11 at"),
        ({**GOOD, "probe": 3}, "3 buckets are to be opened, but 2 are known"),
        ({**GOOD, "at_least": -1}, "at_least is -1"),
        ({**GOOD, "at_least": 2**40}, "at_least"),
        ({**GOOD, "payloads": 1}, "payloads is 1"),
        ({**GOOD, "where": [1]}, "where is not known"),
        ({**GOOD, "buckets": [1]}, "2 buckets are to be opened, but 1 are known"),
        ({**GOOD, "buckets": [1, BUCKETS]}, "from 0 to 10"),
        ({**GOOD, "buckets": [1, 2, BUCKETS], "probe": 1}, "from 0 to 10"),
        ({**GOOD, "buckets": [1, 2, 1], "probe": 1}, "different"),
        ({**GOOD, "buckets": [*range(BUCKETS), 1]}, "12 buckets came; the table has 11"),
        ({**GOOD, **{f"x{number}": 1 for number in range(40)}}, "the body has 42 names"),
        ({**GOOD, "buckets": [1, -1]}, "buckets.1 is -1"),
        ({**GOOD, "buckets": [1, 2.0]}, "buckets.1 is 2.0"),
        ({**GOOD, "buckets": [1, 10**30]}, "buckets.1"),
        ({**GOOD, "embedding": [1, 2, 3]}, "embedding has 3 numbers; expected 4"),
        ({**GOOD, "embedding": [1, 2, 3, None]}, "embedding.3 is None"),
        ({**GOOD, "embedding": [1, 2, 3, True]}, "embedding.3 is True"),
        ({**GOOD, "embedding": [1, 2, 3, [4]]}, "embedding.3 is [4]"),
        ({**GOOD, "embedding": [1, 2, 3, 1e39]}, "embedding.3 is 1e+39"),
        ({**GOOD, "embedding": "1234"}, "embedding is '1234'"),
        ({"embedding": [1, 2, 3, 4]}, "an embedding came without buckets"),
        ({**GOOD, "buckets": []}, "an embedding came without buckets"),
        ({"id": None}, "id is None; this table has strings as ids"),
        ({"id": 1.5}, "id is 1.5; this"),
        ({"id": True}, "id is True; this"),
        ({"id": 10**30}, "id is 1e+30; this"),
        ({"id": ["x"]}, "id is ['x']; this"),
        ({"id": nested(500)}, "deep"),
        ({"id": nested(30)}, "id is [[["),
    ],
)
def test_wrong_values_are_named(servers: Servers, body: Any, reason: str) -> None:
    answer = servers.strings.client.post(
        "/search", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert reason in message_of(answer, 422)


def test_batches_have_a_limit() -> None:
    from tests.encoder.encoders import items_of, make

    encoder = make("mlp")
    table = encoder.create_table()
    encoder.add(table, items_of("mlp", 50))
    app = create_app(table, encoder, ServeOptions(max_batch=3))
    vectors = items_of("mlp", 4).tolist()
    assert ask(app, "POST", "/search", json={"vectors": vectors[:3]}).status_code == 200
    answer = ask(app, "POST", "/search", json={"vectors": vectors})
    assert "4 vectors at once; expected at most 3" in message_of(answer, 422, "too_many")
    items = {"items": [{"vector": vector} for vector in vectors]}
    answer = ask(app, "POST", "/items", json=items)
    assert "4 items at once" in message_of(answer, 422, "too_many")
    app = create_app(table, encoder, ServeOptions(max_batch=500, max_top=100_000))
    answer = ask(app, "POST", "/search", json={"vectors": vectors, "top": 30_000})
    assert "100000 hits in all" in message_of(answer, 422, "too_many")
    answer = ask(app, "POST", "/search", json={"vectors": vectors[:2], "compare": True})
    assert "compare is for one query" in message_of(answer, 422)
    answer = ask(app, "POST", "/search", json={"vectors": [vectors[0], vectors[1][:2]]})
    assert "vector 1 has 2 numbers; expected 5" in message_of(answer, 422)


def test_deep_payloads_are_refused(servers: Servers) -> None:
    payload: Any = {}
    for _ in range(40):
        payload = {"x": [payload]}
    item = {"vector": [1, 2, 3, 4, 5], "payload": payload}
    answer = servers.vectors.client.post("/items", json={"items": [item]})
    assert "deep" in message_of(answer, 422)


def png_head(width: int, height: int) -> bytes:
    """A PNG that says it is huge; its pixels are a few hundred bytes of zeros."""

    def chunk(name: bytes, content: bytes) -> bytes:
        summed = name + content
        return struct.pack(">I", len(content)) + summed + struct.pack(">I", zlib.crc32(summed))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(100_000), 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("width", "height"),
    [(1001, 1000), (12_000, 12_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1), (1_000_001, 1)],
)
def test_bombs_are_refused_before_they_are_decoded(
    servers: Servers, width: int, height: int
) -> None:
    """Also those that only warn Pillow (89 to 178 million pixels)."""
    for path in ("/search", "/items"):
        answer = servers.images.client.post(path, files={"image": png_head(width, height)})
        message = message_of(answer, 413, "too_many_pixels")
        assert "pixels" in message
    assert servers.images.client.get("/health").json()["items"] == 60


def test_a_bomb_of_texts_is_refused(servers: Servers) -> None:
    """Compressed text in a PNG may be larger than any image."""
    from PIL import Image, PngImagePlugin

    texts = PngImagePlugin.PngInfo()
    for number in range(80):
        texts.add_text(f"key {number}", "x" * 1_000_000, zip=True)
    content = io.BytesIO()
    Image.new("RGB", (4, 4)).save(content, "PNG", pnginfo=texts)
    answer = servers.images.client.post("/search", files={"image": content.getvalue()})
    message_of(answer, 422)


def test_what_is_no_image_is_refused(servers: Servers) -> None:
    whole = image_file(np.random.default_rng(0).integers(0, 255, (50, 50, 3), dtype=np.uint8))
    post = servers.images.client.post
    for content, status in (
        (b"", 415),
        (b"GIF89a", 415),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415),
        (b"%PDF-1.4", 415),
        (whole[:200], 422),
        (whole[:-3000] + bytes(3000), 422),
    ):
        for path in ("/search", "/items"):
            message_of(post(path, files={"image": content}), status)
    for fields, files, reason in (
        ({"top": "3"}, {"picture": whole}, "'picture'"),
        ({"top": "x"}, {"image": whole}, "top is 'x'"),
        ({"topp": "3"}, {"image": whole}, "'topp'"),
        ({"payloads": "maybe"}, {"image": whole}, "payloads is 'maybe'"),
        ({"image": "text"}, {"image": whole}, "'image'"),
    ):
        assert reason in message_of(post("/search", data=fields, files=files), 422)
    answer = post("/search", files=[("image", whole), ("image", whole)])
    assert "Too many files" in message_of(answer, 400)
    answer = post("/items", files={"image": whole}, data={"id": "x"})
    assert "whole numbers" in message_of(answer, 422)
    answer = post("/items", files={"image": whole}, data={"label": "x" * 2000})
    assert "1024" in message_of(answer, 422)
    answer = post("/items", files={"image": whole}, data={"name": ["a", "b"]})
    assert "one each" in message_of(answer, 422)


def test_broken_forms_are_refused(servers: Servers) -> None:
    for kind, content in (
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=", b"x"),
        ("multipart/form-data; boundary=abc", b""),
        ("multipart/form-data; boundary=abc", b"--abc\r\nnonsense"),
        ("multipart/form-data; boundary=abc", b"--abc\r\nA: b\r\n\r\n\xff\r\n--abc--\r\n"),
        ("multipart/form-data; boundary=abc; charset=nonsense",
         b'--abc\r\nContent-Disposition: form-data; name="top"\r\n\r\n5\r\n--abc--\r\n'),
        ("multipart/form-data; boundary=abc",
         b'--abc\r\nContent-Disposition: form-data; name="top"\r\n\r\n\xff\xfe\r\n--abc--\r\n'),
        ("multipart/form-data; boundary=abc",
         b'--abc\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n5\r\n--abc--\r\n'),
    ):  # fmt: skip
        for path in ("/search", "/items"):
            answer = servers.images.client.post(
                path, content=content, headers={"Content-Type": kind}
            )
            assert answer.status_code in (400, 422), (kind, content, answer.text)
            message_of(answer, answer.status_code)


def test_other_types_of_bodies_are_refused(servers: Servers) -> None:
    for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/xml"}):
        for path in ("/search", "/items"):
            answer = servers.vectors.client.post(path, content=b"{}", headers=headers)
            assert "expected application/json or multipart" in message_of(answer, 415)


def test_other_paths_and_methods_are_json_too(servers: Servers) -> None:
    request = servers.vectors.client.request
    for path in (
        "/nothing",
        "/search/",
        "/docs",
        "/redoc",
        "/buckets/x/y",
        "/page/%2e%2e%2frunning.py",
    ):
        message_of(request("GET", path), 404, "not_found")
    for method, path, allowed in (
        ("GET", "/search", "POST"),
        ("PUT", "/items", "GET, HEAD, POST"),
        ("PUT", "/items/1", "DELETE, GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/items", "GET, HEAD, POST"),
        ("TRACE", "/stats", "GET, HEAD"),
        ("PATCH", "/", "GET, HEAD"),
    ):
        answer = request(method, path)
        message_of(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == allowed
    answer = request("HEAD", "/health")
    assert (answer.status_code, answer.content) == (200, b"")


def test_slow_bodies_are_given_up() -> None:
    app = create_app(small_table(), options=ServeOptions(timeout=0.2))

    async def slow() -> Any:
        yield b"{"
        await asyncio.sleep(60)
        yield b"}"

    async def never() -> Any:
        await asyncio.sleep(60)
        yield b"{}"

    for content in (slow, never):
        answer = ask(
            app, "POST", "/search", content=content(), headers={"Content-Type": "application/json"}
        )
        assert "0.2 s" in message_of(answer, 408)


def test_slow_searches_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(small_table(), options=ServeOptions(timeout=0.2))
    table = app.state.service.table
    go = threading.Event()
    search = table._search
    monkeypatch.setattr(
        table, "_search", lambda *args, **named: go.wait(60) and search(*args, **named)
    )
    answer = ask(app, "POST", "/search", json=GOOD)
    assert "0.2 s" in message_of(answer, 504, "timeout")
    answer = ask(app, "POST", "/search", json={**GOOD, "compare": True})
    assert "0.2 s" in message_of(answer, 504, "timeout")
    go.set()


def test_a_write_that_waits_too_long_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(small_table(), options=ServeOptions(timeout=0.3))
    table = app.state.service.table
    go = threading.Event()
    add = table.add
    monkeypatch.setattr(table, "add", lambda *args, **named: go.wait(60) and add(*args, **named))
    item = {"embedding": [1, 2, 3, 4], "code": [1, 2]}

    async def two() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        base = "http://localhost"
        async with httpx.AsyncClient(transport=transport, base_url=base, timeout=60) as client:
            first = asyncio.create_task(client.post("/items", json={"items": [item]}))
            await asyncio.sleep(0.1)
            second = await client.post("/items", json={"items": [item]})
            go.set()
            return [await first, second]

    first, second = finished(two())
    assert first.status_code == 201  # begun, so it was waited for, longer than the limit
    assert "nothing was changed" in message_of(second, 504)
    assert len(table) == ITEMS + 1


def test_too_many_requests_at_once_are_sent_away() -> None:
    app = create_app(small_table(), options=ServeOptions(max_waiting=3, timeout=60))
    table = app.state.service.table
    go = threading.Event()
    search = table._search
    table._search = lambda *args, **named: go.wait(60) and search(*args, **named)

    async def many() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            jobs = [asyncio.create_task(client.post("/search", json=GOOD)) for _ in range(5)]
            await asyncio.sleep(0.2)
            others = [await client.get("/health"), await client.get("/metrics")]
            go.set()
            return [*(await asyncio.gather(*jobs)), *others]

    *answers, health, metrics = finished(many())
    assert [answer.status_code for answer in answers] == [200] * 3 + [503] * 2
    assert health.status_code == 200
    for answer in answers[3:]:
        message_of(answer, 503, "busy")
        assert answer.headers["retry-after"] == "1"
    assert 'flowhash_refused_total{reason="requests"} 2.0' in metrics.text
    assert 'flowhash_refused_total{reason="wait"} 0.0' in metrics.text


def test_bodies_fill_the_memory_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    from flowhash.serve import request_guard

    monkeypatch.setattr(request_guard, "BODIES", 2)
    app = create_app(small_table(), options=ServeOptions(max_body=1000))
    release = asyncio.Event()

    async def slow() -> Any:
        yield b" " * 900
        await release.wait()
        yield json.dumps(GOOD).encode()

    async def several() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        headers = {"Content-Type": "application/json"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            jobs = [
                asyncio.create_task(client.post("/search", content=slow(), headers=headers))
                for _ in range(3)
            ]
            await asyncio.sleep(0.2)
            release.set()
            return await asyncio.gather(*jobs)

    answers = finished(several())
    assert [answer.status_code for answer in answers] == [200, 200, 503]
    message_of(answers[2], 503, "busy")
    assert app.state.service.metrics.held == 0
    assert b'flowhash_refused_total{reason="memory"} 1.0' in app.state.service.metrics.text()


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": -1}, {"port": 70000}, {"port": "80"}, {"max_body": 0}, {"max_top": True},
        {"timeout": 0}, {"timeout": float("nan")}, {"max_answer": 0}, {"max_connections": 0.5},
        {"send_timeout": -1}, {"max_wait": 0},
        {"idle_timeout": float("inf")}, {"threads": 0}, {"api_key": ""},
        {"api_key": " x"}, {"api_key": "ü"}, {"api_key": "a\nb"}, {"allowed_hosts": "example.com"},
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        ServeOptions(**wrong)
