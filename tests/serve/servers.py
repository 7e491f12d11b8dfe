"""Tables and real server processes for tests. As a script: serves one until it is told to stop."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
from numpy.typing import NDArray

Result = TypeVar("Result")
ROOT = Path(__file__).parents[2]
ITEMS, BUCKETS, ACTIVE, DIM = 300, 11, 2, 4
LABELS = ("ant", "bée", "cow")
KEY = "a-key-of-tests"
PATIENCE = 120  # seconds; far longer than anything takes


@dataclass
class Server:
    """A server process and what it serves."""

    process: subprocess.Popen[str]
    url: str
    table: Path | str  # a folder, or an address
    encoder: Path | None
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)

    def search(self, **asked: Any) -> dict[str, Any]:
        answer = self.client.post("/search", json=asked)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def start(table: Path | str, encoder: Path | None = None, **options: Any) -> subprocess.Popen[str]:
    told = json.dumps({"port": 0, **options})
    command = [sys.executable, "-m", "tests.serve.servers", str(table), str(encoder or ""), told]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def started(process: subprocess.Popen[str], table: Path | str, encoder: Path | None) -> Server:
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+:\d+/", line)
    assert found is not None, f"{line}{process.stderr.read()}"
    return Server(process, found[0], table, encoder)


@contextmanager
def serving(*wanted: tuple[Path | str, Path | None, dict[str, Any]]) -> Iterator[list[Server]]:
    """Servers, all started at once; each must end without an error."""
    with ExitStack() as stack:
        processes = []
        for table, encoder, options in wanted:
            process = start(table, encoder, **options)
            stack.callback(process.kill)
            processes.append((process, table, encoder))
        servers = [started(*each) for each in processes]
        yield servers
        for server in servers:
            server.client.close()
            server.process.terminate()
        for server in servers:
            _, said = server.process.communicate(timeout=PATIENCE)
            assert server.process.returncode == 0, said
            assert "Traceback" not in said, said


def payload_of(row: int) -> dict[str, Any] | None:
    if row % 10 == 9:
        return None
    return {"label": LABELS[row % 3], "name": f"row {row}", "number": row}


def raw_items(seed: int, count: int = ITEMS) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Codes and embeddings."""
    random = np.random.default_rng(seed)
    codes = np.argsort(random.random((count, BUCKETS)), axis=1)[:, :ACTIVE].astype(np.int32)
    embeddings = random.normal(size=(count, DIM)).astype(np.float32)
    return np.sort(codes, axis=1), embeddings


def make_vectors(folder: Path) -> tuple[Path, Path]:
    """A table of vectors with whole numbers as ids, and its encoder."""
    from tests.encoder.encoders import items_of, make

    encoder = make("mlp")
    encoder.save(folder / "encoder")
    with encoder.create_table(folder / "table") as table:
        encoder.add(
            table, items_of("mlp", ITEMS), payloads=[payload_of(row) for row in range(ITEMS)]
        )
    return folder / "table", folder / "encoder"


def string_id(row: int) -> str:
    names = ("cats/{}.png", "with space {}", "ünïcode/{}/猫", "50%2F{}?#&", "/{}/", "{}\\x'\"")
    return names[row % len(names)].format(row)


def make_strings(folder: Path) -> Path:
    """A table whose ids are strings and whose metric is cosine; it has no encoder."""
    from flowhash.table import HashTable

    codes, embeddings = raw_items(1)
    options: dict[str, Any] = {"ids": "string", "metric": "cosine"}
    path = folder / "table"
    with HashTable.create(path, buckets=BUCKETS, dim=DIM, active=ACTIVE, **options) as table:
        table.add(
            codes, embeddings, [string_id(row) for row in range(ITEMS)],
            [payload_of(row) for row in range(ITEMS)],
        )  # fmt: skip
    return path


def make_images(folder: Path) -> tuple[Path, Path]:
    """A table of images with thumbnails, and its encoder."""
    from flowhash.data.item_payloads import thumbnail
    from tests.encoder.encoders import items_of, make

    encoder = make("residual")
    encoder.save(folder / "encoder")
    images = items_of("residual", 60)
    with encoder.create_table(folder / "table") as table:
        payloads = [
            {"label": LABELS[row % 3], "name": f"row {row}", "picture": thumbnail(images[row])}
            for row in range(len(images))
        ]
        encoder.add(table, images, payloads=payloads)
    return folder / "table", folder / "encoder"


def image_file(image: NDArray[np.uint8], kind: str = "PNG", **options: Any) -> bytes:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(image).save(content, kind, **options)
    return content.getvalue()


def message_of(answer: httpx.Response, status: int, code: str | None = None) -> str:
    """The message of an error, which has the right form."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"code", "message"}
    assert code in (None, body["error"]["code"])
    message: str = body["error"]["message"]
    assert "Traceback" not in message
    return message


def finished(work: Coroutine[Any, Any, Result]) -> Result:
    """What a coroutine returns.

    In a thread of its own: a browser that another test has opened keeps an event loop in this one.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


if __name__ == "__main__":
    from flowhash.serve import ServeOptions, run

    place, coder, settings = sys.argv[1:]
    run(place, coder or None, ServeOptions(**json.loads(settings)))
