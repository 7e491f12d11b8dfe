"""The connection to Qdrant: gRPC where it answers, or HTTP, or a folder; errors in one line."""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc  # type: ignore[import-untyped]
from qdrant_client import QdrantClient
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import (
    ApiException,
    ResponseHandlingException,
    UnexpectedResponse,
)

from flowhash.engines.qdrant.qdrant_address import LocalFolder, QdrantAddress
from flowhash.errors import ForbiddenError, LockedTableError, StorageError

PATIENCE = 120  # seconds that a request may take; the client's own five are few for a big batch
KNOCK = 2.0  # seconds to see whether somebody listens for gRPC
AT_ONCE = 8  # requests to a server at the same time
FAILURES = (
    ApiException, QdrantException, grpc.RpcError, sqlite3.Error, OSError, ValueError, RuntimeError,
)  # fmt: skip
Given = TypeVar("Given")
Answer = TypeVar("Answer")


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
            raise in_our_words(error, address) from error

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
            raise in_our_words(error, self.address) from error

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


@contextlib.contextmanager
def kept_open(store: Store) -> Iterator[Store]:
    """A connection that is closed if what follows fails."""
    try:
        yield store
    except BaseException:
        store.close()
        raise


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


def in_our_words(error: BaseException, address: QdrantAddress) -> StorageError:
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
