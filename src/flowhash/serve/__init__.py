"""Serving: the HTTP API and the search page.

The names below load their module when first used; they need the extra ``serve``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.serve.app import create_app as create_app
    from flowhash.serve.options import ServeOptions as ServeOptions
    from flowhash.serve.server import run as run

if TYPE_CHECKING:  # for other rooms
    from flowhash.serve.options import SETTINGS as SETTINGS

__all__, __getattr__, __dir__ = lazy_exports(
    __spec__,
    ("orjson", "prometheus_client", "pydantic", "python_multipart", "starlette", "uvicorn"),
    "serve",
)
