"""Addresses of engines: ``postgresql://…`` and ``qdrant://…``."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

SCHEMES = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "qdrant": "qdrant",
    "qdrant+https": "qdrant",
    "qdrant+local": "qdrant",
}
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
