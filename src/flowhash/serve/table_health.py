"""What a server has found damaged in its table, for those who ask about its health."""

from __future__ import annotations

import threading
import time
import weakref

from flowhash.engines import BrowsedEngine
from flowhash.errors import DamagedFileError, StorageError
from flowhash.serve.errors import LOG
from flowhash.serve.schemas.responses import StoredItem, as_json
from flowhash.table import HashTable, Segment, TableState, state_of

KNOWN = 1000  # of each kind that are remembered; more need not be told apart
AGAIN = 5.0  # seconds after which what is known is looked at again, although nothing was changed


class TableHealth:
    """Remembers damage from when a request met it until the table has it no more.

    Nothing is searched for: whoever meets damage notes it. Used by all threads of a server.
    """

    def __init__(self, table: BrowsedEngine) -> None:
        self._table = table
        # What an error says, with the segment's file that it names and the block in it, if any.
        self._places: dict[str, tuple[str, int | None]] = {}
        self._items: set[int | str] = set()
        self._lock = threading.Lock()
        self._seen: weakref.ref[TableState] | None = None
        self._looked = time.monotonic()

    def note(self, error: DamagedFileError) -> bool:
        """Remember a place that cannot be read, so that searches which need it are refused.

        Returns:
            Whether it was not known before.
        """
        text = str(error)
        named = [file for file in self._segments() if file and text.startswith(file)]
        with self._lock:
            if text in self._places or len(self._places) >= KNOWN:
                return False
            self._places[text] = (named[0] if named else "", error.block)
            return True

    def note_item(self, item: int | str, error: Exception) -> None:
        """Remember an item that is found, but whose payload cannot be shown."""
        with self._lock:
            if item in self._items or len(self._items) >= KNOWN:
                return
            self._items.add(item)
        LOG.error("the payload of item %r cannot be read, hits come without it: %s", item, error)

    def met(self, item: int | str | None, error: DamagedFileError) -> None:
        """Remember what was left out of a sample: an item's payload, or, with None, a place."""
        if item is not None:
            self.note_item(item, error)
        elif self.note(error):
            LOG.error("the table is damaged, the rest of it is served: %s", error)

    def counts(self) -> tuple[int, int]:
        """How many damaged places, and how many items without payload, are known."""
        return len(self._places), len(self._items)

    @property
    def stale(self) -> bool:
        """Whether to look again: damage is known, and something may have mended it."""
        state, seen = self._state(), self._seen
        # Other engines mend theirs themselves, and cannot be asked so cheaply.
        if state is None or not (self._places or self._items):
            return False
        changed = seen is None or seen() is not state
        return changed or time.monotonic() - self._looked >= AGAIN

    def look_again(self) -> None:
        """Forget what the table has no more, or what was restored in its file.

        Only what is known is read, a block for each place and a payload for each item.
        """
        state = self._state()
        if state is None:
            return
        self._seen, self._looked = weakref.ref(state), time.monotonic()
        with self._lock:
            places, items = dict(self._places), list(self._items)
        segments = self._segments()
        mended = [
            text
            for text, (file, block) in places.items()
            if file and _mended(segments.get(file), block)
        ]
        sound = [item for item in items if self._sound(item)]
        with self._lock:
            for text in mended:
                self._places.pop(text, None)
            self._items.difference_update(sound)

    def _state(self) -> TableState | None:
        """The state of a table of ours, unless it was closed."""
        try:
            return state_of(self._table) if isinstance(self._table, HashTable) else None
        except StorageError:
            return None

    def _segments(self) -> dict[str, Segment]:
        """The segments of this moment by their files."""
        state = self._state()
        return {} if state is None else {part.segment.file: part.segment for part in state.parts}

    def _sound(self, item: int | str) -> bool:
        """Whether an item can be read and shown now, or is gone."""
        try:
            as_json(StoredItem.read(self._table[item]))
        except KeyError:
            return True
        except (StorageError, RecursionError, ValueError):
            return False
        return True


def _mended(segment: Segment | None, block: int | None) -> bool:
    return segment is None or (block is not None and segment.sound_block(block))
