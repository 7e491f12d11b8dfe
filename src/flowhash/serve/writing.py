"""Answers as JSON."""

from __future__ import annotations

import json
from typing import Any

import orjson
from starlette.responses import Response


def as_json(value: Any) -> bytes:
    """``value`` as JSON; numpy's numbers as they are.

    Payloads that Python wrote may hold what orjson refuses: numbers of more than 64 bits, and half
    characters. The standard library writes those.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return json.dumps(value, default=_number, allow_nan=False).encode()


def _number(value: Any) -> Any:
    return value.item()


def answer(value: Any, status: int = 200) -> Response:
    """A response with JSON."""
    return Response(as_json(value), status, media_type="application/json")
