"""Addresses of engines: ``postgresql://…`` and ``qdrant://…``."""

from __future__ import annotations

import re
from pathlib import Path

SCHEMES = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "qdrant": "qdrant",
    "qdrant+https": "qdrant",
    "qdrant+local": "qdrant",
}
SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)  # one letter is a drive
SECRETS = re.compile(r"((?:password|api_key|sslpassword)=)[^&]*", re.IGNORECASE)


def scheme_of(text: str | Path) -> str | None:
    """The scheme of an address, in small letters; None for what is a folder."""
    found = SCHEME.match(str(text))
    return None if found is None else found[1].lower()


def is_address(text: str | Path) -> bool:
    """Whether this names an engine that another process runs, and not a folder."""
    return scheme_of(text) is not None


def hidden(text: str) -> str:
    """An address that may be shown: without password or key."""
    scheme, mark, rest = text.partition("://" if "://" in text else ":/")
    user, at, place = rest.rpartition("@")
    if at:
        name = user.partition(":")[0]
        rest = f"{name}@{place}"
    return SECRETS.sub(r"\1…", f"{scheme}{mark}{rest}")
