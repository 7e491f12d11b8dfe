"""Serving: the HTTP API and the search page.

The names below load their module when first used; they need the extra ``serve``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flowhash.extras import require

if TYPE_CHECKING:
    from flowhash.serve.app import create_app
    from flowhash.serve.options import ServeOptions
    from flowhash.serve.server import run

_HOMES = {"ServeOptions": "options", "create_app": "app", "run": "running"}
PACKAGES = ("fastapi", "orjson", "prometheus_client", "python_multipart", "uvicorn")

__all__ = ["ServeOptions", "create_app", "run"]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'flowhash.serve' has no attribute {name!r}")
    if name != "ServeOptions":
        for package in PACKAGES:
            require(package, "serve")
    return getattr(importlib.import_module(f"flowhash.serve.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
