"""A table's folder: files that never change, a manifest that is replaced, one writer at a time.

What is acknowledged is on disk: a new file is written and flushed, then its folder entry, then
the manifest beside the old one, which it replaces by a rename, and the folder again. A process
that dies in between leaves files that no manifest names; the next writer removes them.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.durable_files import (
    LOCK,
    atomic_file,
    flush_folder,
    naming,
    read_regular_file,
    release_lock,
    remove_strays,
    take_lock,
)
from flowhash.errors import Advice, DamagedFileError, StorageError
from flowhash.table.segments.segment import (
    NO_ROWS,
    DeletedFile,
    LiveSegment,
    SegmentFile,
    TableState,
)
from flowhash.table.segments.segment_draft import SegmentDraft
from flowhash.table.storage.manifest import (
    DELETED_NAME,
    NAME,
    SEGMENT_NAME,
    STRAY_NAME,
    Manifest,
    dump,
    read_manifest,
)
from flowhash.table.storage.segment_file import map_segment, write_segment
from flowhash.table.table_settings import TableSettings

# A NumPy file of bits as FlowHash writes it: the magic and the header, of format 1.0.
BITS = re.compile(
    rb"\x93NUMPY\x01\x00.."
    rb"\{'descr': '\|u1', 'fortran_order': False, 'shape': \((\d{1,19}),\), \} *\n",
    re.DOTALL,
)
LARGEST_HEADER = 1 << 16  # of such a file
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)


class TableFolder:
    """Reads and, if it is ``writable``, changes the files of a table.

    Attributes:
        path: the folder.
        manifest: the state on disk as this object knows it.
        writer: the process that took the writer's lock; None if it was opened to be searched only.
    """

    def __init__(self, path: Path, writable: bool, lock: IO[bytes] | None = None) -> None:
        self.path = path
        self.writer = os.getpid() if writable else None
        if lock is None:
            read_manifest(path)  # before a lock file is left in a folder that is no table
        self._lock = take_lock(path) if writable and lock is None else lock
        self._new: set[str] = set()
        self._attempted = 0
        try:
            self.manifest = read_manifest(path)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, settings: TableSettings, *, make: bool = True) -> TableFolder:
        """Put an empty table into a folder, which is made unless ``make`` is False.

        Then it must be there: whoever has taken it away does not find it again.
        """
        with naming(path):
            if path.exists() and not path.is_dir():
                raise StorageError(f"{path} is a file; give a new or empty folder")
            if make:
                path.mkdir(parents=True, exist_ok=True)
            _refuse_content(path)  # before a lock file is left in a folder of something else
            lock = take_lock(path)
            try:
                _refuse_content(path)
                remove_strays(path / NAME)
                flush_folder(path.parent)
                try:
                    _write_manifest(path, Manifest(settings, identity=secrets.token_hex(16)))
                except BaseException:
                    (path / NAME).unlink(missing_ok=True)  # so that it can be tried again
                    raise
            except BaseException:
                lock.close()
                raise
        return cls(path, writable=True, lock=lock)

    @property
    def writable(self) -> bool:
        """Whether this process holds the writer's lock; one that was forked from it does not."""
        return self.writer == os.getpid()

    def close(self) -> None:
        """Give the lock back; in a process that was forked, only the copy of its descriptor.

        A lock belongs to all copies of a descriptor. It lasts until the last one is closed, or
        until somebody says that it is over, which is up to the process that took it.
        """
        if self._lock is not None:
            if self.writable:
                release_lock(self._lock)
            self._lock.close()
            self._lock = None

    def load(self, known: TableState | None = None) -> TableState:
        """The state that the manifest describes.

        Segments of a state that is ``known`` already are used again. A writer may replace files
        between the reading of the manifest and of what it names; then the manifest has changed, and
        the new one is read.
        """
        while True:
            try:
                parts = tuple(self.load_part(entry, known) for entry in self.manifest.segments)
                return TableState(parts, self.manifest.next_id, self.manifest.settings.encoder)
            except DamagedFileError:  # noqa: PERF203
                newer = read_manifest(self.path)
                if newer.generation == self.manifest.generation:
                    raise
                self._refuse_another(newer)
                self.manifest = newer

    def _refuse_another(self, newer: Manifest) -> None:
        """A table that was made anew in the same folder is not a newer state of this one.

        One whose items have new codes is: only the encoder is another then.
        """
        known = replace(self.manifest.settings, encoder=newer.settings.encoder)
        if newer.identity != self.manifest.identity or newer.settings != known:
            raise StorageError(
                f"{self.path} is another table by now; open it again with HashTable.open"
            )

    def refresh(self, known: TableState) -> TableState | None:
        """The state of a newer manifest, or None if there is none."""
        newer = read_manifest(self.path)
        self._refuse_another(newer)
        if newer.generation == self.manifest.generation:
            return None
        before, self.manifest = self.manifest, newer
        try:
            return self.load(known)
        except BaseException:
            self.manifest = before  # so that it can be tried again
            raise

    def write_segment(self, plan: SegmentDraft) -> LiveSegment:
        """Write a segment's file; it belongs to the table only after ``commit``."""
        name = f"segment-{self._take_number():010d}.safetensors"
        with self._new_file(name) as file:
            entry = write_segment(file, name, plan)
        return self.load_part(entry)

    def take_segment(self, part: LiveSegment) -> LiveSegment:
        """Another table's segment under a name of its own here; all of its rows alive.

        Its file is linked, or copied where the file system has no links; the original stays.
        """
        assert part.file is not None
        name = f"segment-{self._take_number():010d}.safetensors"
        self._new.add(name)
        path = self.path / name
        with naming(path):
            try:
                os.link(part.segment.file, path)
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                source = Path(part.segment.file)
                with source.open("rb") as original, self._new_file(name) as file:
                    shutil.copyfileobj(original, file, 1 << 24)
        return self.load_part(replace(part.file, file=name, deleted=None))

    def write_deleted(self, part: LiveSegment) -> LiveSegment:
        """Write which rows of a part are deleted; it counts only after ``commit``."""
        assert part.file is not None
        name = f"deleted-{self._take_number():010d}.npy"
        buffer = io.BytesIO()
        np.save(buffer, np.packbits(part.alive == 0), allow_pickle=False)
        data = buffer.getvalue()
        with self._new_file(name) as file:
            file.write(data)
        deleted = DeletedFile(name, part.segment.rows - part.live, len(data), zlib.crc32(data))
        return LiveSegment(part.segment, part.alive, part.live, replace(part.file, deleted=deleted))

    def commit(self, state: TableState, notes: dict[str, Any] | None = None) -> None:
        """Make a state the table's, durably; then remove what it does not need any more.

        Args:
            state: what the table is from now on, its encoder too.
            notes: all of them, in the same step; None leaves them as they are.
        """
        files = tuple(part.file for part in state.parts if part.file is not None)
        # A generation that was tried may be on disk although nobody could see that, and readers may
        # know it: it never comes again.
        self._attempted = max(self._attempted, self.manifest.generation) + 1
        changed = replace(
            self.manifest,
            settings=replace(self.manifest.settings, encoder=state.encoder),
            generation=self._attempted,
            next_id=state.next_id,
            segments=files,
            notes=self.manifest.notes if notes is None else notes,
        )
        missing = [name for name in changed.files() if not (self.path / name).exists()]
        if missing:
            raise StorageError(f"{self.path / missing[0]} was removed; the table is not changed")
        try:
            with naming(self.path / NAME):
                flush_folder(self.path)
                _write_manifest(self.path, changed)
        except BaseException:
            self._take_back(changed)
            raise
        before, self.manifest = self.manifest, changed
        self._new.clear()
        self.discard(before.files() - changed.files())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write files and commit them; where that does not come to its end, remove them.

        What is on disk decides: if the change got there after all, it is what the table is now.
        """
        try:
            yield
        except BaseException:
            current = read_manifest(self.path)  # if that fails, everything is left as it is
            last = max(current.next_file, self.manifest.next_file)
            self.manifest = replace(current, next_file=last)
            self.discard(self._new - current.files())
            self._new.clear()
            raise

    def discard(self, names: set[str]) -> None:
        """Remove files; one that cannot be removed now is a stray for the next writer."""
        for name in names:
            with contextlib.suppress(OSError):
                (self.path / name).unlink()

    def _take_back(self, changed: Manifest) -> None:
        """Write the old state once more if the new manifest is there but could not be flushed.

        It gets a generation of its own, for readers that have seen the new one. No file is removed
        before this has succeeded.
        """
        if read_manifest(self.path).generation != changed.generation:
            return
        self._attempted = changed.generation + 1
        try:
            _write_manifest(self.path, replace(self.manifest, generation=self._attempted))
        except OSError as error:
            raise StorageError(
                error.errno,
                f"{self.path / NAME}: {error.strerror or error}; the change is in the "
                "table but may not survive a power failure. Mend the disk and open the table again",
            ) from error

    def _take_number(self) -> int:
        number = self.manifest.next_file
        self.manifest = replace(self.manifest, next_file=number + 1)
        return number

    @contextlib.contextmanager
    def _new_file(self, name: str) -> Iterator[IO[bytes]]:
        """A file that is complete and on disk when the block ends."""
        path = self.path / name
        self._new.add(name)
        with naming(path), path.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def load_part(self, entry: SegmentFile, known: TableState | None = None) -> LiveSegment:
        """Map a segment's file, unless it is known, and read which of its rows are deleted."""
        path = self.path / entry.file
        segment = None
        for part in known.parts if known else ():
            if part.file == entry:
                return part
            if part.file is not None and replace(part.file, deleted=entry.deleted) == entry:
                segment = part.segment
        if segment is None:
            with naming(path):
                segment = map_segment(path, entry, self.manifest.settings)
        alive = NO_ROWS if entry.deleted is None else self._load_alive(entry, entry.deleted)
        gone = 0 if entry.deleted is None else entry.deleted.rows
        return LiveSegment(segment, alive, entry.rows - gone, entry)

    def _load_alive(self, entry: SegmentFile, deleted: DeletedFile) -> NDArray[np.uint8]:
        path = self.path / deleted.file
        count = -(-entry.rows // 8)
        with naming(path):
            try:
                data = read_regular_file(path, min(deleted.size, count + LARGEST_HEADER))
            except FileNotFoundError as error:
                raise DamagedFileError(
                    f"{path} is missing; the manifest names it. Restore it from a copy"
                ) from error
        if len(data) != deleted.size or zlib.crc32(data) != deleted.crc32:
            raise DamagedFileError(f"{path} does not match its checksum; restore it from a copy")
        # Not read by NumPy, which would take every other kind of file and whatever size it names.
        header = BITS.match(data)
        if header is None or int(header[1]) != count or len(data) != header.end() + count:
            raise DamagedFileError(
                f"{path} does not say which of {entry.rows} rows are deleted; restore it from a "
                "copy"
            )
        gone = np.unpackbits(np.frombuffer(data, np.uint8, count, header.end()), count=entry.rows)
        if int(gone.sum()) != deleted.rows:
            raise DamagedFileError(
                f"{path} marks {int(gone.sum())} rows as deleted, not {deleted.rows}; restore it "
                "from a copy"
            )
        return 1 - gone

    def remove_strays(self) -> None:
        """Remove files of ours that the manifest does not name: a writer died before it could.

        Only after everything that it names was found.
        """
        known = self.manifest.files()
        ours = (SEGMENT_NAME, DELETED_NAME, STRAY_NAME)
        names = {entry.name for entry in self.path.iterdir()}
        strays = {name for name in names if any(kind.fullmatch(name) for kind in ours)}
        self.discard(strays - known)


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest in one step, durably."""
    with atomic_file(folder / NAME) as file:
        file.write(dump(manifest))


def _refuse_content(path: Path) -> None:
    """A new table needs a folder of its own; what one has left that was not finished is ours."""
    names = [entry.name for entry in path.iterdir()]
    if any(name != LOCK and not STRAY_NAME.fullmatch(name) for name in names):
        raise StorageError(f"{path} is not empty;", advice=Advice.NEW_FOLDER)
