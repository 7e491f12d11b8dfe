"""Options in a TOML file, and the resolved settings of a run as such a file.

A file holds options by their names, for any command at its top and for one command in a section
called like it::

    device = "cpu"

    [fit]
    data = "pictures"
    buckets = 256

What stands on the command line wins over the file, and a section over the top.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from flowhash.errors import InputError
from flowhash.settings_file import read_toml, section_of, write_section

# Not settings of a run, but of how one looks at it.
NOT_SAVED = frozenset({"config", "help", "quiet", "json", "open"})


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of a file as defaults; the callback of ``--config``."""
    if path is None or context.resilient_parsing:
        return path
    content = read_toml(path)
    root = context.find_root().command
    own = _names(context.command)
    anywhere = {name for command in _commands(root) for name in _names(command)}
    defaults: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            _check_sections(path, name, value, root)
            continue
        _check(path, "option", _dashed(name), anywhere, "no command has")
        if _dashed(name) in own:
            defaults[own[_dashed(name)]] = _at_home(value)
    for name, value in section_of(content, words_of(context)).items():
        _check(path, "option", _dashed(name), set(own), f"{context.command_path} does not have")
        defaults[own[_dashed(name)]] = _at_home(value)
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def save_settings(context: typer.Context, path: Path, **resolved: Any) -> None:
    """Write what a command was run with, so that ``--config`` runs it again.

    Args:
        context: of the command.
        path: the file.
        **resolved: what was chosen for options that the user left open.
    """
    given = {**context.params, **resolved}
    section = {
        user: given[python]
        for user, python in sorted(_names(context.command).items())
        if given.get(python) is not None and user not in NOT_SAVED
    }
    write_section(path, words_of(context), section)


def _check_sections(path: Path, name: str, section: dict[str, Any], above: Any) -> None:
    """Refuse sections that name no command; those of a group hold sections of its commands."""
    commands = getattr(above, "commands", {})
    _check(path, "section", name, set(commands), "no command is called")
    below = getattr(commands[name], "commands", {})
    for inner, value in section.items() if below else ():
        if not isinstance(value, dict):
            raise InputError(
                f"{path} has {inner} in the section {name}; expected a section for a command of "
                f"it, such as [{name}.{min(below)}]"
            )
        _check_sections(path, inner, value, commands[name])


def _at_home(value: Any) -> Any:
    """Text that begins like a path in the user's folder is one, as in a shell."""
    if isinstance(value, str) and value.startswith("~/"):
        return str(Path(value).expanduser())
    return value


def _check(path: Path, what: str, name: str, known: set[str], words: str) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
    raise InputError(f"{path} has the {what} {name}, which {words}; {hint}")


def words_of(context: typer.Context) -> list[str]:
    """The words that name a command: ["table", "stats"]."""
    words: list[str] = []
    here: Any = context
    while here.parent is not None:
        words.insert(0, str(here.info_name))
        here = here.parent
    return words


def _commands(command: Any) -> Iterator[Any]:
    for one in getattr(command, "commands", {}).values():
        yield one
        yield from _commands(one)


def _names(command: Any) -> dict[str, str]:
    """The parameters of a command: the user's name of each, and Python's."""
    names = {}
    for one in command.params:
        long = [word for word in one.opts if word.startswith("--")]
        names[long[0].lstrip("-") if long else _dashed(one.name)] = str(one.name)
    return {user: python for user, python in names.items() if user not in ("config", "help")}


def _dashed(name: str) -> str:
    return name.replace("_", "-")
