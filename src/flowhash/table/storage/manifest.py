"""The manifest: what a table is, and which files it consists of at the moment.

One JSON file, replaced as a whole. It says how long each file is and how to know it again, and
has a checksum of itself. Whatever the manifest does not name does not belong to the table.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flowhash.durable_files import OLD_STRAY, read_regular_file
from flowhash.errors import Advice, DamagedFileError, StorageError, reason
from flowhash.table.segments.segment import DeletedFile, SegmentFile
from flowhash.table.table_settings import TableSettings

NAME = "manifest.json"
FORMAT, VERSION = "flowhash-table", 4
# The versions of manifests without what later ones brought: older FlowHashes read them.
NOT_QUANTISED = 3  # no segment has the quantised plane
ALL_BUCKETS = 2  # nor is any item in has fewer than k
WITHOUT_NOTES = 1  # nor are there any notes
SEGMENT_NAME = re.compile(r"segment-\d{10}\.safetensors")
DELETED_NAME = re.compile(r"deleted-\d{10}\.npy")
STRAY_NAME = re.compile(re.escape(NAME) + OLD_STRAY)  # of a manifest that was not finished
LARGEST = 1 << 26  # bytes: more segments than a system maps files
WORD = 1 << 63  # numbers are below
LARGEST_SEGMENT = 1 << 31  # rows are counted in int32
FILES = 10**10  # so many names there are
LARGEST_LENGTH = 1e20  # of an embedding, with room: ``add`` takes up to 3.2e18


@dataclass(frozen=True)
class Manifest:
    """A state of a stored table.

    Attributes:
        settings: what never changes, but for the encoder, which ``recode`` changes.
        identity: random, so that a table made anew in the same folder is not taken for this one.
        generation: grows with every change.
        next_id: the next id that ``add`` assigns.
        next_file: the next number for a file's name.
        segments: the files.
        notes: what was noted about the table, with the rows that it is about: values of JSON.
    """

    settings: TableSettings
    identity: str = ""
    generation: int = 0
    next_id: int = 0
    next_file: int = 1
    segments: tuple[SegmentFile, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)

    def files(self) -> set[str]:
        """The names of all files that belong to the table."""
        names = {segment.file for segment in self.segments}
        return names | {part.deleted.file for part in self.segments if part.deleted}


def dump(manifest: Manifest) -> bytes:
    """The manifest as the bytes of its file."""
    body = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    if not manifest.notes:
        del body["notes"]
    if not any(segment.quantised for segment in manifest.segments):
        body["version"] = NOT_QUANTISED
        if all(segment.entries is None for segment in manifest.segments):
            body["version"] = ALL_BUCKETS if manifest.notes else WITHOUT_NOTES
    for segment in body["segments"]:
        if segment["entries"] is None:
            del segment["entries"]
        if segment["quantised"] is False:
            del segment["quantised"]
    text = json.dumps(body, indent=1, sort_keys=True)
    body["crc32"] = zlib.crc32(text.encode())
    return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a table.

    Raises:
        StorageError: there is no table, or it was written by a newer FlowHash.
        DamagedFileError: the manifest is damaged.
    """
    path = folder / NAME
    try:
        data = read_regular_file(path, LARGEST)
    except StorageError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        words = f"{folder} is not a table: it has no {NAME}."
        if not folder.exists():
            words = f"{folder} does not exist; expected a table."
        raise StorageError(words, advice=Advice.CREATE) from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        body = json.loads(data)
        if body.pop("format") != FORMAT:
            raise ValueError("it is not of a FlowHash table")
        version = body.pop("version")
        if isinstance(version, int) and version > VERSION:
            raise StorageError(
                f"{path} has format version {version!s:.20}; this FlowHash reads up to {VERSION}. "
                "Install a newer one"
            )
        manifest = _read(body)
        manifest.settings.check()
        _check_names(manifest)
        _check_numbers(manifest)
        if dump(manifest) != data:
            raise ValueError("it does not match its checksum")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedFileError(
            f"{path} is damaged ({reason(error)}); restore it from a copy"
        ) from error
    return manifest


def _read(body: dict[str, Any]) -> Manifest:
    body.pop("crc32")
    segments = []
    for fields in body.pop("segments"):
        deleted = fields.pop("deleted")
        segments.append(
            SegmentFile(**fields, deleted=None if deleted is None else DeletedFile(**deleted))
        )
    manifest = Manifest(TableSettings(**body.pop("settings")), segments=tuple(segments))
    return replace(manifest, **body)


def _check_numbers(manifest: Manifest) -> None:
    """What should be a number of something is one, and one that can be."""
    counts: list[tuple[Any, int]] = [
        (manifest.generation, WORD), (manifest.next_file, FILES + 1), (manifest.next_id, WORD + 1),
    ]  # fmt: skip
    lengths: list[Any] = []
    for segment in manifest.segments:
        counts += [(segment.rows, LARGEST_SEGMENT), (segment.size, WORD)]
        counts += [(segment.header_crc32, 1 << 32), (segment.sums_crc32, 1 << 32)]
        lengths += [segment.largest, segment.residual]
        if segment.entries is not None:  # each row has a bucket, and not all of them have k
            counts.append((segment.entries, segment.rows * manifest.settings.active))
            counts.append((segment.rows, segment.entries + 1))
        if segment.deleted:
            counts += [(segment.deleted.rows, segment.rows + 1), (segment.deleted.size, WORD)]
            counts.append((segment.deleted.crc32, 1 << 32))
    whole = all(type(count) is int and 0 <= count < limit for count, limit in counts)
    known = all(type(segment.quantised) is bool for segment in manifest.segments)
    real = all(type(length) in (int, float) and 0 <= length < LARGEST_LENGTH for length in lengths)
    if not whole or not known or not real or type(manifest.identity) is not str:
        raise ValueError("a number in it is none, or out of range")
    if type(manifest.notes) is not dict:
        raise ValueError("its notes are no object")


def _check_names(manifest: Manifest) -> None:
    """No name may lead out of the table's folder, and none is there twice."""
    names = [segment.file for segment in manifest.segments]
    names += [segment.deleted.file for segment in manifest.segments if segment.deleted]
    if len(set(names)) != len(names):
        raise ValueError("it names a file twice")
    for segment in manifest.segments:
        if not SEGMENT_NAME.fullmatch(segment.file):
            raise ValueError(f"{segment.file!r} is not the name of a segment")
        if segment.deleted and not DELETED_NAME.fullmatch(segment.deleted.file):
            raise ValueError(f"{segment.deleted.file!r} is not the name of a file of deleted rows")
