"""More to do than there is time: what would wait too long is refused whole, the rest is right."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from flowhash.serve import ServeOptions, create_app
from flowhash.serve.errors import RequestError
from flowhash.serve.search_executor import QueryBatcher
from flowhash.serve.service import READERS
from flowhash.serve.waiting_line import WaitingLine, WorkerPool
from flowhash.table import HashTable
from tests.serve.servers import (
    ACTIVE,
    BUCKETS,
    DIM,
    ITEMS,
    PATIENCE,
    Server,
    finished,
    make_images,
    message_of,
    raw_items,
    serving,
)
from tests.serve.test_limits import small_table

CLIENTS = 200  # more than fit into a batch, and the next
SHORT = 1e-5  # seconds to wait at the most: less than anything takes


def retry_after(line: WaitingLine) -> int | None:
    """What the line says to one that comes now; None lets it in."""
    try:
        line.check()
    except RequestError as error:
        refusal = error
    else:
        return None
    assert (refusal.status, refusal.code, refusal.refusal) == (503, "busy", "wait")
    return int(refusal.headers["Retry-After"])


def test_a_line_refuses_by_what_was_measured() -> None:
    line = WaitingLine(2.0)
    line.ahead = 1000
    assert retry_after(line) is None  # nothing is known yet
    line.took(1.0, 10)
    line.ahead = 20
    assert line.expected() == pytest.approx(2.0)
    assert retry_after(line) is None
    line.ahead = 21
    assert retry_after(line) == 3  # 2.1 s, in whole seconds
    line.ahead = 0
    line.took(100.0, 1)
    assert retry_after(line) is None  # whatever was measured: it would never be measured again
    line.ahead = 1
    assert retry_after(line) is not None
    for _ in range(30):
        line.took(0.01, 10)
    assert retry_after(line) is None
    assert line.expected() == pytest.approx(0.001, rel=0.5)


def test_threads_share_a_line() -> None:
    async def pool_of_four() -> list[float]:
        pool, go = WorkerPool(4, "test", 1.0), threading.Event()
        pool.line.took(8.0, 1)
        jobs, seen = [], []
        for _ in range(6):
            jobs.append(pool.submit(lambda: go.wait(PATIENCE)))
            seen.append(pool.line.expected())
        go.set()
        await asyncio.gather(*jobs)
        await asyncio.sleep(0)
        assert pool.line.ahead == 0
        pool.close()
        return seen

    assert finished(pool_of_four()) == pytest.approx([0, 0, 0, 0, 2, 4])


def test_a_batcher_refuses_what_would_wait_too_long() -> None:
    """By batches: one goes with the next that is not full, of its group or of another."""
    go = threading.Event()

    def work(queries: Sequence[Any]) -> list[bytes | BaseException]:
        assert go.wait(PATIENCE)
        return [query.name for query in queries]

    class Query:
        def __init__(self, name: bytes, rows: int, group: int) -> None:
            self.name, self.rows, self.group = name, rows, group

        def __len__(self) -> int:
            return self.rows

    async def overloaded() -> list[Any]:
        batcher = QueryBatcher(work, 4, PATIENCE, 1.0, "test")
        batcher.line.took(0.6)
        jobs = []
        for name, rows, group in (
            (b"in work", 1, 0),
            (b"first", 3, 0),
            (b"same batch", 1, 0),
            (b"second", 1, 1),
            (b"third", 1, 0),  # after a full batch and one of the other group
        ):
            jobs.append(asyncio.create_task(batcher.ask(Query(name, rows, group))))  # type: ignore[arg-type]
            await asyncio.sleep(0.05)
        go.set()
        answers = await asyncio.gather(*jobs, return_exceptions=True)
        assert batcher.line.ahead == 0
        answers.append(await batcher.ask(Query(b"later", 9, 0)))  # type: ignore[arg-type]
        batcher.close()
        return answers

    *served, refused, later = finished(overloaded())
    assert [*served, later] == [b"in work", b"first", b"same batch", b"second", b"later"]
    assert refused.headers["Retry-After"] == "2"  # two batches of 0.6 s


def at_once(url: str, requests: list[bytes]) -> list[httpx.Response]:
    """The answers to requests, each on a connection of its own, that are all sent before any is."""
    address = httpx.URL(url)
    with ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection((address.host, address.port), PATIENCE))
            for _ in requests
        ]
        for connection, request in zip(connections, requests, strict=True):
            connection.sendall(request)
        return [_answer(connection) for connection in connections]


def _answer(connection: socket.socket) -> httpx.Response:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(1 << 16)
    head, _, body = received.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    while len(body) < int(headers["content-length"]):
        body += connection.recv(1 << 16)
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)


def post(path: str, body: Any) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def refused_by(server: Server) -> dict[str, int]:
    text = server.client.get("/metrics").text
    found = re.findall(r'^flowhash_refused_total{reason="(\w+)"} (\S+)$', text, re.MULTILINE)
    return {reason: int(float(count)) for reason, count in found}


def check_refusal(answer: httpx.Response) -> None:
    assert "nothing was done" in message_of(answer, 503, "busy")
    assert re.fullmatch("[1-9][0-9]*", answer.headers["retry-after"])


def test_a_real_server_beyond_what_it_can_do(tmp_path: Path) -> None:
    codes, embeddings = raw_items(3)
    with HashTable.create(tmp_path / "table", buckets=BUCKETS, dim=DIM, active=ACTIVE) as table:
        table.add(codes, embeddings)
    random = np.random.default_rng(5)
    asked, right = [], []
    for _ in range(CLIENTS):
        query, code = random.normal(size=DIM).astype(np.float32), random.integers(BUCKETS)
        body = {"embedding": query.tolist(), "buckets": [int(code)], "probe": 1, "top": 1}
        asked.append(post("/search", body))
        inside = np.flatnonzero((codes == code).any(1))
        nearest = np.argmin(((embeddings[inside] - query) ** 2).sum(1))
        right.append(int(inside[nearest]))
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving((tmp_path / "table", None, {"max_wait": SHORT})) as (server,):
        served = refused = 0
        for _ in range(20):
            *answers, healthy = at_once(server.url, [*asked, health])
            assert healthy.json()["items"] == ITEMS
            for answer, expected in zip(answers, right, strict=True):
                if answer.status_code == 200:
                    assert answer.json()["answers"][0]["hits"][0]["id"] == expected
                    served += 1
                else:
                    check_refusal(answer)
                    refused += 1
        assert served > 20
        assert refused > 20
        assert refused_by(server) == {
            "wait": refused, "requests": 0, "connections": 0, "memory": 0,
        }  # fmt: skip
        for request, expected in zip(asked, right, strict=True):  # one by one, all are served
            (answer,) = at_once(server.url, [request])
            assert answer.json()["answers"][0]["hits"][0]["id"] == expected


def test_adds_are_refused_whole(tmp_path: Path) -> None:
    HashTable.create(tmp_path / "table", buckets=BUCKETS, dim=DIM, active=ACTIVE).close()

    def add(first: int) -> bytes:
        items = [{"id": first + place, "embedding": [1] * DIM, "code": [1]} for place in range(3)]
        return post("/items", {"items": items})

    acknowledged: set[int] = set()
    refused = 0
    with serving((tmp_path / "table", None, {"max_wait": SHORT})) as (server,):
        for turn in range(3):
            firsts = [10 * (turn * CLIENTS + number) for number in range(CLIENTS)]
            answers = at_once(server.url, [add(first) for first in firsts])
            for answer, first in zip(answers, firsts, strict=True):
                if answer.status_code == 201:
                    acknowledged |= {first, first + 1, first + 2}
                else:
                    check_refusal(answer)
                    refused += 1
        assert len(acknowledged) >= 9
        assert refused > CLIENTS
        assert refused_by(server)["wait"] == refused
        (answer,) = at_once(server.url, [add(10_000_000)])
        assert answer.status_code == 201
        acknowledged |= {10_000_000, 10_000_001, 10_000_002}
    with HashTable.open(tmp_path / "table") as table:
        assert set(table) == acknowledged


def test_images_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """And every other line refuses at its own door; what asks how the server is never waits."""
    from flowhash.encoder import Encoder

    place, encoder = make_images(tmp_path)
    with HashTable.open(place) as table:
        app = create_app(table, Encoder.load(encoder), ServeOptions(read_only=False))
        app.state.service.guard.writable = True
        lines = app.state.service.lines

        async def unread() -> Any:
            raise AssertionError("a body was read")
            yield b""

        async def ask(method: str, path: str, **more: Any) -> httpx.Response:
            transport = httpx.ASGITransport(app)
            base = "http://localhost"
            async with httpx.AsyncClient(transport=transport, base_url=base) as client:
                return await client.request(method, path, **more)

        form = {"content": unread(), "headers": {"Content-Type": "multipart/form-data; boundary=x"}}
        for name, method, path, more in (
            ("decode", "POST", "/search", form),
            ("wide", "POST", "/search", form),
            ("decode", "POST", "/items", form),
            ("write", "POST", "/items", form),
            ("write", "DELETE", "/items/1", {}),
            ("read", "GET", "/items/1", {}),
            ("read", "GET", "/stats", {}),
            ("read", "POST", "/search", {"json": {"id": 1}}),
            ("browse", "GET", "/items", {}),
        ):
            line = lines[name]
            line.took(0.9e9, 10**9)  # beside which what the test itself does is nothing
            line.ahead = 5 * (READERS if name == "read" else 1)
            answer = finished(ask(method, path, **more))
            check_refusal(answer)
            assert answer.headers["retry-after"] == "5"
            assert finished(ask("GET", "/health")).status_code == 200
            text = finished(ask("GET", "/metrics")).text
            shown = re.search(rf'^flowhash_expected_wait_seconds{{line="{name}"}} (.*)', text, re.M)
            assert shown is not None
            assert float(shown[1]) == pytest.approx(4.5)
            line.ahead = 0
        assert len(table) == 60
        assert finished(ask("GET", "/items/1")).json()["id"] == 1


def test_too_many_requests_are_told_when_the_slowest_line_has_moved() -> None:
    app = create_app(small_table(), options=ServeOptions(max_waiting=1))
    app.state.service.metrics.running = 1
    app.state.service.lines["write"].took(3.0, 1)
    app.state.service.lines["write"].ahead = 2

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/stats")

    answer = finished(ask())
    message_of(answer, 503, "busy")
    assert answer.headers["retry-after"] == "6"


def test_a_thread_that_still_works_for_one_who_gave_up_is_not_free() -> None:
    done = threading.Event()

    async def give_up() -> None:
        pool = WorkerPool(1, "test", 1.0)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(pool.submit(done.wait), 0.05)
        later = pool.submit(lambda: 7)
        ahead = pool.line.ahead
        done.set()
        assert await later == 7
        pool.close()
        await asyncio.sleep(0)  # who has left is counted when the loop comes to it
        assert (ahead, pool.line.ahead) == (1, 0)

    asyncio.run(give_up())
