"""Downloads against a server of our own: whole, resumed, refused, damaged."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import flowhash.data.sets.cifar as cifar
from flowhash.data.files.archives import download
from flowhash.errors import DamagedFileError, StorageError
from tests.data import builders

CONTENT = bytes(range(256)) * 4096
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    content = CONTENT
    ranges = True
    cut = 0  # bytes after which the connection breaks
    asked: list[str | None]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.tar.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        content, start = self.server.content, 0
        if asked and self.server.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
        elif self.path.endswith("missing"):
            self.send_error(404)
            return
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = self.server.cut or len(content)
        self.wfile.write(content[start:end])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.asked = []
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_whole_download(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "new" / "file.tar.gz"
    download(server.address, target, MD5)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["file.tar.gz"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_is_taken_up_again(server: Server, tmp_path: Path, ranges: bool) -> None:
    target = tmp_path / "file.tar.gz"
    server.cut = 300_000
    with pytest.raises(StorageError, match=r"file\.tar\.gz\.part.*300000 of 1048576 bytes"):
        download(server.address, target, MD5)
    assert not target.exists()
    assert (tmp_path / "file.tar.gz.part").stat().st_size == 300_000
    server.cut, server.ranges = 0, ranges
    download(server.address, target, MD5)
    assert target.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]
    assert not (tmp_path / "file.tar.gz.part").exists()


def test_a_part_that_is_whole_is_only_checked(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.tar.gz.part").write_bytes(CONTENT)
    download(server.address, tmp_path / "file.tar.gz", MD5)
    assert (tmp_path / "file.tar.gz").read_bytes() == CONTENT


def test_what_has_another_checksum_is_deleted(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.tar.gz.part").write_bytes(b"of another file")
    with pytest.raises(DamagedFileError, match=rf"{MD5}.*file\.tar\.gz\.part"):
        download(server.address, tmp_path / "file.tar.gz", MD5)
    assert list(tmp_path.iterdir()) == []
    download(server.address, tmp_path / "file.tar.gz", MD5)  # and the next try is clean


def test_faults_name_the_address_and_the_file(server: Server, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"/missing could not be downloaded.*404"):
        download(server.address + "/missing", tmp_path / "file", MD5)
    with pytest.raises(
        StorageError, match=r"127\.0\.0\.1:9/x could not be downloaded to .*x\.part"
    ):
        download("http://127.0.0.1:9/x", tmp_path / "x", MD5)


def test_cifar_downloads_itself(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders.small_cifar(monkeypatch)
    packed = builders.pack(builders.write_binary(tmp_path / "made" / "cifar-100-binary"))
    server.content = packed.read_bytes()
    monkeypatch.setattr(cifar, "ADDRESS", server.address)
    monkeypatch.setattr(cifar, "MD5", hashlib.md5(server.content).hexdigest())
    for _ in range(2):
        splits = cifar.cifar100(tmp_path / "here", download=True)
    assert len(splits.train) == 300
    assert len(server.asked) == 1
