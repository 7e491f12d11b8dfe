"""Where a collection is, and the connection to there: gRPC where it answers, or HTTP, or a folder.

Errors are said in one line.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import grpc  # type: ignore[import-untyped]
from qdrant_client import QdrantClient
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import (
    ApiException,
    ResponseHandlingException,
    UnexpectedResponse,
)

from flowhash.errors import ForbiddenError, InputError, LockedTableError, StorageError

DEFAULT = "flowhash"
PORT = 6333
FORBIDDEN = '<>:"/\\|?*\0\x1f'  # in the name of a collection, by Qdrant's rules
EXPECTED = "qdrant://HOST:6333/COLLECTION or qdrant+local:///FOLDER?collection=NAME"
PATIENCE = 120  # seconds that a request may take; the client's own five are few for a big batch
KNOCK = 2.0  # seconds to see whether somebody listens for gRPC
AT_ONCE = 8  # requests to a server at the same time
FAILURES = (
    ApiException, QdrantException, grpc.RpcError, sqlite3.Error, OSError, ValueError, RuntimeError,
)  # fmt: skip
Given = TypeVar("Given")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class QdrantAddress:
    """A collection.

    Attributes:
        collection: its name.
        shown: the address for people, without a key.
        folder: of the client's local mode; None for a server.
        host: of the server.
        port: for HTTP.
        grpc_port: for gRPC.
        https: whether both are encrypted.
        key: for the server, or None.
    """

    collection: str
    shown: str
    folder: Path | None = None
    host: str = ""
    port: int = PORT
    grpc_port: int = PORT + 1
    https: bool = False
    key: str | None = None

    def may_hold(self) -> bool:
        """Whether to look: opening a folder in local mode would make it."""
        return self.folder is None or (self.folder / "meta.json").is_file()


def read_address(text: str) -> QdrantAddress:
    """Take an address apart.

    The key of a server is in the variable ``QDRANT_API_KEY``, or in the address:
    ``qdrant://:KEY@HOST:6333/COLLECTION``.

    Raises:
        InputError: it names no collection. The message never has the key.
    """
    scheme = text.partition(":")[0].lower()
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # whose words may have the key in them
        raise InputError(
            f"an address of Qdrant cannot be read; expected {EXPECTED}. In a key write % as %25, / "
            "as %2F, ? as %3F, # as %23, @ as %40 and [ as %5B, or give it in QDRANT_API_KEY"
        ) from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = {"collection"} if scheme == "qdrant+local" else {"grpc_port"}
    server = parts.netloc.rpartition("@")[2]
    place = f"{scheme}://{server}{parts.path}"
    for name in sorted(options.keys() - known):
        raise InputError(f"{place} has the option {name!r:.40}; expected only {sorted(known)}")
    if scheme == "qdrant+local":
        folder = Path(unquote(parts.path))
        if parts.netloc or not folder.is_absolute():
            raise InputError(f"{place} has no absolute folder; expected {EXPECTED}")
        name = _checked(options.get("collection", DEFAULT), place)
        return QdrantAddress(name, f"{place}?collection={name}", folder=folder)
    if parts.hostname is None:
        raise InputError(f"{place} has no host; expected {EXPECTED}")
    if parts.username:
        raise InputError(
            f"{place}: Qdrant knows no users; put a colon before the key (qdrant://:KEY@HOST), or "
            "set QDRANT_API_KEY"
        )
    name = _checked(unquote(parts.path).strip("/") or DEFAULT, place)
    key = unquote(parts.password) if parts.password else os.environ.get("QDRANT_API_KEY")
    port = PORT if port is None else port
    grpc_port = options.get("grpc_port", str(port + 1))
    if not grpc_port.isdecimal():
        raise InputError(f"{place}: grpc_port is {grpc_port!r:.20}; expected a whole number")
    return QdrantAddress(
        name, f"{scheme}://{server}/{name}", host=parts.hostname, port=port,
        grpc_port=int(grpc_port), https=scheme == "qdrant+https", key=key or None,
    )  # fmt: skip


def _checked(name: str, place: str) -> str:
    """The name of a collection, as Qdrant allows it."""
    wrong = any(character in FORBIDDEN for character in name)
    if wrong or name in ("", ".", "..") or len(name) > 255:
        raise InputError(
            f"{place} names the collection {name!r:.60}; expected 1 to 255 characters, none "
            'of them one of < > : " / \\ | ? *'
        )
    return name


class LocalFolder:
    """A folder of local mode, opened once in a process and shared by all who use it.

    The client locks the folder, and its local mode is not made for threads: one at a time.
    """

    opened: ClassVar[dict[Path, LocalFolder]] = {}
    guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.users = 0
        self.lock = threading.RLock()
        with warnings.catch_warnings():  # that local mode is slow for many points: the docs say so
            warnings.simplefilter("ignore")
            self.client = QdrantClient(path=str(folder), force_disable_check_same_thread=True)

    @classmethod
    def take(cls, folder: Path) -> LocalFolder:
        """Use a folder; :meth:`leave` it afterwards."""
        folder = folder.resolve()
        with cls.guard:
            found = cls.opened.get(folder)
            if found is None:
                found = cls.opened[folder] = cls(folder)
            found.users += 1
            return found

    def leave(self) -> None:
        """The last one closes it."""
        with self.guard:
            self.users -= 1
            if self.users == 0:
                del self.opened[self.folder]
                self.client.close()

    @contextlib.contextmanager
    def together(self, collection: str) -> Iterator[None]:
        """Put what is written meanwhile on disk at once.

        The client commits every point by itself, and waits for the disk each time. With SQLite's
        write-ahead log commits do not wait, and the checkpoint at the end does.
        """
        kept = getattr(self.client, "_client", None)
        kept = getattr(kept, "collections", {}).get(collection)
        database = getattr(getattr(kept, "storage", None), "storage", None)
        if not isinstance(database, sqlite3.Connection):
            yield  # another version of the client: slower, and as safe
            return
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        yield
        database.execute("PRAGMA wal_checkpoint(FULL)")


@atexit.register
def _leave_all() -> None:
    """Close what was left open while the modules that it takes are still there."""
    for folder in list(LocalFolder.opened.values()):
        folder.client.close()


class Store:
    """One collection, and whoever keeps it.

    Args:
        address: of the collection.

    Raises:
        StorageError: it cannot be reached.
    """

    def __init__(self, address: QdrantAddress) -> None:
        self.address = address
        self.local = address.folder is not None
        self._folder: LocalFolder | None = None
        self._closed = False
        try:
            if address.folder is not None:
                self._folder = LocalFolder.take(address.folder)
                self.client = self._folder.client
            else:
                self.client = _connected(address)
        except FAILURES as error:
            raise _in_our_words(error, address) from error

    def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method of the client on the collection.

        Raises:
            StorageError: it failed, in one line.
        """
        if self._closed:
            raise StorageError(f"{self.address.shown} is closed; open it again")
        call = getattr(self.client, method)
        try:
            if self._folder is None:
                return call(collection_name=self.address.collection, **arguments)
            with self._folder.lock, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that local mode is for few points: docs say so
                with contextlib.ExitStack() as stack:
                    if arguments.get("wait"):
                        stack.enter_context(self._folder.together(self.address.collection))
                    return call(collection_name=self.address.collection, **arguments)
        except FAILURES as error:
            raise _in_our_words(error, self.address) from error

    def each(self, work: Callable[[Given], Answer], given: Iterable[Given]) -> list[Answer]:
        """``work`` on each of the given things, some at once where a server answers."""
        things = list(given)
        if self.local or len(things) < 2:
            return [work(thing) for thing in things]
        with ThreadPoolExecutor(min(AT_ONCE, len(things))) as pool:
            return list(pool.map(work, things))

    def is_there(self) -> bool:
        """Whether the collection exists."""
        return bool(self.ask("collection_exists"))

    def close(self) -> None:
        """Let go of the connection; twice is fine."""
        if self._closed:
            return
        self._closed = True
        if self._folder is not None:
            self._folder.leave()
        else:
            self.client.close()


def _connected(address: QdrantAddress) -> QdrantClient:
    """A client of a server, on gRPC if it speaks that: it is the faster one for vectors."""
    if _listens(address.host, address.grpc_port):
        client = _client(address, prefer_grpc=True)
        try:
            client.collection_exists(address.collection)
            return client
        except grpc.RpcError as error:
            client.close()
            if error.code() not in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.UNIMPLEMENTED,
                grpc.StatusCode.UNKNOWN,
            ):
                raise
    return _client(address, prefer_grpc=False)


def _client(address: QdrantAddress, prefer_grpc: bool) -> QdrantClient:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a key without encryption: the user's choice, in the docs
        return QdrantClient(
            host=address.host, port=address.port, grpc_port=address.grpc_port,
            prefer_grpc=prefer_grpc, https=address.https, api_key=address.key, timeout=PATIENCE,
            check_compatibility=False,
            # Without encryption nobody is verified, and reading certificates takes 0.1 s.
            verify=address.https,
        )  # fmt: skip


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), KNOCK):
            return True
    except OSError:
        return False


def _in_our_words(error: BaseException, address: QdrantAddress) -> StorageError:
    """What the client or the server said, in one line and without the key."""
    if isinstance(error, StorageError):
        return error
    place, code, words = address.shown, _code(error), _words(error)
    if address.key:
        words = words.replace(address.key, "…")
    if code in (401, 403):
        kind = ForbiddenError if code == 403 else StorageError  # a key to read with, or none at all
        return kind(
            f"{place}: the server refused the key ({words}); set QDRANT_API_KEY to one that may do "
            "this, or write it into the address: qdrant://:KEY@HOST"
        )
    if code == 404:
        return StorageError(f"{place}: not found ({words}); see that the address is right")
    if code == 504:
        return StorageError(
            f"{place}: the server took longer than {PATIENCE} s; do the same again, or in smaller "
            "parts"
        )
    if code == 503:
        return StorageError(
            f"{place}: {words}; see that the server runs and that the address is right, then do "
            "the same again"
        )
    if "already accessed by another instance" in words:
        return LockedTableError(
            f"{place} is in use by another process; local mode takes one at a time. Wait for it, "
            "or use a Qdrant server"
        )
    return StorageError(f"{place}: Qdrant could not do it: {words}")


def _code(error: BaseException) -> int:
    """The status, as HTTP has it; 503 for nobody there, 504 for too late, 0 for anything else."""
    if isinstance(error, UnexpectedResponse):
        return error.status_code or 0
    if isinstance(error, ResponseHandlingException):
        return 504 if "timed out" in str(error.source).lower() else 503
    if isinstance(error, grpc.RpcError):
        codes = {
            grpc.StatusCode.UNAUTHENTICATED: 401,
            grpc.StatusCode.PERMISSION_DENIED: 403,
            grpc.StatusCode.NOT_FOUND: 404,
            grpc.StatusCode.UNAVAILABLE: 503,
            grpc.StatusCode.DEADLINE_EXCEEDED: 504,
        }
        return codes.get(error.code(), 0)
    return 0


def _words(error: BaseException) -> str:
    words = str(error)
    if isinstance(error, UnexpectedResponse):
        words = error.content.decode(errors="replace")
        with contextlib.suppress(ValueError, TypeError, KeyError):
            words = json.loads(words)["status"]["error"]
        words = f"{error.status_code} {words or error.reason_phrase}"
    elif isinstance(error, ResponseHandlingException):
        words = str(error.source)
    elif isinstance(error, grpc.RpcError):
        words = str(error.details())
    return " ".join(words.split())[:300] or type(error).__name__
