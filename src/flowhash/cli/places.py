"""Addresses where a folder or a file is expected: refused before anything is made or shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from flowhash.cli.config import words_of
from flowhash.errors import InputError

# The only parameters that take addresses.
TAKE_ADDRESSES = {
    "index": {"to"},
    "search": {"table"},
    "serve": {"table"},
    "copy": {"source", "target"},
    "table stats": {"table"},
    "table check": {"table"},
    "table compact": {"table"},
}
# Well formed or not: what looks so may hold a password, and is not repeated.
ADDRESS = re.compile(r"(postgres|postgresql|qdrant(\+\w+)?)(:|//)", re.IGNORECASE)
# What libpq takes besides: with a password, or with a place and more, whose name may be mistyped.
CONNECTION = re.compile(r"\bpassword\s*=|^\s*\w+\s*=\s*('[^']*'|[^\s=]*)\s+\w+\s*=", re.IGNORECASE)


class PlacesCommand(TyperCommand):
    """A command that looks at its arguments first."""

    def invoke(self, ctx: Any) -> Any:
        """Refuse what is misplaced, then run."""
        takes = TAKE_ADDRESSES.get(" ".join(words_of(ctx)), set())
        for parameter in self.params:
            for value in _texts(ctx.params.get(parameter.name)):
                _check(value, _shown(parameter), parameter.name in takes)
        return super().invoke(ctx)


def guard(app: typer.Typer) -> None:
    """Let every command of an application look at its arguments first."""
    for command in app.registered_commands:
        command.cls = PlacesCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            guard(group.typer_instance)


def _texts(value: Any) -> Iterable[str]:
    values = value if isinstance(value, list | tuple) else [value]
    return [str(one) for one in values if isinstance(one, str | Path)]


def _shown(parameter: Any) -> str:
    long = [word for word in parameter.opts if word.startswith("--")]
    return long[0] if long else str(parameter.metavar or parameter.name).upper()


def _check(value: str, name: str, takes: bool) -> None:
    if CONNECTION.search(value) and "://" not in value:
        raise InputError(
            f"{name} has a password in it, or may have one, but is no address; expected "
            "postgresql://USER@HOST/DATABASE?table=NAME, or a folder"
        )
    if ADDRESS.match(value) is None:
        return
    if not takes:
        raise InputError(
            f"{name} is an address; expected a folder or a file. Addresses are for index --to, "
            "copy, search, serve and table"
        )
    if "://" not in value:
        raise InputError(
            f"{name} is no address; expected postgresql://USER@HOST/DATABASE?table=NAME or "
            "qdrant://HOST:6333/COLLECTION"
        )
