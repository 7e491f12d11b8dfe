"""Engines by their addresses, ``postgresql://…`` and ``qdrant://…``, and those shown to people."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from flowhash.errors import InputError
from flowhash.extras import require

if TYPE_CHECKING:
    from flowhash.engines.engine_protocol import RemoteEngine
    from flowhash.table import HashTable

SCHEMES = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "qdrant": "qdrant",
    "qdrant+https": "qdrant",
    "qdrant+local": "qdrant",
}
# What each engine's extra, which has its name, must have installed.
NEEDED = {"postgres": ("psycopg", "psycopg_pool"), "qdrant": ("qdrant_client",)}
SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)  # one letter is a drive
START = re.compile(r"[a-z][a-z0-9+.-]+:/{1,2}", re.IGNORECASE)
OPTION = re.compile(r"([^?&=]+)=([^&]*)")
SECRET = (
    "password", "api_key", "api-key", "apikey", "oauth_client_secret", "scram_client_key",
    "scram_server_key",
)  # fmt: skip
# The options that may be shown. Under another name, one that was mistyped, may be a password.
PUBLIC = frozenset({
    "application_name", "collection", "connect_timeout", "dbname", "grpc_port", "host", "hostaddr",
    "options", "port", "sslmode", "table", "target_session_attrs", "user",
})  # fmt: skip
OPEN = re.compile(r"([^:@/?]*@)?[^:@/?]*(:\d+)?(/[^:@?]*)?\?")  # no password before the options
BRACKETS = re.compile(r"\[[0-9a-f:.%]*\](:[^:]*)?", re.IGNORECASE)  # with an address of IPv6
PORT = re.compile(r":(?!\d*$)[^:\]]*$")


def scheme_of(text: str | Path) -> str | None:
    """The scheme of an address, in small letters; None for what is a folder."""
    found = SCHEME.match(str(text))
    return None if found is None else found[1].lower()


def is_address(text: str | Path) -> bool:
    """Whether this names an engine that another process runs, and not a folder."""
    return scheme_of(text) is not None


def room_of(address: str) -> ModuleType:
    """The module of an engine.

    Raises:
        InputError: no engine has such addresses.
        MissingExtraError: its packages are not installed.
    """
    scheme = scheme_of(address)
    if scheme not in SCHEMES:
        known = "postgresql://HOST/DATABASE?table=NAME or qdrant://HOST:6333/COLLECTION"
        shown = hidden(address)[:60]
        raise InputError(f"{shown!r} is no address that FlowHash knows; expected {known}")
    room = SCHEMES[scheme]
    for package in NEEDED[room]:
        require(package, room)
    return importlib.import_module(f"flowhash.engines.{room}")


def open_engine(address: str, mode: str = "r", *, encoder: str | None = None) -> RemoteEngine:
    """Open what is stored at an address.

    Args:
        address: such as ``postgresql://host/database?table=pets``.
        mode: "r" to search, "r+" to change it too.
        encoder: if given, the fingerprint that it must have been made with.

    Raises:
        InputError: the address, or the encoder, does not fit.
        StorageError: the server does not answer, refuses, or holds nothing there.
    """
    engine: RemoteEngine = room_of(address).open_stored(address, mode, encoder=encoder)
    return engine


def open_any(
    place: str | Path, mode: str = "r", *, encoder: str | None = None
) -> HashTable | RemoteEngine:
    """Open the table in a folder, or what is stored at an address; arguments as of both."""
    if isinstance(place, str) and is_address(place):
        return open_engine(place, mode, encoder=encoder)
    from flowhash.table import HashTable

    return HashTable.open(place, mode, encoder=encoder)


def create_engine(address: str, *, buckets: int, dim: int, **settings: Any) -> RemoteEngine:
    """Make an empty table at an address.

    Args:
        address: where nothing is yet.
        buckets: d.
        dim: numbers of an embedding.
        **settings: the others of :meth:`flowhash.HashTable.create`; and for PostgreSQL
            ``distribute=True``, to spread it over the nodes of Citus by bucket.

    Raises:
        InputError: a setting that cannot be.
        StorageError: the server does not answer, refuses, or holds something there already.
    """
    made: RemoteEngine = room_of(address).create_stored(
        address, buckets=buckets, dim=dim, **settings
    )
    return made


def engine_exists(address: str) -> bool:
    """Whether something is stored at an address, be it an unfinished copy."""
    return bool(room_of(address).exists(address))


def hidden(text: str) -> str:
    """An address that may be shown: without password or key.

    Where it is not clear what is a password, such as one with ``@`` or ``/``, more is left out
    rather than less.
    """
    # Options first: a password among them may have an @, too.
    text = OPTION.sub(lambda one: _bare(one) if _name(one).endswith(SECRET) else one[0], text)
    found = START.match(text)
    start = found[0] if found else ""
    rest, scheme = text[len(start) :], start.lower()
    if scheme.startswith("qdrant+local") and rest.startswith("/"):  # a folder
        return text
    if scheme.startswith("postgres") and OPEN.match(rest):
        rest = OPTION.sub(_without_secret, rest)
    user, at, place = rest.rpartition("@")
    place = OPTION.sub(_without_secret, place)
    if start:
        place = _without_odd_ports(place)
    if not at or scheme.startswith("qdrant"):  # Qdrant knows no users: what is there is the key
        return f"{start}{place}"
    return f"{start}{user.partition(':')[0]}@{place}"


def _name(option: re.Match[str]) -> str:
    return unquote(option[1]).lower()


def _bare(option: re.Match[str]) -> str:
    return f"{option[1]}=…"


def _without_secret(option: re.Match[str]) -> str:
    return option[0] if _name(option) in PUBLIC else _bare(option)


def _without_odd_ports(place: str) -> str:
    """Hosts and what follows; a port that is no number is the start of a password with a slash."""
    hosts, sign, rest = re.split(r"([/?#]|$)", place, maxsplit=1)
    return ",".join(_without_odd_port(host) for host in hosts.split(",")) + sign + rest


def _without_odd_port(host: str) -> str:
    """One host; from its first colon on, if a second one shows that this is no port either."""
    name, colon, more = host.partition(":")
    if ":" in more and not BRACKETS.fullmatch(host):
        return f"{name}{colon}…"
    return PORT.sub(":…", host)
