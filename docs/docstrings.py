"""How the API reference reads docstrings: what they have for Python's own tools, as Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:meth|class|func|mod|attr|data):`~?([^`]+)`")
EXAMPLE = re.compile(r"^(\s*)Example:\s*$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Sphinx's roles become code, and ``Example:`` the section that griffe knows as Examples."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object, once it is collected."""
        if obj.docstring is not None:
            text = ROLE.sub(r"``\1``", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", text).replace("::\n", ":\n")
