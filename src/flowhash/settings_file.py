"""Files of options: TOML with a section for each command, written to be read again."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowhash import __version__
from flowhash.durable_files import open_regular_file, replace_file
from flowhash.errors import DamagedFileError, InputError, reason
from flowhash.extras import require

if sys.version_info >= (3, 11):
    import tomllib as toml
else:
    toml = require("tomli", "cli")

MOST = 1 << 20  # bytes of a file of options, or of a key


def write_section(path: Path, words: Sequence[str], options: Mapping[str, Any]) -> None:
    """Write the options of one command as a file for ``--config``."""
    section: Mapping[str, Any] = {name: _plain(value) for name, value in options.items()}
    for word in reversed(words):
        section = {word: section}
    head = (
        f"# Written by FlowHash {__version__}. To run it again (options win over the file):\n"
        f"#   flowhash {' '.join(words)} --config {path.name}\n\n"
    )
    replace_file(path, (head + require("tomli_w", "cli").dumps(section)).encode())


def read_settings(path: Path, *words: str) -> dict[str, Any]:
    """The section of a command in a file of :func:`write_section`; empty without the file.

    Raises:
        InputError: a pipe or something else is in its place, or it is not TOML.
    """
    return section_of(read_toml(path), words) if path.exists() else {}


def read_text(path: Path) -> str:
    """The text of a small file, or of a pipe that the shell has made, as ``<(command)``.

    Raises:
        InputError: it is something else: a named pipe may be waited for, and a device read, for
            ever.
        OSError: it cannot be read.
        UnicodeDecodeError: it is not text.
    """
    try:
        with open_regular_file(path, pipe=path.parts[:2] == ("/", "dev")) as file:
            content = file.read(MOST + 1)
    except DamagedFileError as error:
        raise InputError(str(error)) from error
    if len(content) > MOST:
        raise InputError(f"{path} has more than {MOST:,} bytes; give a small file of text")
    return content.decode()


def read_toml(path: Path) -> dict[str, Any]:
    """What a file of options holds.

    Raises:
        InputError: it is not there, or not TOML.
    """
    try:
        return toml.loads(read_text(path))
    except FileNotFoundError as error:
        raise InputError(f"{path} is not there; give a TOML file with options") from error
    except InputError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        words = reason(getattr(error, "strerror", None) or error)
        raise InputError(f"{path} cannot be read: {words}; give a TOML file") from error
    # Also what nests too deeply for the parser, and numbers of thousands of digits.
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not TOML: {reason(error)}; mend that place") from error


def section_of(content: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The options of one command."""
    section: Any = content
    for word in words:
        section = section.get(word, {})
        if not isinstance(section, dict):  # an option at the top that is called like a command
            return {}
    return dict(section)


def _plain(value: Any) -> Any:
    """A value as TOML has it; files by their whole path, so that it runs from any folder."""
    if isinstance(value, Path):
        return str(value.expanduser().resolve())
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
