"""A small stand-in for a Qdrant server: HTTP on loopback, the client's own local mode behind it.

It lets tests see the requests that a server would get, and answers with a key asked for, with a
failure in the middle, with a point altered. It is no test of Qdrant itself: for that, point
``FLOWHASH_TEST_QDRANT`` at a server.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from qdrant_client import QdrantClient, models
from qdrant_client.http.models import models as requests

CHANGES = ("/points/payload", "/points/delete")


class StandIn:
    """The server: what it was asked, and how it misbehaves.

    Attributes:
        client: what it keeps, to look into.
        asked: method, path and body of every request.
        key: that it wants, or None.
        read_only: whether whoever comes may only read.
        failures: how many writes to let through before one fails; None is all.
    """

    def __init__(self) -> None:
        self.client = QdrantClient(":memory:", force_disable_check_same_thread=True)
        self.asked: list[tuple[str, str, Any]] = []
        self.key: str | None = None
        self.read_only = False
        self.failures: int | None = None
        self.port = 0
        self.lock = threading.Lock()

    def address(self, name: str = "items") -> str:
        """Of a collection; its port for gRPC is one where nobody listens."""
        return f"qdrant://127.0.0.1:{self.port}/{name}?grpc_port=1"

    def bodies(self, path: str) -> list[Any]:
        """What was sent to paths that end like this."""
        return [body for _, sent, body in self.asked if sent.endswith(path)]

    def answer(self, method: str, path: str, body: Any, key: str | None) -> tuple[int, Any]:
        """Status and body of an answer."""
        with self.lock:
            self.asked.append((method, path, body))
            if self.key is not None and key != self.key:
                return 401, {"status": {"error": f"Invalid API key {key or ''}"}}
            if self.read_only and (method in ("PUT", "DELETE") or path.endswith(CHANGES)):
                return 403, {"status": {"error": "Forbidden: Global manage access is required"}}
            if method == "PUT" and path.endswith("/points") and self.failures is not None:
                self.failures -= 1
                if self.failures < 0:
                    return 500, {"status": {"error": "Service internal error: disk is gone"}}
            _, _, name, *rest = path.split("/")
            try:
                result = self._do(method, name, "/".join(rest), body)
            except ValueError as error:
                status = 404 if "not found" in str(error) else 400
                return status, {"status": {"error": str(error)}}
            return 200, {"result": result, "status": "ok", "time": 0.0}

    def _do(self, method: str, name: str, what: str, body: Any) -> Any:
        client = self.client
        if method == "PUT" and what == "":
            made = models.CreateCollection(**body)
            return client.create_collection(name, made.vectors)
        if method == "DELETE" and what == "":
            return client.delete_collection(name)
        if method == "GET" and what == "":
            return plain(client.get_collection(name))
        if what == "exists":
            return {"exists": client.collection_exists(name)}
        if what in ("index", "points/payload", "points/delete") or method == "PUT":
            if what == "points":
                client.upsert(name, [models.PointStruct(**point) for point in body["points"]])
            elif what == "points/payload":
                client.set_payload(name, body["payload"], body["points"])
            elif what == "points/delete":
                client.delete(name, models.PointIdsList(points=body["points"]))
            return {"operation_id": 0, "status": "completed"}
        return self._read(name, what, body)

    def _read(self, name: str, what: str, body: Any) -> Any:
        client = self.client
        given = body.get("filter")
        chosen = models.Filter(**given) if given else None
        if what == "points":
            found = client.retrieve(
                name, body["ids"], body.get("with_payload", True), body.get("with_vector", False)
            )
            return [plain(point) for point in found]
        if what == "points/count":
            return plain(client.count(name, chosen, exact=body["exact"]))
        if what == "points/scroll":
            points, offset = client.scroll(
                name, chosen, body["limit"], None, body.get("offset"), body["with_payload"],
                body["with_vector"],
            )  # fmt: skip
            return {"points": [plain(point) for point in points], "next_page_offset": offset}
        if what == "facet":
            return plain(client.facet(name, body["key"], chosen, body["limit"]))
        assert what == "points/query/batch", what
        searches = requests.QueryRequestBatch(**body).searches
        for search in searches:
            search.params = None  # of which local mode says that it needs none
        answers = client.query_batch_points(name, searches)
        for answer in answers:
            for point in answer.points:
                point.score = float(np.float32(point.score))  # a server computes in float32
        return [plain(answer) for answer in answers]


def plain(model: Any) -> Any:
    """A model as JSON has it."""
    return json.loads(model.model_dump_json())


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """A server that runs, and stops afterwards."""
    server = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            path = self.path.partition("?")[0]
            status, answer = server.answer(self.command, path, body, self.headers.get("api-key"))
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = answer  # noqa: N815

        def log_message(self, *words: Any) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.port = listener.server_port
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
        server.client.close()
