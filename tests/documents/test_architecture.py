"""docs/architecture.md and the lists of files in CONTRIBUTING.md name what is there, and all of it.

Sources are read, not imported, so that a name is found without torch, servers or a compiler.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.blocks import ROOT, blocks_of
from tests.documents.reading import tomllib

PACKAGE = ROOT / "src" / "flowhash"
PAGE = "docs/architecture.md"
GUIDE = "CONTRIBUTING.md"
# `table/changes.py`, `table/changes.py:add`, `table/hash_table.py:HashTable.add`
REFERENCE = re.compile(r"`([\w./]+\.py)(?::([\w.]+))?`")
MODULE = re.compile(r"\w+\.py")


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """Functions, classes, their methods and fields, and what a module assigns, as dotted names."""
    return frozenset(_names(ast.parse(path.read_text("utf-8")).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
            yield from _names(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _names(node.body, prefix)


def fault(module: str, name: str) -> str | None:
    """What is wrong with a reference to a file, of package or clone, and to a name in it."""
    found = [path for path in (PACKAGE / module, ROOT / module) if path.is_file()]
    if not found:
        return f"there is no {module}, neither in src/flowhash nor in the clone"
    return f"{module} has no {name}" if name and name not in names_in(found[0]) else None


def wrong_names(text: str) -> list[str]:
    """A line for each reference of a page that leads nowhere."""
    return [found for found in itertools.starmap(fault, REFERENCE.findall(text)) if found]


def read_tree(text: str) -> tuple[set[str], set[str]]:
    """The rooms and the modules of a tree; two blanks more are one room deeper."""
    rooms: set[str] = set()
    modules: set[str] = set()
    above: list[str] = []
    for line in text.splitlines()[1:]:
        depth = (len(line) - len(line.lstrip())) // 2
        words = line.split()
        if words[0].endswith("/"):
            above = [*above[: depth - 1], words[0]]
            rooms.add("".join(above))
        else:
            assert all(MODULE.fullmatch(word) for word in words), line
            modules |= {"".join(above[: depth - 1]) + word for word in words}
    return rooms, modules


def page_text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def tree_block() -> str:
    (found,) = [block.text for block in blocks_of(PAGE) if block.text.startswith("src/flowhash/")]
    return found


def test_every_file_and_function_of_the_walks_is_there() -> None:
    assert wrong_names(page_text(PAGE)) == []
    assert len(REFERENCE.findall(page_text(PAGE))) > 60


def test_every_module_is_in_the_tree_and_nothing_else() -> None:
    files = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    rooms, modules = read_tree(tree_block())
    assert rooms == {
        f"{path.parent.as_posix()}/"
        for path in files
        if path.name == "__init__.py" and path.parent != Path()
    }
    assert modules == {path.as_posix() for path in files if not path.name.startswith("__")}


def test_a_room_is_called_what_its_door_says() -> None:
    for line in tree_block().splitlines()[1:]:
        room, _, words = line.strip().partition(" ")
        if room.endswith("/"):
            docstrings = [
                " ".join((ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split())
                for path in PACKAGE.rglob(f"{room}__init__.py")
            ]
            assert any(text.startswith(words.strip()) for text in docstrings), line


def test_the_layers_are_those_that_are_enforced() -> None:
    """Between rooms, and inside each room that has layers of its own."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    enforced = [
        [re.sub(r"[\w.]+\.(?=\w+)", "", layer) for layer in contract["layers"]]
        for contract in contracts
        if contract["type"] == "layers"
    ]
    shown = [block.text.splitlines() for block in blocks_of(PAGE)]
    assert [lines for lines in shown if lines[0] != "src/flowhash/"] == enforced


def test_the_files_to_touch_are_there() -> None:
    text = page_text(GUIDE)
    assert wrong_names(text) == []
    for thing in (
        "metric", "loss", "engine", "data set", "method of comparison", "column of results",
        "option of the server",
    ):  # fmt: skip
        found = re.search(rf"^\*\*An? {thing}\*\*.*?(?=^\*\*|^#)", text, re.M | re.S)
        assert found is not None, thing
        assert REFERENCE.search(found[0]), f"no file to touch for a {thing}"


@pytest.mark.parametrize(
    "text",
    [
        "`table/nowhere.py`",
        "`table/changes.py:nothing`",
        "`table/hash_table.py:HashTable.nothing`",
        "`table/hash_table.py:add`",
        "`hash_table.py:HashTable.add`",
        "`tests/nowhere.py`",
    ],
)
def test_a_wrong_name_is_found(text: str) -> None:
    assert len(wrong_names(f"words {text} words")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "`table/changes.py`", "`table/changes.py:_store`", "`table/changes.py:FAN`",
        "`table/hash_table.py:HashTable.add`", "`tests/documents/test_architecture.py:fault`",
    ],
)  # fmt: skip
def test_a_right_name_is_found(text: str) -> None:
    assert wrong_names(text) == []


def test_a_tree_is_read_room_by_room() -> None:
    lines = ("src/flowhash/", "  a.py  b.py", "  x/   words", "    c.py", "    y/  words",
             "      d.py", "  z/", "    e.py")  # fmt: skip
    modules = {"a.py", "b.py", "x/c.py", "x/y/d.py", "z/e.py"}
    assert read_tree("\n".join(lines)) == ({"x/", "x/y/", "z/"}, modules)
