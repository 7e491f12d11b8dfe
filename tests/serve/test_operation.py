"""A server in operation: start, stop, health, figures, metrics, faults of our own."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import TypeAdapter

from flowhash import __version__
from flowhash.errors import InputError, LockedTableError
from flowhash.serve import ServeOptions, create_app, run
from flowhash.table import HashTable
from tests.encoder.encoders import items_of, make
from tests.serve.conftest import Servers
from tests.serve.servers import (
    ACTIVE,
    BUCKETS,
    DIM,
    ITEMS,
    PATIENCE,
    ROOT,
    finished,
    make_strings,
    make_vectors,
    message_of,
    payload_of,
    raw_items,
    start,
    started,
)
from tests.serve.test_limits import GOOD, ask, small_table


def test_stats_are_those_of_the_table(servers: Servers) -> None:
    import dataclasses

    for server, kind in ((servers.images, "images"), (servers.vectors, "vectors")):
        found = server.client.get("/stats").json()
        with HashTable.open(server.table) as table:
            expected = dataclasses.asdict(table.stats())
            assert found["encoder"] == table.encoder
        assert {name: found[name] for name in expected} == pytest.approx(expected)
        assert found["version"] == __version__
        assert found["writable"] is True
        assert found["takes"]["kind"] == kind
        assert found["takes"]["class_names"] == ["ant", "bée", "cow"]
    assert servers.images.client.get("/stats").json()["takes"]["size"] == [16, 14]
    assert servers.images.client.get("/stats").json()["limits"]["max_pixels"] == 1_000_000
    assert servers.vectors.client.get("/stats").json()["takes"]["inputs"] == 5
    assert servers.strings.client.get("/stats").json()["takes"] is None


def test_what_cannot_be_measured_is_null() -> None:
    table = HashTable.create(buckets=3, dim=2)
    found = ask(create_app(table), "GET", "/stats").json()
    assert found["suf"] is None
    assert found["items"] == 0
    assert ask(create_app(table), "GET", "/items").json() == {"total": 0, "items": []}
    body = {"embedding": [1, 2], "buckets": [0]}
    answer = ask(create_app(table), "POST", "/search", json=body).json()["answers"][0]
    assert (answer["hits"], answer["scanned"]) == ([], 0)


def test_buckets_are_counted(servers: Servers) -> None:
    codes, _ = raw_items(1)
    loads = np.bincount(codes.ravel(), minlength=BUCKETS)
    found = servers.strings.client.get("/buckets").json()
    assert found == {"buckets": BUCKETS, "active": ACTIVE, "loads": loads.tolist()}
    for bucket in range(BUCKETS):
        rows = np.flatnonzero((codes == bucket).any(1))
        payloads = [payload_of(row) for row in rows.tolist()]
        labels = [payload["label"] for payload in payloads if payload]
        counts = {label: labels.count(label) for label in set(labels)}
        found = servers.strings.client.get(f"/buckets/{bucket}", params={"count": 7}).json()
        assert found["load"] == found["counted"] == len(rows)
        assert {each["label"]: each["items"] for each in found["classes"]} == counts
        sizes = [each["items"] for each in found["classes"]]
        assert sizes == sorted(sizes, reverse=True)
        assert found["purity"] == pytest.approx(max(counts.values()) / len(labels))
        assert len({item["id"] for item in found["items"]}) == 7
        assert all(bucket in item["buckets"] for item in found["items"])
    for wrong, status in ((BUCKETS, 404), (-1, 422), ("x", 422), (10**30, 404), ("1.5", 422),
                          ("+1", 422), ("%201", 422), ("1_0", 422), ("٣", 422)):  # fmt: skip
        message_of(servers.strings.client.get(f"/buckets/{wrong}"), status)


def test_a_bucket_without_labels_has_no_purity() -> None:
    table = HashTable.create(buckets=3, dim=2)
    table.add([[1], [1]], [[0, 1], [1, 0]], payloads=[None, {"label": [1]}])
    found = ask(create_app(table), "GET", "/buckets/1").json()
    assert (found["purity"], found["classes"], found["load"]) == (None, [], 2)
    assert ask(create_app(table), "GET", "/buckets/0").json()["load"] == 0


def test_large_buckets_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    from flowhash.serve.routes import buckets

    monkeypatch.setattr(buckets, "COUNTED", 10)
    found = ask(create_app(small_table()), "GET", "/buckets/1").json()
    assert found["counted"] == 10
    assert sum(each["items"] for each in found["classes"]) <= 10
    assert found["load"] > 10


def test_metrics_count(servers: Servers) -> None:
    def read() -> dict[str, float]:
        text = servers.strings.client.get("/metrics").text
        return {
            f"{sample.name}{json.dumps(sample.labels, sort_keys=True)}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def requests(route: str, status: int, method: str = "POST") -> str:
        labels = {"method": method, "route": route, "status": str(status)}
        return f"flowhash_requests_total{json.dumps(labels)}"

    before = read()
    scanned = 0
    for _ in range(3):
        scanned += servers.strings.search(**GOOD)["answers"][0]["scanned"]
    scanned += servers.strings.search(**GOOD, compare=True)["answers"][0]["scanned"]
    servers.strings.client.post("/search", json={})
    servers.strings.client.get("/items/some/nobody")
    servers.strings.client.get("/nothing/at/all")
    servers.strings.client.request("PATCH", "/nothing")
    after = read()

    def gained(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert gained(requests("/search", 200)) == 4
    assert gained(requests("/search", 422)) == 1
    assert gained(requests("/items/{id}", 404, "GET")) == 1
    assert gained(requests("other", 404, "GET")) == 1
    assert gained("flowhash_search_batch_rows_sum{}") == 4
    assert gained("flowhash_scanned_items_total{}") == scanned
    assert gained('flowhash_request_seconds_count{"route": "/search"}') == 5
    assert after["flowhash_items{}"] == ITEMS
    assert after["process_resident_memory_bytes{}"] > 1 << 20
    assert after["flowhash_requests_running{}"] == 1  # the one that asks
    assert not any("nobody" in name or "PATCH" in name for name in after)


def test_the_document_describes_every_route(servers: Servers) -> None:
    document = servers.vectors.client.get("/openapi.json").json()
    found = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert found == {
        ("post", "/search"), ("get", "/items"), ("post", "/items"), ("get", "/items/{id}"),
        ("delete", "/items/{id}"), ("get", "/pictures/{id}"), ("get", "/buckets"),
        ("get", "/buckets/{bucket}"), ("get", "/stats"), ("get", "/health"), ("get", "/metrics"),
    }  # fmt: skip
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["description"]
            for status, response in operation["responses"].items():
                for media, content in response.get("content", {}).items():
                    shown = "example" in content or media.startswith("image/")
                    assert shown, (path, status)
    for path in ("/search", "/items"):
        bodies = document["paths"][path]["post"]["requestBody"]["content"]
        assert bodies.keys() == {"application/json", "multipart/form-data"}
        assert bodies["application/json"]["examples"]
    assert "$defs" not in json.dumps(document)


def test_the_document_allows_what_the_server_takes() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="schemathesis brings it")
    table = HashTable.create(buckets=6, dim=2, active=2)
    table.add([[0, 1]] * 60, np.zeros((60, 2)))
    table.calibrate(np.zeros((60, 6), np.float32), np.zeros((60, 2)), tops=1)

    async def ask() -> tuple[Any, list[int]]:
        transport = httpx.ASGITransport(create_app(table))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            document = (await client.get("/openapi.json")).json()
            answers = [
                await client.post("/items", json={"items": [{"embedding": [1, 2], "code": [3]}]}),
                *[await client.post("/search", json={"embedding": [1, 2], **how}) for how in ways],
            ]
            return document, [answer.status_code for answer in answers]

    ways: list[dict[str, Any]] = [
        {"buckets": [3], "probe": 1},
        {"buckets": [], "activations": [0.0] * 6, "recall": 0.8, "top": 1},
        {"activations": [0.0] * 5, "recall": 0.8, "top": 1},
    ]
    document, statuses = finished(ask())
    assert statuses == [201, 200, 200, 422]
    schemas = document["components"]["schemas"]

    def is_valid(model: str, name: str, value: Any) -> bool:
        schema = schemas[model]["properties"][name]
        return jsonschema.Draft202012Validator(schema).is_valid(value)

    for code, fits in (([], False), ([3], True), ([3, 4], True), ([3, 4, 5], False)):
        assert is_valid("NewEmbedding", "code", code) == fits
    assert is_valid("EmbeddingSearch", "buckets", [3])
    assert is_valid("EmbeddingSearch", "buckets", [])
    for count in range(8):
        assert is_valid("EmbeddingSearch", "activations", [0.0] * count) == (count in (0, 6))


def test_the_examples_are_true() -> None:
    from flowhash.serve.app import OPERATIONS
    from flowhash.serve.schemas import requests
    from flowhash.serve.schemas.responses import as_json

    answers = [operation.answer for operation in OPERATIONS if operation.answer is not None]
    assert len(answers) == 9
    for model in answers:
        TypeAdapter(model).validate_json(as_json(model.example), strict=True)
    for shown in requests.SEARCH_EXAMPLES.values():
        (name,) = requests.SEARCHES.keys() & shown["value"].keys()
        requests.SEARCHES[name].model_validate(shown["value"])
    for shown in requests.ITEM_EXAMPLES.values():
        for item in requests.ItemsToAdd.model_validate(shown["value"]).items:
            kind = requests.NewVector if "vector" in item else requests.NewEmbedding
            kind.model_validate(item)


def test_our_own_faults_are_logged_but_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(small_table())
    secret = "a detail of the server"

    def fail(*args: Any, **named: Any) -> None:
        raise RuntimeError(secret)

    monkeypatch.setattr(app.state.service.table, "_search", fail)
    monkeypatch.setattr(app.state.service.table, "sample", fail)
    for method, path, body in (("POST", "/search", GOOD), ("GET", "/items", None)):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            answer = ask(app, method, path, json=body)
        message = message_of(answer, 500, "internal")
        assert secret not in message
        (record,) = [record for record in caplog.records if record.name == "flowhash.serve"]
        assert record.exc_info is not None
        assert secret in str(record.exc_info[1])
        assert record.args[0] in message  # type: ignore[index]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_trouble_with_files_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    from flowhash.errors import DamagedFileError

    table = small_table()
    app = create_app(table)

    def fail(*args: Any, **named: Any) -> None:
        raise DamagedFileError("/some/secret/path is damaged")

    monkeypatch.setattr(table, "_search", fail)
    assert "secret" not in message_of(ask(app, "POST", "/search", json=GOOD), 503, "storage")
    table.close()
    message_of(ask(app, "GET", "/health"), 503, "storage")
    message_of(ask(app, "GET", "/items/1"), 503, "storage")
    app.state.service.closing = True
    message_of(ask(app, "GET", "/health"), 503, "closing")
    assert "flowhash_items 0.0" in ask(app, "GET", "/metrics").text


def test_payloads_that_only_python_can_write_are_shown() -> None:
    table = HashTable.create(buckets=2, dim=2)
    table.add([[0]], [[1, 2]], payloads=[{"large": 10**30, "half": "\ud800", "label": 7}])
    app = create_app(table)
    shown = json.loads(ask(app, "GET", "/items/0").content)
    assert shown["payload"] == {"large": 10**30, "half": "\ud800"}
    assert shown["label"] == "7"
    answer = ask(app, "POST", "/search", json={"embedding": [1, 2], "buckets": [0]})
    assert json.loads(answer.content)["answers"][0]["hits"][0]["distance"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_finishes_what_it_began(tmp_path: Path, number: int) -> None:
    """Requests that came before the signal are answered, and the process ends well."""
    table = make_strings(tmp_path)
    server = started(start(table), table, None)
    address = httpx.URL(server.url)
    body = json.dumps(GOOD).encode()
    head = (
        f"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    with socket.create_connection((address.host, address.port or 80), timeout=60) as connection:
        connection.sendall(head + body[:10])
        time.sleep(0.3)  # the server has begun to read it
        server.process.send_signal(number)
        time.sleep(0.3)
        connection.sendall(body[10:])
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
    assert received.startswith(b"HTTP/1.1 200"), received
    said, errors = server.process.communicate(timeout=PATIENCE)
    assert (server.process.returncode, said, errors) == (0, "", "")
    with HashTable.open(table, "r+") as again:  # the lock is free
        assert len(again) == ITEMS


def test_the_first_change_compiles_nothing(tmp_path: Path) -> None:
    """In a process of its own, which has compiled nothing before."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.serve.first_change", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(("first", "second", "top"), [(50, 10_000, 10), (10_000, 50, 300)])
def test_the_first_search_of_another_kind_compiles_nothing(
    tmp_path: Path, first: int, second: int, top: int
) -> None:
    """A table grows until it is scanned by its quantised plane; and more hits than that takes."""
    given = [str(each) for each in (tmp_path, first, second, top)]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.serve.first_change", *given],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


def test_a_reader_prepares_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    from flowhash.serve import service as module

    changed: list[Any] = []
    monkeypatch.setattr(module, "_change", lambda *given: changed.append(given))
    for read_only in (True, False):
        assert not changed
        app = create_app(small_table(), options=ServeOptions(read_only=read_only))
        app.state.service.warm_up()
        assert len(app.state.service.table) == ITEMS
    assert len(changed) == 1


def test_a_port_in_use_is_said_in_one_line(tmp_path: Path) -> None:
    table = make_strings(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"port {port}: .*; choose another port"):
            run(table, options=ServeOptions(port=port))
    with pytest.raises(InputError, match=r"cannot listen on no-such-host\.invalid"):
        run(table, options=ServeOptions(host="no-such-host.invalid", port=0))
    with HashTable.open(table, "r+"), pytest.raises(LockedTableError):
        run(table, options=ServeOptions(port=0))


def test_an_encoder_of_another_table_is_refused(tmp_path: Path) -> None:
    make("mlp", seed=5).save(tmp_path / "encoder")
    with make("mlp", seed=6).create_table(tmp_path / "table"):
        pass
    with pytest.raises(InputError, match="encoder"):
        run(tmp_path / "table", tmp_path / "encoder", ServeOptions(port=0))


def test_it_runs_in_a_thread_of_another_program() -> None:
    """As an ASGI application under a server of the user's own."""
    import uvicorn

    app = create_app(small_table())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    answer = httpx.post(f"http://127.0.0.1:{port}/search", json=GOOD, timeout=60)
    assert answer.status_code == 200
    server.should_exit = True
    thread.join()
    assert app.state.service.closing
    assert app.state.service.table.dim == DIM


def test_a_reader_goes_on_whatever_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from flowhash.serve import service as module

    monkeypatch.setattr(module, "REFRESH", 0.01)
    service = create_app(HashTable.create(buckets=4, dim=2)).state.service
    looks: list[bool] = []

    def refresh() -> None:
        looks.append(service.broken)
        if len(looks) < 3:
            raise ValueError("a fault nobody thought of")

    monkeypatch.setattr(service.table, "refresh", refresh)

    async def watched() -> None:
        task = asyncio.create_task(service.keep_fresh())
        while len(looks) < 5:
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()

    finished(watched())
    assert looks[:5] == [False, True, True, False, False]
    assert caplog.text.count("the table cannot be read anew") == 1


def test_queries_of_the_old_encoder_are_refused_once_items_have_new_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from flowhash.encoder import Encoder
    from flowhash.serve import service as module

    monkeypatch.setattr(module, "REFRESH", 0.01)
    path, folder = make_vectors(tmp_path)
    encoder = Encoder.load(folder)
    app = create_app(HashTable.open(path), encoder, ServeOptions(read_only=True))
    service = app.state.service
    by_vector = {"vector": items_of("mlp", ITEMS)[7].tolist()}

    def asked(**body: Any) -> int:
        return ask(app, "POST", "/search", json=body).status_code

    def recode(fingerprint: str) -> None:
        with HashTable.open(path, "r+") as table:
            code = list(range(table.active))
            table.recode(lambda some: [code] * len(some), fingerprint)

    async def look_until(broken: bool) -> None:
        task = asyncio.create_task(service.keep_fresh())
        until = time.monotonic() + PATIENCE / 4
        while service.broken != broken:
            assert not task.done()
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        task.cancel()

    # An item that is read with its old code, and searched when it has a new one, is refused, too.
    item = service.item

    def late(name: int) -> Any:
        found = item(name)
        recode("another")
        service.table.refresh()
        return found

    assert (asked(**by_vector), asked(id=7)) == (200, 200)
    monkeypatch.setattr(service, "item", late)
    answer = ask(app, "POST", "/search", json={"id": 7})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "other_encoder")
    monkeypatch.setattr(service, "item", item)
    assert (asked(**by_vector), asked(id=7)) == (503, 200)
    finished(look_until(broken=True))
    assert ask(app, "GET", "/health").status_code == 503
    assert (asked(**by_vector), asked(id=7)) == (503, 200)
    assert caplog.text.count("was made with encoder 'another'") == 1
    recode(encoder.fingerprint)
    finished(look_until(broken=False))
    assert ask(app, "GET", "/health").status_code == 200
    assert (asked(**by_vector), asked(id=7)) == (200, 200)


def test_vectors_are_not_added_to_codes_of_another_encoder(tmp_path: Path) -> None:
    """The table of a server that writes is given new codes by its own process only."""
    from flowhash.encoder import Encoder

    path, folder = make_vectors(tmp_path)
    with HashTable.open(path, "r+") as table:
        app = create_app(table, Encoder.load(folder), ServeOptions())
        given = {"items": [{"vector": items_of("mlp", ITEMS)[7].tolist()}]}
        assert ask(app, "POST", "/items", json=given).status_code == 201
        code = list(range(table.active))
        table.recode(lambda some: [code] * len(some), "another")
        before = len(table)
        answer = ask(app, "POST", "/items", json=given)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "other_encoder")
        assert len(table) == before
