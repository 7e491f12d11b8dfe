"""What commands note about a table: in files beside its own, or in the engine that keeps it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowhash.cli.config import read_settings, write_section
from flowhash.engines import RemoteEngine, hidden, is_address
from flowhash.errors import InputError
from flowhash.table import HashTable
from flowhash.table.files import replace_file

SETTINGS = "index.toml"  # beside the table's own files; it names the encoder
INDEX = "index"  # the note of an engine that has the same
JOURNAL = "index-"  # journals of collections begin so


class LostEncoderError(InputError):
    """The encoder that a table was made with is not where it was."""


def place_of(text: str) -> str | Path:
    """Where a table is as the user names it: an address, or a folder."""
    return text if is_address(text) else Path(text)


def shown(place: str | Path) -> str:
    """A place in words, without a password."""
    return hidden(place) if isinstance(place, str) else str(place)


class Notes:
    """Notes about a table.

    Args:
        table: open; that of a folder, or an engine.
    """

    def __init__(self, table: HashTable | RemoteEngine) -> None:
        self._folder = table.path if isinstance(table, HashTable) else None
        self._engine = None if isinstance(table, HashTable) else table

    def read(self, name: str) -> Any:
        """A note, or None where there is none, or none that can be read."""
        if self._engine is not None:
            return self._engine.notes().get(name)
        with contextlib.suppress(ValueError, OSError):
            return json.loads(self._file(name).read_bytes())
        return None

    def write(self, name: str, value: Any) -> None:
        """Note something, durably."""
        if self._engine is not None:
            self._engine.note(name, value)
        else:
            replace_file(self._file(name), json.dumps(value).encode())

    def journals(self) -> dict[str, Any]:
        """How far each collection is indexed."""
        if self._engine is not None:
            found = self._engine.notes()
            return {name: found[name] for name in found if name.startswith(JOURNAL)}
        assert self._folder is not None
        names = sorted(path.stem for path in self._folder.glob(f"{JOURNAL}*.json"))
        return {name: record for name in names if (record := self.read(name)) is not None}

    def settings(self) -> dict[str, Any]:
        """What ``index`` was told, as far as it is of use later: the encoder, the items."""
        if self._engine is not None:
            found = self._engine.notes().get(INDEX)
            return found if isinstance(found, dict) else {}
        assert self._folder is not None
        return read_settings(self._folder / SETTINGS, INDEX)

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Note what ``index`` was told; files by their whole paths."""
        if self._engine is not None:
            self._engine.note(INDEX, dict(settings))
        else:
            assert self._folder is not None
            write_section(self._folder / SETTINGS, [INDEX], settings)

    def _file(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.json"


def own_encoder(settings: Mapping[str, Any], place: str | Path, given: Path | None) -> Path | None:
    """The encoder that was given, or the one that ``index`` noted; None where nothing says so.

    Args:
        settings: of :meth:`Notes.settings`.
        place: of the table.
        given: by the user.

    Raises:
        LostEncoderError: it is not there any more.
    """
    if given is not None:
        return given
    noted, table = settings.get("encoder"), settings.get("out", "")
    if not isinstance(noted, str):
        return None
    candidates = [Path(noted)]
    if isinstance(place, Path):
        # Where table and encoder were moved together, their places still lie alike.
        candidates.append(place / os.path.relpath(noted, str(table) or noted))
    for candidate in candidates:
        if (candidate / "encoder.json").exists():
            return candidate
    raise LostEncoderError(
        f"{shown(place)} was made with the encoder {noted}, which is not "
        f"{'there any more' if isinstance(place, Path) else 'on this machine'}; say where it is "
        "with --encoder"
    )
