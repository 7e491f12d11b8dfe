"""What can be said of a block without running it: its grammar, and that its names exist."""

from __future__ import annotations

import ast
import configparser
import contextlib
import importlib
import inspect
import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml

from tests.documents.blocks import ROOT, Block, PageError

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings it
    import tomli as tomllib  # type: ignore[no-redef]

ASSIGNMENT = re.compile(r"^\w+=")
EXTRAS = re.compile(r"(?:\.|flowhash)\[([\w,-]+)\]")


def read(block: Block) -> None:
    """Raise PageError, with page and line, if the block cannot be right."""
    try:
        READERS[block.language](block.text)
    except PageError as error:
        raise PageError(f"{block.place}: {error}") from error
    except (ValueError, SyntaxError, yaml.YAMLError, configparser.Error) as error:
        raise PageError(f"{block.place}: no valid {block.language}: {error}") from error


def read_python(text: str) -> None:
    """Compile; import what comes from FlowHash; compare its calls with the real signatures."""
    tree = ast.parse(text)
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flowhash":
            for alias in node.names:
                names[alias.asname or alias.name] = _from(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "flowhash":
                    module = importlib.import_module(alias.name)
                    names[alias.asname or "flowhash"] = (
                        module if alias.asname else importlib.import_module("flowhash")
                    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            _value(node, names)
        elif isinstance(node, ast.Call) and (function := _value(node.func, names)) is not None:
            _check_call(node, function)


def _from(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if hasattr(found, name) else importlib.import_module(path)
    except ImportError as error:
        raise PageError(f"{path} does not exist: {error}") from error


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    """What FlowHash has under this name, or None if it is not one of FlowHash's."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, names)
        if owner is None or not (inspect.ismodule(owner) or inspect.isclass(owner)):
            return None
        if not hasattr(owner, node.attr):
            raise PageError(f"{owner.__name__} has no {node.attr}")
        return getattr(owner, node.attr)
    return None


def _check_call(call: ast.Call, function: Any) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = {parameter.name for parameter in parameters}
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg not in known:
            raise PageError(f"{function.__name__} takes no {keyword.arg}=")


def read_shell(text: str) -> None:
    """Give each command that is ours to the parser that it will meet."""
    for words in commands(text):
        while words and ASSIGNMENT.match(words[0]):
            words = words[1:]
        if not words:
            continue
        if "flowhash.cli" in words:  # python -m, torchrun -m
            parse_flowhash(words[words.index("flowhash.cli") + 1 :])
        elif words[0] == "flowhash":
            parse_flowhash(words[1:])
        elif words[0] == "make":
            _check_targets(words[1:])
        elif words[0].startswith("python") and len(words) > 1 and words[1].endswith(".py"):
            if words[1].startswith("benchmarks/") and not (ROOT / words[1]).exists():
                raise PageError(f"there is no {words[1]}")
        elif "-m" in words and words[-1] != "-m" and "benchmarks." in words[words.index("-m") + 1]:
            _check_benchmark(words[words.index("-m") + 1])
        elif "pip" in words and "install" in words:
            _check_extras(words)


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell block, as words, without what goes to and comes from files."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        reader = shlex.shlex(line, posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        words: list[str] = []
        to_file = False
        for word in reader:
            if word and set(word) <= set("|&;"):
                yield words
                words = []
            elif to_file or (word and set(word) <= set("<>&")):
                to_file = not to_file
                if to_file and words and words[-1].isdigit():
                    words.pop()  # the 2 of 2>&1
            else:
                words.append(word)
        yield words


def parse_flowhash(words: list[str]) -> dict[str, Any]:
    """The options that the real command reads from these words; nothing is run."""
    from flowhash.cli.app import app

    context, command, name, rest = None, typer.main.get_command(app), "flowhash", list(words)
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            while True:
                for parameter in command.params:
                    parameter.callback = None  # would open a file, or answer and leave
                    kind = getattr(parameter, "type", None)
                    if hasattr(kind, "exists"):
                        kind.exists = False
                context = command.make_context(name, rest, parent=context)
                if not hasattr(command, "resolve_command"):
                    return dict(context.params)
                rest = [*getattr(context, "_protected_args", []), *context.args]
                if not rest:
                    return dict(context.params)
                name, command, rest = command.resolve_command(context, rest)
    except typer.Exit:  # --help
        return {}
    except Exception as error:
        if type(error).__name__ == "MissingParameter" and "--config" in words:
            return {}  # it stands in the file
        said = getattr(error, "message", "") or str(error)
        raise PageError(f"flowhash {shlex.join(words)}: {said}") from error


def _check_benchmark(module: str) -> None:
    path = Path(*module.split(".")).with_suffix(".py")
    if not (ROOT / path).exists():
        raise PageError(f"there is no {path}")


def _check_targets(words: list[str]) -> None:
    rules = (ROOT / "Makefile").read_text("utf-8")
    for word in words:
        if not ASSIGNMENT.match(word) and not re.search(rf"^{re.escape(word)}:", rules, re.M):
            raise PageError(f"the Makefile has no target {word}")


def _check_extras(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for word in words:
        if found := EXTRAS.match(word):
            unknown = set(found[1].split(",")) - set(project["optional-dependencies"])
            if unknown:
                raise PageError(f"pyproject.toml has no extra {', '.join(sorted(unknown))}")


def read_ini(text: str) -> None:
    """Read a file of sections; keys may stand several times, as systemd has it."""
    configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",)).read_string(text)


def read_nginx(text: str) -> None:
    """Statements end with a semicolon, and what is opened is closed."""
    depth = 0
    for line in text.splitlines():
        words = line.partition("#")[0].strip()
        if words and words[-1] not in ";{}":
            raise PageError(f"an nginx statement without its end: {words}")
        depth += words.count("{") - words.count("}")
        if depth < 0:
            raise PageError("an nginx block is closed that was not opened")
    if depth:
        raise PageError("an nginx block is not closed")


READERS = {
    "python": read_python,
    "sh": read_shell,
    "toml": tomllib.loads,
    "json": json.loads,
    "yaml": yaml.safe_load,
    "ini": read_ini,
    "nginx": read_nginx,
    "text": lambda text: None,
}
