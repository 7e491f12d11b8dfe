"""What a server has found damaged in its table, for those who ask about its health."""

from __future__ import annotations

import threading
import weakref

from flowhash.engines import BrowsedEngine
from flowhash.errors import DamagedFileError, StorageError
from flowhash.serve.problems import LOG
from flowhash.table import HashTable
from flowhash.table.browse import state_of
from flowhash.table.state import State

KNOWN = 1000  # of each kind that are remembered; more need not be told apart


class Damage:
    """Remembers damage from when a request met it until the table has it no more.

    Nothing is searched for: whoever meets damage notes it. Used by all threads of a server.

    Args:
        table: that is served.
    """

    def __init__(self, table: BrowsedEngine) -> None:
        self._table = table
        self._places: dict[str, str] = {}  # what an error says, and the segment's file it names
        self._items: dict[int | str, None] = {}
        self._lock = threading.Lock()
        self._seen: weakref.ref[State] | None = None

    def note(self, error: DamagedFileError) -> bool:
        """Remember a place that cannot be read, so that searches which need it are refused.

        Returns:
            Whether it was not known before.
        """
        text = str(error)
        named = [file for file in self._files() if file and text.startswith(file)]
        with self._lock:
            if text in self._places or len(self._places) >= KNOWN:
                return False
            self._places[text] = named[0] if named else ""
            return True

    def note_item(self, item: int | str, error: Exception) -> None:
        """Remember an item that is found, but whose payload cannot be shown."""
        with self._lock:
            if item in self._items or len(self._items) >= KNOWN:
                return
            self._items[item] = None
        LOG.error("the payload of item %r cannot be read, hits come without it: %s", item, error)

    def met(self, item: int | str | None, error: DamagedFileError) -> None:
        """Remember what was left out of a sample: an item's payload, or, with None, a place."""
        if item is not None:
            self.note_item(item, error)
        elif self.note(error):
            LOG.error("the table is damaged, the rest of it is served: %s", error)

    def counts(self) -> tuple[int, int]:
        """How many damaged places, and how many items without payload, the table still has.

        Only what is known is looked at again, and only after the table has changed.
        """
        state = self._state()
        with self._lock:
            places, items = dict(self._places), list(self._items)
            seen, self._seen = self._seen, None if state is None else weakref.ref(state)
        if state is not None and (places or items) and (seen is None or seen() is not state):
            files = self._files()
            gone = [text for text, file in places.items() if file and file not in files]
            sound = [item for item in items if self._sound(item)]
            with self._lock:
                for text in gone:
                    self._places.pop(text, None)
                for item in sound:
                    self._items.pop(item, None)
        return len(self._places), len(self._items)

    def _state(self) -> State | None:
        """The state of a table of ours, unless it was closed."""
        try:
            return state_of(self._table) if isinstance(self._table, HashTable) else None
        except StorageError:
            return None

    def _files(self) -> set[str]:
        state = self._state()
        return set() if state is None else {part.segment.file for part in state.parts}

    def _sound(self, item: int | str) -> bool:
        """Whether an item can be read now, or is gone."""
        try:
            self._table[item]
        except KeyError:
            return True
        except StorageError:
            return False
        return True
