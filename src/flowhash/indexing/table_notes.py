"""What ``index`` notes about a table: how far each source is, where encoder and items are.

How far a source is stored is a note of the table itself, committed with the rows that it is about.
Earlier versions wrote it into a file beside the table, after the rows; such a file still counts
where the table has no note of that name.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowhash.durable_files import read_regular_file
from flowhash.engines import RemoteEngine, hidden
from flowhash.errors import Argument, DamagedFileError, InputError, reason
from flowhash.settings_file import read_settings, write_section
from flowhash.table import HashTable

SETTINGS = "index.toml"  # beside the table's own files; it names the encoder
INDEX = "index"  # the note of an engine that has the same
SOURCE = "index-"  # notes on sources begin so
ADAPTED = "adapted"  # the note on the encoder that ``adapt`` has fitted to the table
RECORD = "encoder.json"  # in the folder of an encoder
LARGEST_RECORD = 1 << 28  # bytes of it
SEAL = "crc32"  # of such a note, over all that it says; a database may be changed by hand


class LostEncoderError(InputError):
    """The encoder that a table was made with is not where it was."""


class OtherEncoderError(InputError):
    """The encoder that was noted for a table is not the one that its codes come from."""


class TableNotes:
    """Notes about a table.

    Args:
        table: open; that of a folder, or an engine.
    """

    def __init__(self, table: HashTable | RemoteEngine) -> None:
        self._table = table
        self._folder = table.path if isinstance(table, HashTable) else None

    def done(self, name: str) -> int:
        """How many items of a source are stored; 0 where nothing is noted.

        Raises:
            DamagedFileError: it is not what was written. Taken for none, all items of the source
                would be stored a second time.
        """
        noted, path = self._table.notes().get(name), self._old_file(name)
        if noted is not None:
            return self._sound(name, noted)
        if path is None:
            return 0
        try:
            if not path.is_file() and path.exists():
                raise self.damaged(name, "it is no file")
            return self._sound(name, json.loads(path.read_bytes()))
        except FileNotFoundError:
            return 0
        except DamagedFileError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            words = reason(getattr(error, "strerror", None) or error)
            raise self.damaged(name, words) from error

    def sources(self) -> dict[str, Any]:
        """The notes on all sources, fit for another table that gets the same rows."""
        names = {name for name in self._table.notes() if name.startswith(SOURCE)}
        if self._folder is not None:
            names |= {path.stem for path in self._folder.glob(f"{SOURCE}*.json")}
        return {name: source_note(self.done(name)) for name in sorted(names)}

    def damaged(self, name: str, words: str) -> DamagedFileError:
        """What to raise where the note on a source cannot be used."""
        table, path = self._table, self._old_file(name)
        if path is not None and name not in table.notes():
            place = str(path)
        else:
            whose = table.path if isinstance(table, HashTable) else table.address
            place = f"{whose}: the note {name}"
        return DamagedFileError(
            f"{place} is damaged ({words}); it says which items of a source are stored already. "
            "Restore it from a copy; or, to store all items of that source once more, those "
            "without names under new numbers, index it with",
            advice=Argument("again", "True"),
        )

    def _sound(self, name: str, record: Any) -> int:
        if not isinstance(record, dict):
            raise self.damaged(name, f"it holds {reason(record):.40}, expected an object")
        if SEAL in record and record[SEAL] != _checksum(record):
            raise self.damaged(name, "its checksum does not fit")
        done = record.get("done")
        if type(done) is not int or done < 0:
            raise self.damaged(name, f"it says that {reason(done):.40} items are done")
        return done

    def remove_old_file(self, name: str) -> None:
        """Remove what an earlier version noted; the table says more by now."""
        path = self._old_file(name)
        if path is not None:
            with contextlib.suppress(OSError):  # what stays does no harm: the table's note counts
                path.unlink()

    def _old_file(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{name}.json"

    def settings(self) -> dict[str, Any]:
        """What ``index`` was told, as far as it is of use later: the encoder, the items."""
        if self._folder is not None:
            return read_settings(self._folder / SETTINGS, INDEX)
        found = self._table.notes().get(INDEX)
        return found if isinstance(found, dict) else {}

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Note what ``index`` was told; files by their whole paths."""
        if self._folder is not None:
            write_section(self._folder / SETTINGS, [INDEX], settings)
        else:
            self._table.note(INDEX, dict(settings))


def source_note(done: int) -> dict[str, int]:
    """The note that so many items of a source are stored."""
    record = {"done": done}
    return {**record, SEAL: _checksum(record)}


def _checksum(record: Mapping[str, Any]) -> int:
    """Of all but the checksum, however it is laid out in a file."""
    body = {key: value for key, value in record.items() if key != SEAL}
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def own_encoder(
    table: HashTable | RemoteEngine, place: str | Path, encoder: Path | None = None
) -> Path | None:
    """The encoder that was given, or the one that was noted; None where nothing says so.

    ``adapt`` notes its encoder with the new codes, in one step; ``index`` beside the table.

    Args:
        table: open; what was noted about it is read.
        place: of the table.
        encoder: that the user gave.

    Raises:
        LostEncoderError: it is not there any more.
        OtherEncoderError: what is there is another one, such as that of the codes which
            ``HashTable.recode`` has replaced.
    """
    if encoder is not None:
        return encoder
    known = _noted_encoders(table)
    if not known:
        return None
    noted = known[0][0]
    candidates = [Path(path) for path, _ in known]
    if isinstance(place, Path):
        # Where table and encoder were moved together, their places still lie alike.
        candidates += [place / os.path.relpath(path, beside or path) for path, beside in known]
    there = {one: fingerprint_at(one) for one in candidates if (one / RECORD).exists()}
    for candidate, fingerprint in there.items():
        if fingerprint in (table.encoder, None) or table.encoder is None:
            return candidate
    shown, where = (
        (str(place), "there any more") if isinstance(place, Path)
        else (hidden(place), "on this machine")
    )  # fmt: skip
    if there and adaptation_note(table) is None:
        other, fingerprint = next(iter(there.items()))
        raise OtherEncoderError(
            f"{shown} has codes of encoder {table.encoder!r}, but {other}, which is noted as its "
            f"encoder, is {fingerprint!r:.40}; index afresh, or say where the first is with",
            Argument("encoder"),
        )
    raise LostEncoderError(
        f"{shown} was made with the encoder {noted}, which is not {where}; say where it is with",
        Argument("encoder"),
    )


def _noted_encoders(table: HashTable | RemoteEngine) -> list[tuple[str, str]]:
    """Where its encoder is, and where the table was then: of the last adaptation, of ``index``."""
    settings, note = TableNotes(table).settings(), adaptation_note(table)
    found = [(settings.get("encoder"), settings.get("out"))]
    if note is not None:
        found.insert(0, (note["path"], note.get("beside")))
    return [(path, str(beside or "")) for path, beside in found if isinstance(path, str)]


def adaptation_note(table: HashTable | RemoteEngine) -> dict[str, Any] | None:
    """What ``adapt`` noted; None where the codes are not its own, or others have come since."""
    note = table.notes().get(ADAPTED)
    if not isinstance(note, dict) or not isinstance(note.get("path"), str):
        return None
    own = table.encoder is not None and note.get("fingerprint") == table.encoder
    return note if own else None


def fingerprint_at(folder: Path) -> Any:
    """What an encoder's record says, read without torch; None where loading it will say why."""
    try:
        record = json.loads(read_regular_file(folder / RECORD, LARGEST_RECORD))
    except (OSError, ValueError, RecursionError):
        return None
    return record.get("fingerprint") if isinstance(record, dict) else None
