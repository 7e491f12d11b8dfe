"""What the package promises as a whole."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import flowhash
from flowhash.errors import MissingExtraError
from flowhash.extras import require
from flowhash.threads import in_shards


def test_every_public_name_loads() -> None:
    for name in flowhash.__all__:
        assert getattr(flowhash, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        flowhash.nothing  # noqa: B018


def lazy_packages() -> list[str]:
    """Every package whose names load when they are first used (PEP 562)."""
    root = Path(flowhash.__file__).parent
    return [
        ".".join(("flowhash", *path.parent.relative_to(root).parts))
        for path in sorted(root.rglob("__init__.py"))
        if "= lazy_exports(" in path.read_text()
    ]


def test_no_name_that_loads_late_is_that_of_a_module() -> None:
    """Importing a module sets its name on the package: another thing of that name is gone then."""
    for name in lazy_packages():
        package = importlib.import_module(name)
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        source = Path(package.__file__ or "").read_text()
        names = {
            alias.name
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("flowhash.")
            for alias in node.names
        }
        assert names - {"lazy_exports", "get_ready"} >= set(package.__all__) - {"__version__"}
        assert not modules & (names - {"lazy_exports"}), name


def test_every_name_that_is_taken_from_a_door_is_there() -> None:
    """Type checkers let any name of a module pass that has a ``__getattr__``."""
    root = Path(__file__).parents[1]
    doors = {name: importlib.import_module(name) for name in lazy_packages()}
    taken = [
        (str(path.relative_to(root)), node.module, alias.name)
        for folder in ("src", "tests", "benchmarks")
        for path in sorted((root / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module in doors
        for alias in node.names
    ]
    assert len(taken) > 500
    for path, room, name in taken:
        module = importlib.util.find_spec(f"{room}.{name}")
        assert module is not None or hasattr(doors[room], name), f"{path}: {room} has no {name}"


ORDERS = """
import importlib, sys, types
for package in sys.argv[1:]:
    names = importlib.import_module(package).__all__
    for order in (names, names[::-1]):
        for module in [name for name in sys.modules if (name + ".").startswith(package + ".")]:
            del sys.modules[module]
        room, found = importlib.import_module(package), {}
        for name in order:
            found[name] = getattr(room, name)
        for name in order:
            assert not isinstance(getattr(room, name), types.ModuleType), (package, order, name)
            assert getattr(room, name) is found[name], (package, order, name)
"""


def test_names_are_the_same_in_any_order_of_their_imports() -> None:
    rooms = [name for name in lazy_packages() if name != "flowhash"]  # that would forget all others
    assert {"flowhash.data", "flowhash.evaluate", "flowhash.learn", "flowhash.serve"} <= set(rooms)
    done = subprocess.run([sys.executable, "-c", ORDERS, *rooms], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_codes_do_not_import_torch() -> None:
    code = "from flowhash.codes import assign_codes; import sys; "
    code += "print('torch' in sys.modules, 'ortools' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def test_a_missing_extra_is_named() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'flowhash\[learn\]'"):
        require("a_package_that_nobody_has", "learn")


def test_a_fault_inside_an_extra_is_not_hidden(tmp_path: object, monkeypatch: object) -> None:
    folder = Path(str(tmp_path))
    (folder / "broken_package.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(str(folder))  # type: ignore[attr-defined]
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has") as caught:
        require("broken_package", "learn")
    assert not isinstance(caught.value, MissingExtraError)


@pytest.mark.parametrize("rows", [0, 1, 1023, 1024, 5000, 12345])
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_shards_cover_every_row_once(rows: int, threads: int) -> None:
    shards = in_shards(lambda start, stop: range(start, stop), rows, threads)
    assert [row for shard in shards for row in shard] == list(range(rows))
    assert len(shards) <= threads


def test_a_fault_in_a_thread_reaches_the_caller() -> None:
    def fail(start: int, stop: int) -> None:
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        in_shards(fail, 9999, 3)
