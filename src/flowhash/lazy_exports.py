"""The door of a room: names that load their module when they are first used, each written once.

A room's ``__init__`` imports its names under ``if TYPE_CHECKING:``, where type checkers and readers
look for them. The same lines say here which module to load, so that importing a room imports
nothing heavy, and a data set asks for no package but its own. The first such block holds what users
may use; a second one what other rooms of this house need besides.

No module of a room may be called like one of its names: importing it would hide the name.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any

from flowhash.extras import require

Door = tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]


def lazy_exports(spec: ModuleSpec | None, needs: tuple[str, ...] = (), extra: str = "") -> Door:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    Args:
        spec: ``__spec__`` of the package.
        needs: packages that every public name needs.
        extra: of ``pyproject.toml``, which installs them.
    """
    assert spec is not None
    assert spec.loader is not None
    source = spec.loader.get_source(spec.name)  # type: ignore[attr-defined]
    blocks = [dict(_imported(block)) for block in ast.parse(source).body if _is_guarded(block)]
    public = sorted(blocks[0])
    homes = {name: home for block in blocks for name, home in block.items()}
    package = spec.name

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if name in blocks[0]:
            for needed in needs:
                require(needed, extra)
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return public, load, lambda: public


def _is_guarded(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


def _imported(block: ast.stmt) -> Iterator[tuple[str, str]]:
    """Each name that a block imports, and the module that it is in."""
    for statement in ast.walk(block):
        if isinstance(statement, ast.ImportFrom) and statement.module:
            for alias in statement.names:
                yield alias.name, statement.module
