"""A real Chromium on real servers. As a script: serves a table until it is told to stop."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
LABELS = ("ant", "bée", "cow")
MARKUP = "<img src=x onerror=\"document.title='broken'\"> & co"
LARGE = 9_007_199_254_740_993  # the first whole number that JavaScript cannot hold
KEY = "an open secret"
PATIENCE = 30  # seconds; far longer than anything takes


@dataclasses.dataclass(frozen=True)
class Site:
    """A server, and what it serves."""

    url: str
    table: Path
    encoder: Path | None


def pictures(count: int, seed: int = 0) -> tuple[NDArray[np.uint8], list[str]]:
    """Images [count, 16, 14, 3] of three classes, each with a slight colour, so that they mix."""
    random = np.random.default_rng(seed)
    kinds = np.arange(count) % len(LABELS)
    noise = random.integers(0, 120, (count, 16, 14, 3))
    images = np.eye(3)[kinds][:, None, None] * 10 + noise
    return images.astype(np.uint8), [LABELS[kind] for kind in kinds.tolist()]


def png(image: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    return content.getvalue()


def centred(kind: str, items: NDArray[Any]) -> Any:
    """A small encoder that spreads these items: an untrained one puts all into the same buckets."""
    from tests.encoder.encoders import make

    encoder = make(kind)
    made = encoder.encode(items)
    for network, values in ((encoder.hash, made.activations), (encoder.base, made.embeddings)):
        scale = float(1 / values.std())
        network.head.weight.data *= scale
        network.head.bias.data *= scale
        network.head.bias.data -= network.head.bias.data.new_tensor(values.mean(0) * scale)
    # Anew, since the fingerprint is of the weights.
    return type(encoder)(
        encoder.base, encoder.hash, encoder.preprocessing, encoder.active, encoder.class_names
    )


def image_table(folder: Path) -> tuple[Path, Path]:
    """A table of 90 images with pictures, and its encoder."""
    from flowhash.data.item_payloads import thumbnail

    images, labels = pictures(90)
    encoder = centred("residual", images)
    encoder.save(folder / "encoder")
    payloads = [
        {"label": label, "name": f"row {place}", "picture": thumbnail(image)}
        for place, (image, label) in enumerate(zip(images, labels, strict=True))
    ]
    payloads[-1] = {"name": "the large one", "size": [16, 14]}
    ids = [*range(89), LARGE]
    with encoder.create_table(folder / "table") as table:
        encoder.add(table, images, ids, payloads)
        made = encoder.encode(pictures(120, seed=3)[0])
        table.calibrate(made.activations, made.embeddings, tops=(16,))
    return folder / "table", folder / "encoder"


def own_table(folder: Path) -> tuple[Path, Path]:
    """A table of 300 vectors whose encoder takes stored ones too, calibrated by them."""
    from tests.encoder.encoders import items_of, make

    encoder = make("linear", base=False)
    encoder.save(folder / "encoder")
    with encoder.create_table(folder / "table") as table:
        encoder.add(table, items_of("linear", 300))
        _, drawn = table.sample(200, 0)
        made = encoder.encode_stored(np.stack([item.embedding for item in drawn]))
        ids = np.array([item.id for item in drawn])
        table.calibrate(made.activations, made.embeddings, tops=(1, 16), own=ids)
        encoder.add(table, items_of("linear", 80, seed=9))
    return folder / "table", folder / "encoder"


def vector_table(folder: Path) -> tuple[Path, Path]:
    """A table of 40 vectors whose ids are paths; the first five have a class that is markup."""
    from tests.encoder.encoders import items_of

    vectors = items_of("mlp", 40)
    encoder = centred("mlp", vectors)
    encoder.save(folder / "encoder")
    payloads = [{"label": MARKUP if place < 5 else "plain", "name": MARKUP} for place in range(40)]
    ids = [f"some folder/ä {place}?#.txt" for place in range(40)]
    with encoder.create_table(folder / "table", ids="string") as table:
        encoder.add(table, vectors, ids, payloads)
    return folder / "table", folder / "encoder"


@contextmanager
def serving(sites: list[tuple[Path, Path | None, dict[str, Any]]]) -> Iterator[list[Site]]:
    """Servers as processes of their own, all started at once."""
    started, found = [], []
    try:
        for table, encoder, options in sites:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            told = json.dumps({"port": port, "quiet": True, **options})
            command = [sys.executable, "-m", "tests.serve.browser", table, encoder or "", told]
            started.append(subprocess.Popen(command, cwd=Path(__file__).parents[2]))
            found.append(Site(f"http://127.0.0.1:{port}/", table, encoder))
        for process, site in zip(started, found, strict=True):
            wait_for(process, site.url)
        yield found
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def wait_for(process: subprocess.Popen[bytes], url: str) -> None:
    while not answers(url):
        assert process.poll() is None, f"the server ended with {process.returncode}"
        time.sleep(0.1)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}health", timeout=60):
            return True
    except OSError:
        return False


class Watched:
    """A page whose errors and requests are kept."""

    def __init__(self, page: Any, site: Site) -> None:
        self.page = page
        self.site = site
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._said)
        page.on("request", lambda request: self.requests.append(request.url))

    def _said(self, message: Any) -> None:
        # Chromium itself reports answers that are no success; the page shows them to the user.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def open(self, fragment: str = "") -> Any:
        """Go to a view and wait until it is there."""
        self.page.goto("about:blank")  # or the browser would only change the fragment
        self.page.goto(self.site.url + fragment)
        self.page.wait_for_selector("html[data-ready]")
        self.settle()
        return self.page

    def settle(self) -> None:
        """Wait until nothing is on its way."""
        self.page.wait_for_timeout(50)  # a new fragment is noticed a little later
        self.until("document.getElementById('progress').hidden")

    def until(self, expression: str) -> None:
        """Wait until a JavaScript expression holds.

        Playwright's own waiting makes code of texts inside the page, which the page forbids.
        """
        end = time.monotonic() + PATIENCE
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, f"waited {PATIENCE} s for {expression}"
            self.page.wait_for_timeout(20)

    def hits(self) -> list[str]:
        """The ids of the hits, in order."""
        self.page.wait_for_selector("#results:not([hidden]):not([aria-busy])")
        found: list[str] = self.page.eval_on_selector_all(
            "#hits > li", "all => all.map(each => each.dataset.id)"
        )
        return found

    def drop(
        self, content: bytes, name: str, media: str, target: str = "body", zeros: int = 0
    ) -> None:
        """Drop a file from outside: the events of a real one, with a real DataTransfer.

        ``zeros`` follow the content.
        """
        transfer = self.page.evaluate_handle(
            """([content, name, type, zeros]) => {
              const bytes = Uint8Array.from(atob(content), sign => sign.charCodeAt(0));
              const transfer = new DataTransfer();
              transfer.items.add(new File([bytes, new Uint8Array(zeros)], name, { type }));
              return transfer;
            }""",
            [base64.b64encode(content).decode(), name, media, zeros],
        )
        for event in ("dragenter", "dragover", "drop"):
            self.page.dispatch_event(target, event, {"dataTransfer": transfer})


if __name__ == "__main__":
    from flowhash.serve import ServeOptions, run

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    place, coder, settings = sys.argv[1:]
    run(place, coder or None, ServeOptions(**json.loads(settings)))
