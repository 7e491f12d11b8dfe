"""Stored items as people see them: id, class, name, where the picture is, the rest."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from flowhash.data.thumbnails import LABEL, MEDIA, NAME, PICTURE
from flowhash.table import Item

OWN = (LABEL, NAME, PICTURE)  # what FlowHash writes into a payload; the rest is the user's
PREFIXES = tuple(f"data:{media};base64," for media in MEDIA)


def face(item: Item) -> dict[str, Any]:
    """An item as the API shows it."""
    return {"id": item.id, **described(item.id, item.payload), "buckets": item.code.tolist()}


def described(item: int | str, payload: dict[str, Any] | None) -> dict[str, Any]:
    """Label, name, address of the picture and the rest of a payload."""
    if payload is None:
        return {"label": None, "name": None, "picture": None, "payload": None}
    return {
        "label": label_of(payload),
        "name": _text(payload.get(NAME)),
        "picture": picture_address(item, payload),
        "payload": {name: value for name, value in payload.items() if name not in OWN},
    }


def label_of(payload: dict[str, Any] | None) -> str | None:
    """The class of an item."""
    return None if payload is None else _text(payload.get(LABEL))


def picture_address(item: int | str, payload: dict[str, Any] | None) -> str | None:
    """Where this server has the picture of an item, or None."""
    text = (payload or {}).get(PICTURE)
    if not isinstance(text, str) or not text.startswith(PREFIXES):
        return None
    return f"/pictures/{quote(str(item), safe='', errors='surrogatepass')}"


def _text(value: Any) -> str | None:
    """Labels may be numbers where a payload was written by hand."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) else None
