"""Clients that do not read, or do not ask: they hold little memory, and stop nobody else."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from flowhash.serve.metrics import Metrics
from flowhash.table import HashTable
from tests.serve.servers import DIM, PATIENCE, Server, message_of, start, started

ROWS, SIZE = 1000, 10_000  # items, bytes of each payload: an answer of 10 MB, if all are wanted
LARGE = {"embedding": [1] * DIM, "buckets": [0], "top": ROWS}
SMALL = {**LARGE, "top": 3}
DESCRIPTORS = 200


def make_table(folder: Path) -> Path:
    random = np.random.default_rng(0)
    with HashTable.create(folder / "table", buckets=3, dim=DIM) as table:
        table.add(
            np.zeros((ROWS, 1), np.int32), random.normal(size=(ROWS, DIM)),
            payloads=[{"text": "x" * SIZE, "label": "a"}] * ROWS,
        )  # fmt: skip
    return folder / "table"


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with short limits, that may open few files."""
    table = make_table(tmp_path_factory.mktemp("connections"))
    process = start(table, max_answer=12_000_000, send_timeout=2, idle_timeout=1)
    try:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        server = started(process, table, None)
        yield server
        with connect(server, request(LARGE)):  # nor does one that never reads keep it from ending
            until(server, lambda now: now["flowhash_answer_bytes_held"] > 9e6)
            assert server.stop() == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    finally:
        process.kill()


def connect(server: Server | str, sent: bytes = b"") -> socket.socket:
    """A connection whose client reads nothing by itself."""
    address = httpx.URL(server if isinstance(server, str) else server.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE)
    connection.connect((address.host, address.port))
    connection.sendall(sent)
    return connection


def request(body: dict[str, Any]) -> bytes:
    built = httpx.Request("POST", "http://localhost/search", json=body)
    lines = [f"{name}: {value}" for name, value in built.headers.items()]
    return "\r\n".join(["POST /search HTTP/1.1", *lines, "", ""]).encode() + built.content


def rest_of(connection: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    received = b""
    try:
        while piece := connection.recv(1 << 20):
            received += piece
    except ConnectionResetError:
        pass
    return received


def measured(server: Server) -> dict[str, float]:
    text = server.client.get("/metrics").text
    found = re.findall(r"^(flowhash_\w+) ([0-9.e+]+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def until(server: Server, good: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """Wait for figures; they come sooner or later, or the test hangs for a while."""
    end = time.monotonic() + PATIENCE
    while not good(now := measured(server)):
        assert time.monotonic() < end, now
        time.sleep(0.02)
    return now


def nothing_held(now: dict[str, float]) -> bool:
    """Whether nobody but the one that asks is in work."""
    return now["flowhash_requests_running"] == 1 and now["flowhash_answer_bytes_held"] == 0


def test_an_answer_has_a_limit_that_says_how_to_ask_for_less(tmp_path: Path) -> None:
    from flowhash.serve import ServeOptions, create_app
    from flowhash.serve.request_guard import ANSWERS
    from tests.serve.test_limits import ask

    with HashTable.open(make_table(tmp_path)) as table:
        app = create_app(table, options=ServeOptions(max_answer=1_000_000))
        for method, path, body in (
            ("POST", "/search", LARGE),
            ("GET", f"/items?count={ROWS}", None),
            ("GET", f"/buckets/0?count={ROWS}", None),
        ):
            answer = ask(app, method, path, json=body)
            message = message_of(answer, 413, "answer_too_large")
            assert "1000000 bytes" in message
            assert "ask for" in message
        assert ask(app, "POST", "/search", json={**LARGE, "payloads": False}).status_code == 200
        assert len(ask(app, "GET", "/items?count=90").json()["items"]) == 90
        assert ask(app, "GET", "/buckets/0").json()["counted"] == 99  # as many as are read at once
        outbox = app.state.service.outbox
        assert outbox.held == 0
        outbox.take(ANSWERS * 1_000_000)  # others hold as much as may be held
        for method, path, body in (
            ("POST", "/search", {**LARGE, "top": 50}),
            ("GET", "/items?count=50", None),
        ):
            answer = ask(app, method, path, json=body)
            message_of(answer, 503, "busy")
            assert answer.headers["retry-after"] == "1"
        assert ask(app, "POST", "/search", json=SMALL).status_code == 200
        assert outbox.held == ANSWERS * 1_000_000


def test_one_answer_that_is_too_large_spoils_no_other(tmp_path: Path) -> None:
    from flowhash.serve.errors import RequestError
    from flowhash.serve.metrics import Metrics
    from flowhash.serve.request_guard import HeldAnswer, Outbox
    from flowhash.serve.search_executor import SearchExecutor, SearchQuery

    with HashTable.open(make_table(tmp_path)) as table:
        outbox = Outbox(1_500_000)
        searching = SearchExecutor(table, None, Metrics(lambda: 0), None, outbox)
        rows = np.ones((2, DIM), np.float32)
        order = np.zeros((2, 1), np.int32)
        one = SearchQuery(rows[:1], order[:1], 100, None, None, True)
        two = SearchQuery(rows, order, 100, None, None, True)
        answers = searching.batch([one, two, one])
        assert [type(answer) for answer in answers] == [HeldAnswer, RequestError, HeldAnswer]
        assert outbox.held == sum(len(answer) for answer in answers if isinstance(answer, bytes))
        del answers
        assert outbox.held == 0


def flood(server: Server, readers: int, idle: int, seconds: float) -> tuple[int, int, int]:
    """Keep so many clients that never read, and idle connections; whoever is cut off comes again.

    Returns:
        By how many bytes the server's memory grew at the most, how many searches were answered
        meanwhile, and how often a client was cut off.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < readers + idle + 500:
        pytest.skip(f"{hard} open files are not enough for {readers + idle} connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder = Path(f"/proc/{server.process.pid}")
    server.search(**SMALL)
    before = memory(folder, "VmRSS")
    largest_memory = LargestMemory(folder)
    answered = again = 0
    connections: dict[socket.socket, bytes] = {}
    try:
        wanted = [request(LARGE)] * readers + [b""] * idle
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for sent in wanted:
                connections[connect(server, sent)] = sent
            with httpx.Client(base_url=server.url, timeout=PATIENCE) as fresh:
                assert fresh.get("/health").status_code == 200
                answer = fresh.post("/search", json=SMALL)
                assert answer.status_code == 200, answer.text
            server.search(**SMALL)
            answered += 2
            time.sleep(0.2)
            gone = [connection for connection in connections if ended(connection)]
            wanted = [connections.pop(connection) for connection in gone]
            again += len(gone)
            for connection in gone:
                connection.close()
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        largest = largest_memory.stop()
    return largest - before, answered, again


class LargestMemory:
    """The largest memory of a process from now on: the kernel's figure, or else what samples see.

    Args:
        folder: of the process in /proc.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.largest = 0
        self._sampler: threading.Thread | None = None
        self._stopped = threading.Event()
        try:
            file = os.open(folder / "clear_refs", os.O_WRONLY)
            try:
                os.write(file, b"5")  # forgets the largest so far
            finally:
                os.close(file)
        except OSError:  # not every kernel has it
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()

    def stop(self) -> int:
        """Bytes; a process that has ended since leaves those of the last sample."""
        if self._sampler is None:
            return memory(self._folder, "VmHWM")
        self._stopped.set()
        self._sampler.join()
        return self.largest

    def _sample(self) -> None:
        stopped = False
        while not stopped:
            stopped = self._stopped.wait(0.02)  # one more sample when it is
            with suppress(OSError):
                self.largest = max(self.largest, memory(self._folder, "VmRSS"))


def test_memory_is_sampled_where_the_kernel_cannot_forget(tmp_path: Path) -> None:
    def set_memory(size: int) -> None:
        (tmp_path / "new").write_text(f"VmHWM:  900 kB\nVmRSS:  {size} kB\n")
        (tmp_path / "new").replace(tmp_path / "status")

    set_memory(10)
    measured = LargestMemory(tmp_path)
    set_memory(50)
    end = time.monotonic() + PATIENCE
    while measured.largest < 50 * 1024:
        assert time.monotonic() < end
        time.sleep(0.01)
    set_memory(20)
    assert measured.stop() == 50 * 1024


def memory(folder: Path, name: str) -> int:
    """Bytes of a process's resident memory: VmRSS now, VmHWM at the most."""
    found = re.search(rf"{name}:\s*(\d+) kB", (folder / "status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def ended(connection: socket.socket) -> bool:
    """Whether the server has ended a connection; nothing is read from it."""
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state != 1  # TCP_ESTABLISHED


def test_a_small_flood(server: Server) -> None:
    """Before the others: what memory they have left behind would hide what this one takes."""
    largest, answered, again = flood(server, 20, 100, 3)
    print(f"20 that never read, 100 idle, 3 s: +{largest / 1e6:.0f} MB, {answered} searches")
    assert largest < 200e6
    assert answered >= 2
    assert again > 0


def test_clients_that_do_not_read_are_counted_and_cut_off(server: Server) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(server, request(LARGE))) for _ in range(12)]
        # Answers of 10 MB are held, but never more than 48 MB; for the other clients is no room.
        now = until(server, lambda now: now["flowhash_answer_bytes_held"] > 9e6)
        assert now["flowhash_requests_running"] > 1
        assert len(server.search(**SMALL)["answers"][0]["hits"]) == 3
        assert server.client.get("/health").json()["status"] == "ok"

        def all_gone(now: dict[str, float]) -> bool:
            assert now["flowhash_answer_bytes_held"] <= 48e6
            return nothing_held(now)

        until(server, all_gone)
        received = [rest_of(connection) for connection in silent]
    assert {each[:12] for each in received} <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}
    assert all(len(each) < ROWS * SIZE for each in received)
    assert len(server.search(**LARGE)["answers"][0]["hits"]) == ROWS  # there is room again


def test_a_client_that_reads_slowly_gets_all(server: Server) -> None:
    """Longer than it may be idle, in pieces; the time limit is for the whole answer."""
    with connect(server, request({**LARGE, "top": 500})) as connection:
        received = b""
        for _ in range(6):
            time.sleep(0.2)
            received += connection.recv(1 << 16)
        while not received.endswith(b'"damaged":[]}'):
            piece = connection.recv(1 << 20)
            assert piece
            received += piece
    assert len(received) > 500 * SIZE


def test_idle_connections_are_closed(server: Server) -> None:
    answered = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    beginnings = (
        b"",
        b"GET /health HT",
        answered[:-2] + b"X-Slow: ",
        answered,
        answered + b"GET /",
    )
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(server, sent)) for sent in beginnings]
        received = [rest_of(connection) for connection in idle]
    assert received[:3] == [b"", b"", b""]
    assert all(each.startswith(b"HTTP/1.1 200") for each in received[3:])


def test_a_head_that_comes_byte_by_byte_is_given_up(server: Server) -> None:
    with connect(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ") as connection:
        end = time.monotonic() + PATIENCE
        while not ended(connection):
            assert time.monotonic() < end
            with suppress(OSError):
                connection.send(b"x")
            time.sleep(0.05)


def test_a_head_without_end_is_refused(server: Server) -> None:
    """With the first byte too many; after less the server waits for more."""
    head = b"GET /health HTTP/1.1\r\nX: ".ljust((1 << 16) + 1, b"x")
    with connect(server, head) as connection:
        received = rest_of(connection)
    assert received.startswith(b"HTTP/1.1 400")
    assert b"more than 65536 bytes" in received
    with connect(server, head[:-1]) as connection:
        assert rest_of(connection) == b""  # idle for too long
    assert server.client.get("/health").status_code == 200


def test_more_connections_than_descriptors(server: Server) -> None:
    """Others are closed for those that come, so that whoever asks is answered."""
    with ExitStack() as stack:
        for _ in range(DESCRIPTORS + 50):
            stack.enter_context(connect(server))
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as fresh:
            assert fresh.get("/health").status_code == 200
            assert len(fresh.post("/search", json=SMALL).json()["answers"][0]["hits"]) == 3
        assert measured(server)["flowhash_connections"] < DESCRIPTORS * 3 // 4


@contextmanager
def in_a_thread(most: int) -> Iterator[tuple[str, Metrics]]:
    """A server of this process that takes few connections, and closes none for being idle."""
    import uvicorn

    from flowhash.serve import ServeOptions, create_app
    from flowhash.serve.server import Connection
    from tests.serve.test_limits import small_table

    limits = ServeOptions(max_connections=most, idle_timeout=1e9, send_timeout=1e9)
    app = create_app(small_table())
    own = {"limits": limits, "metrics": app.state.service.metrics}
    connection = type("Limited", (Connection,), own)
    config = uvicorn.Config(app, port=0, log_level="warning", http=connection)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/", app.state.service.metrics
    finally:
        server.should_exit = True
        thread.join()


def begin(url: str, metrics: Metrics) -> socket.socket:
    """A request whose last byte is missing, and which the server has in work."""
    head = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection = connect(url, head + b"Content-Length: 2\r\n\r\n{")
    end = time.monotonic() + PATIENCE
    while metrics.running < 1:
        assert time.monotonic() < end
        time.sleep(0.01)
    return connection


def test_the_connection_that_is_idle_for_longest_makes_room() -> None:
    with in_a_thread(4) as (url, metrics), begin(url, metrics) as busy, ExitStack() as stack:
        idle = [stack.enter_context(connect(url)) for _ in range(9)]
        assert httpx.get(f"{url}health", timeout=PATIENCE).status_code == 200
        assert [rest_of(connection) for connection in idle[:7]] == [b""] * 7
        assert not any(ended(connection) for connection in idle[7:])
        busy.sendall(b"}")
        assert busy.recv(12) == b"HTTP/1.1 422"


def test_where_all_are_busy_further_connections_are_refused() -> None:
    with in_a_thread(1) as (url, metrics), begin(url, metrics) as busy:
        answer = httpx.get(f"{url}health", timeout=PATIENCE)
        assert "1 connections" in message_of(answer, 503, "busy")
        assert answer.headers["retry-after"] == "1"
        assert b'flowhash_refused_total{reason="connections"} 1.0' in metrics.text()
        busy.sendall(b"}")
        assert busy.recv(12) == b"HTTP/1.1 422"


def test_head_and_beginning_of_an_answer_come_together(server: Server) -> None:
    """Two packets would wake the client twice, and cost the server twice."""
    with connect(server) as connection:
        for _ in range(50):
            connection.sendall(request(SMALL | {"payloads": False}))
            answer = connection.recv(1 << 16)  # whatever has come
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
            assert len(json.loads(body)["answers"][0]["hits"]) == 3


def test_a_head_that_nothing_follows_is_sent_at_once(server: Server) -> None:
    """The answer to HEAD, also before another one, and to who asks whether to send a body."""
    head = b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = head.replace(b"HEAD", b"GET").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with connect(server, head) as connection:
        assert connection.recv(1 << 16).endswith(b"\r\n\r\n")
        connection.sendall(head + last)
        first, second, body = rest_of(connection).split(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 200")
        assert second.startswith(b"HTTP/1.1 200")
        assert json.loads(body)["status"] == "ok"
    head, body = request(SMALL).split(b"\r\n\r\n", 1)
    with connect(server, head + b"\r\nExpect: 100-continue\r\n\r\n") as connection:
        assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(12) == b"HTTP/1.1 200"


@pytest.mark.slow
def test_a_flood_for_a_minute(tmp_path: Path) -> None:
    """The bar: 200 clients that never read and 2,000 idle connections, with the usual limits."""
    table = make_table(tmp_path)
    process = start(table)
    try:
        server = started(process, table, None)
        largest, answered, again = flood(server, 200, 2000, 60)
        print(
            f"200 that never read, 2000 idle, 60 s: +{largest / 1e6:.0f} MB, {answered} searches "
            f"answered, {again} connections cut off"
        )
        assert largest < 200e6
        until(server, nothing_held)
        assert server.stop() == 0
    finally:
        process.kill()
