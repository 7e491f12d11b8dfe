"""What commands note about a table: in files beside its own, or in the engine that keeps it."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowhash.cli.config_file import read_settings, write_section
from flowhash.durable_files import replace_file
from flowhash.engines import RemoteEngine, hidden, is_address
from flowhash.errors import DamagedFileError, InputError, reason
from flowhash.table import HashTable

SETTINGS = "index.toml"  # beside the table's own files; it names the encoder
INDEX = "index"  # the note of an engine that has the same
JOURNAL = "index-"  # journals of collections begin so
SEAL = "crc32"  # of a journal, over all that it says; earlier versions wrote none


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

    def journal(self, name: str) -> dict[str, Any] | None:
        """How far a collection is indexed, as it was noted; None where nothing is.

        Raises:
            DamagedFileError: it is not what was written. Taken for none, all items of the
                collection would be stored a second time.
        """
        if self._engine is not None:
            return self._sound(name, self._engine.notes().get(name))
        path = self._file(name)
        try:
            if not path.is_file() and path.exists():
                raise self.damaged(name, "it is no file")
            return self._sound(name, json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except DamagedFileError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            words = reason(getattr(error, "strerror", None) or error)
            raise self.damaged(name, words) from error

    def write_journal(self, name: str, record: Mapping[str, Any]) -> None:
        """Note how far a collection is indexed, durably, with a checksum."""
        sealed = {**record, SEAL: _checksum(record)}
        if self._engine is not None:
            self._engine.note(name, sealed)
        else:
            replace_file(self._file(name), json.dumps(sealed).encode())

    def damaged(self, name: str, words: str) -> DamagedFileError:
        """What to raise where a journal cannot be used."""
        if self._engine is not None:
            place = f"{self._engine.address}: the note {name}"
        else:
            place = str(self._file(name))
        return DamagedFileError(
            f"{place} is damaged ({words}); it says which items of a source are stored already. "
            "Restore it from a copy, or run the index command of that source with --again: then "
            "all its items are stored once more, those without names under new numbers"
        )

    def _sound(self, name: str, record: Any) -> dict[str, Any] | None:
        if record is None and self._engine is not None:
            return None
        if not isinstance(record, dict):
            raise self.damaged(name, f"it holds {reason(record):.40}, expected an object")
        if SEAL in record and record[SEAL] != _checksum(record):
            raise self.damaged(name, "its checksum does not fit")
        return record

    def journals(self) -> dict[str, Any]:
        """How far each collection is indexed.

        Raises:
            DamagedFileError: as of :meth:`journal`.
        """
        if self._engine is not None:
            found = self._engine.notes()
            names = [name for name in found if name.startswith(JOURNAL)]
            return {name: self._sound(name, found[name]) for name in names}
        assert self._folder is not None
        names = sorted(path.stem for path in self._folder.glob(f"{JOURNAL}*.json"))
        return {name: record for name in names if (record := self.journal(name)) is not None}

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


def _checksum(record: Mapping[str, Any]) -> int:
    """Of all but the checksum, however it is laid out in a file."""
    body = {key: value for key, value in record.items() if key != SEAL}
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


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
