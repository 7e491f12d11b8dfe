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
    text = OPTION.sub(_without_secret, text)
    found = START.match(text)
    start = found[0] if found else ""
    rest = text[len(start) :]
    user, at, place = rest.rpartition("@")
    scheme = start.lower()
    if not at or (scheme.startswith("qdrant+local") and rest.startswith("/")):  # a folder
        return text
    if scheme.startswith("qdrant"):  # it knows no users: what is there is the key
        return f"{start}{place}"
    return f"{start}{user.partition(':')[0]}@{place}"


def _without_secret(option: re.Match[str]) -> str:
    secret = unquote(option[1]).lower().endswith(SECRET)
    return f"{option[1]}=…" if secret else option[0]
