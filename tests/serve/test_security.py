"""Who may write, and what a web page of somebody else may not do."""

from __future__ import annotations

from typing import Any

import pytest

from flowhash.serve import ServeOptions, create_app
from flowhash.table import HashTable
from tests.serve.conftest import Servers
from tests.serve.servers import ITEMS, KEY, message_of
from tests.serve.test_limits import GOOD, ask, exchange, small_table

ITEM = {"items": [{"embedding": [1, 2, 3, 4], "code": [1, 2]}]}


@pytest.fixture
def table() -> HashTable:
    return small_table()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"X-API-Key": ""}, 401),
        ({"X-API-Key": "wrong"}, 401),
        ({"X-API-Key": KEY[:-1]}, 401),
        ({"X-API-Key": KEY + "x"}, 401),
        ({"X-API-Key": KEY.upper()}, 401),
        ({"X-API-Key": "ü".encode()}, 401),
        ({"Authorization": KEY}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"X-API-Key": "wrong", "Authorization": f"Bearer {KEY}"}, 401),
        ({"X-API-Key": KEY}, 201),
        ({"Authorization": f"Bearer {KEY}"}, 201),
        ({"Authorization": f"bearer {KEY}"}, 201),
    ],
)
def test_writes_need_the_key(table: HashTable, headers: dict[str, Any], status: int) -> None:
    app = create_app(table, options=ServeOptions(api_key=KEY))
    answer = ask(app, "POST", "/items", json=ITEM, headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert "X-API-Key" in message_of(answer, 401, "unauthorized")
        assert KEY not in answer.text
        assert answer.headers["www-authenticate"] == "Bearer"
        message_of(ask(app, "DELETE", "/items/1", headers=headers), 401)
        message_of(ask(app, "DELETE", "/items/99999", headers=headers), 401)
    assert len(table) == ITEMS + (status == 201)
    assert ask(app, "POST", "/search", json=GOOD, headers=headers).status_code == 200


def test_the_key_is_asked_before_the_body_is_read(table: HashTable) -> None:
    app = create_app(table, options=ServeOptions(api_key=KEY))
    read = False

    async def body() -> Any:
        nonlocal read
        read = True
        yield b"x"

    message_of(ask(app, "POST", "/items", content=body()), 401)
    assert not read


@pytest.mark.parametrize(
    ("options", "writable", "word"),
    [
        ({}, True, ""),
        ({"host": "localhost"}, True, ""),
        ({"host": "::1"}, True, ""),
        ({"host": "127.9.9.9"}, True, ""),
        ({"host": "0.0.0.0"}, False, "without a key"),
        ({"host": "::"}, False, "without a key"),
        ({"host": "192.168.1.5"}, False, "without a key"),
        ({"host": "example.com"}, False, "without a key"),
        ({"host": "0.0.0.0", "api_key": KEY}, True, ""),
        ({"read_only": True}, False, "only reads"),
        ({"read_only": True, "api_key": KEY}, False, "only reads"),
    ],
)
def test_who_may_write(
    table: HashTable, options: dict[str, Any], writable: bool, word: str
) -> None:
    app = create_app(table, options=ServeOptions(**options))
    stats = ask(app, "GET", "/stats").json()
    assert stats["writable"] is writable
    assert stats["needs_key"] is (writable and "api_key" in options)
    answer = ask(app, "POST", "/items", json=ITEM, headers={"X-API-Key": KEY})
    if writable:
        assert answer.status_code == 201
    else:
        assert word in message_of(answer, 403, "read_only")
        message_of(ask(app, "DELETE", "/items/1"), 403, "read_only")


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        (None, "localhost:8000", True),
        ("http://localhost:8000", "localhost:8000", True),
        ("http://LOCALHOST:8000", "localhost:8000", True),
        ("http://localhost", "localhost", True),
        ("http://localhost:80", "localhost", True),
        ("https://localhost", "localhost:443", True),
        ("http://localhost:8001", "localhost:8000", False),
        ("http://127.0.0.1:8000", "localhost:8000", False),
        ("http://example.com", "localhost:8000", False),
        ("http://localhost:8000.example.com", "localhost:8000", False),
        ("http://localhost", "localhost:443", False),
        ("null", "localhost:8000", False),
        ("", "localhost:8000", False),
        ("localhost:8000", "localhost:8000", False),
    ],
)
def test_pages_of_other_sites_cannot_send(
    table: HashTable, origin: str | None, host: str, allowed: bool
) -> None:
    app = create_app(table)
    headers = {"Host": host} | ({} if origin is None else {"Origin": origin})
    for path, body, status in (("/items", ITEM, 201), ("/search", GOOD, 200)):
        answer = ask(app, "POST", path, json=body, headers=headers)
        if allowed:
            assert answer.status_code == status, answer.text
        else:
            message_of(answer, 403, "foreign_origin")
    if not allowed:
        message_of(ask(app, "DELETE", "/items/1", headers=headers), 403, "foreign_origin")
        assert len(table) == ITEMS
    assert ask(app, "GET", "/items/1", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True), ("LocalHost:8000", True), ("127.0.0.1:9", True), ("[::1]:8000", True),
        ("search.example.com", True), ("search.example.com:444", True), ("example.com", False),
        ("evil.localhost", False), ("localhost.evil.com", False), ("localhost@evil.com", False),
        ("127.0.0.2", False), ("", False), ("[::1", False), ("a b", False),
    ],
)  # fmt: skip
def test_only_known_names_reach_a_local_server(table: HashTable, host: str, allowed: bool) -> None:
    app = create_app(table, options=ServeOptions(allowed_hosts=("search.example.com",)))
    for method, path, body in (("GET", "/health", None), ("POST", "/search", GOOD)):
        answer = ask(app, method, path, json=body, headers={"Host": host})
        if allowed:
            assert answer.status_code == 200
        else:
            message_of(answer, 403, "unknown_host")
    everywhere = create_app(table, options=ServeOptions(host="0.0.0.0"))
    assert ask(everywhere, "GET", "/health", headers={"Host": host}).status_code == 200


def test_a_user_name_does_not_make_a_host_known(table: HashTable) -> None:
    app = create_app(table)
    for host in ("evil.com@localhost", "evil.com#localhost", "evil.com\\@localhost"):
        answer = ask(app, "GET", "/health", headers={"Host": host})
        message_of(answer, 403, "unknown_host")


HEALTH, FOREIGN = "GET /health HTTP/1.1\r\n", "GET http://evil.example/health HTTP/1.1\r\n"
OURS, THEIRS = "Host: localhost\r\n", "Host: evil.example\r\n"
WRITE = "POST /items HTTP/1.1\r\nContent-Length: 0\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (HEALTH + OURS, 200),
        (HEALTH + OURS + OURS, 400),
        (HEALTH + OURS + THEIRS, 400),
        (HEALTH + THEIRS + OURS, 400),
        (HEALTH + OURS + "hOsT: localhost\r\n", 400),
        (HEALTH + OURS + "Origin: http://localhost\r\nOrigin: http://localhost\r\n", 400),
        (WRITE + OURS + "Origin: http://evil.example\r\nOrigin: http://localhost\r\n", 400),
        (FOREIGN + OURS, 400),
        (FOREIGN + THEIRS, 403),
        (FOREIGN, 403),
        ("GET http://localhost/health HTTP/1.1\r\n" + OURS, 200),
        ("GET HTTP://LOCALHOST/health HTTP/1.1\r\n" + OURS, 200),
        ("GET http://localhost:1/health HTTP/1.1\r\n" + OURS, 400),
        ("GET http://localhost@evil.example/health HTTP/1.1\r\n" + OURS, 400),
        ("GET http://evil.example?/health HTTP/1.1\r\n" + OURS, 400),
        ("POST http://evil.example/search HTTP/1.1\r\nContent-Length: 0\r\n" + OURS, 400),
    ],
)
def test_a_request_has_one_host_and_one_origin(servers: Servers, head: str, status: int) -> None:
    """What a proxy has looked at and what the server looks at must be the same line."""
    received = exchange(servers.strings.url, f"{head}Connection: close\r\n\r\n".encode())
    assert received.startswith(f"HTTP/1.1 {status} ".encode()), received


def test_the_page_is_fenced(servers: Servers) -> None:
    client = servers.strings.client
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "img-src 'self' data: blob:" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    script = client.get("/page/page.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    tag = {"If-None-Match": script.headers["etag"]}
    assert client.get("/page/page.js", headers=tag).status_code == 304
    for path in ("/", "/page/page.js", "/health", "/nothing", "/items/nobody", "/metrics"):
        assert client.get(path).headers["x-content-type-options"] == "nosniff"
        assert "server" not in client.get(path).headers
    for path in ("/page/nothing.js", "/page/", "/page/__init__.py"):
        message_of(client.get(path), 404)


@pytest.mark.parametrize(
    "path", ["/page/../running.py", "/page/..%2frunning.py", "/page/%2e%2e/running.py",
             "/page//etc/passwd", "/page/..\\running.py", "/page/%00", "/page/index.html%00.js"],
)  # fmt: skip
def test_no_path_comes_from_the_client(servers: Servers, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    received = exchange(servers.strings.url, request.encode())
    assert received.startswith(b"HTTP/1.1 404")
    assert b"not_found" in received


def test_keys_are_not_shown() -> None:
    assert KEY not in repr(ServeOptions(api_key=KEY))
    assert "port=8000" in repr(ServeOptions())
