"""Where a table is, in the words of a user: a folder, or an address."""

from __future__ import annotations

from pathlib import Path

from flowhash.engines import hidden, is_address


def place_of(text: str) -> str | Path:
    """Where a table is as the user names it: an address, or a folder."""
    return text if is_address(text) else Path(text)


def shown(place: str | Path) -> str:
    """A place in words, without a password."""
    return hidden(place) if isinstance(place, str) else str(place)
