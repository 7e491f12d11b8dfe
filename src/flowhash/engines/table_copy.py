"""``flowhash copy``: a table into an engine, in streams, gone on with where it stopped, checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flowhash.engines.engine_registry import room_of
from flowhash.progress_bars import shown
from flowhash.table import HashTable


class Loading(Protocol):
    """A copy of a table into an engine, which goes on where it stopped.

    Attributes:
        total: items of the table.
        done: items that were there when this attempt began.
    """

    total: int
    done: int

    def parts(self) -> Iterator[Sequence[Any] | range]:
        """Copy what is left; each part has as many elements as items are stored for good by it."""
        ...

    def checks(self) -> Iterator[Sequence[Any] | range]:
        """Compare counts and checksums of everything, part by part.

        Raises:
            StorageError: what is stored is not what was sent.
        """
        ...

    def finish(self, notes: Mapping[str, Any]) -> None:
        """Open the copy, with these notes, for searches; before, every use of it is refused."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


@dataclass(frozen=True)
class Copied:
    """What a copy did.

    Attributes:
        items: in the table, and now at the address.
        before: of them, items that an earlier attempt had copied.
        seconds: of copying.
        check_seconds: of comparing counts and checksums.
    """

    items: int
    before: int
    seconds: float
    check_seconds: float


def copy(
    table: HashTable,
    address: str,
    *,
    distribute: bool = False,
    restart: bool = False,
    notes: Mapping[str, Any] | None = None,
    show: bool = False,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Copied:
    """Copy a table to an address where nothing is yet, or an unfinished copy of the same table.

    Args:
        table: open; it may be large: it is streamed.
        address: of the copy.
        distribute: on PostgreSQL with Citus, spread it over the nodes by bucket.
        restart: remove an unfinished copy and begin anew.
        notes: what the copy gets as :meth:`RemoteEngine.notes`.
        show: progress, on the error stream.
        watch: is told, again and again, how many items are at the address for good, and how many
            there are.

    Raises:
        InputError: the address holds something else.
        StorageError: the server failed; the same call goes on. Or what arrived is not what was
            sent.
    """
    began = time.monotonic()
    loading: Loading = room_of(address).loading(
        table, address, distribute=distribute, restart=restart
    )
    try:
        done = loading.done
        watch(done, loading.total)
        for part in shown(loading.parts(), "copy", loading.total - loading.done, show):
            done += len(part)
            watch(done, loading.total)
        copied = time.monotonic()
        for _ in shown(loading.checks(), "check", loading.total, show):
            pass
        loading.finish(notes or {})
    finally:
        loading.close()
    ended = time.monotonic()
    return Copied(loading.total, loading.done, copied - began, ended - copied)
