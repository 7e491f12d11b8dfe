"""Items into a table: batch by batch, gone on with where it was interrupted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flowhash.cli import notes
from flowhash.cli.doubt import Doubt, Ranges, joined
from flowhash.cli.output import Output, count
from flowhash.data import Collection
from flowhash.engines import RemoteEngine, engine_exists, open_any
from flowhash.errors import DamagedFileError, InputError
from flowhash.progress_bars import shown
from flowhash.table import HashTable

if TYPE_CHECKING:
    from flowhash.encoder import Encoder

SETTINGS = notes.SETTINGS
AT_ONCE = 500  # items that are stored at once, of a batch that is noted at once
USUAL_BATCH = 500  # of journals that do not say how many items were added at a time
ID_KINDS = {"numbers": "int64", "names": "string"}


@dataclass(frozen=True)
class TableChoices:
    """What the user chose for the table; None is for the table that is there, or the usual."""

    ids: str | None
    pictures: bool
    metric: str | None
    dtype: str | None
    distribute: bool = False


def open_table(
    out: str | Path, encoder: Encoder, collection: Collection, choices: TableChoices
) -> HashTable | RemoteEngine:
    """The table that is there, which must fit, or a new one.

    Raises:
        InputError: the table that is there is of another encoder, or has other settings.
    """
    if choices.ids not in (None, *ID_KINDS):
        raise InputError(f"--ids is {choices.ids!r}; expected {' or '.join(ID_KINDS)}")
    kind = None if choices.ids is None else ID_KINDS[choices.ids]
    wanted = {"metric": choices.metric, "dtype": choices.dtype, "id_kind": kind}
    there = (out / "manifest.json").exists() if isinstance(out, Path) else engine_exists(out)
    if not there:
        return encoder.create_table(
            out,
            metric=choices.metric or "euclidean",
            dtype=choices.dtype or "float32",
            ids=kind or ("string" if collection.files else "int64"),
            **({"distribute": True} if choices.distribute else {}),
        )
    table = open_any(out, "r+", encoder=encoder.fingerprint)
    if choices.distribute and not getattr(table, "distributed", False):
        table.close()
        raise InputError(
            f"{notes.shown(out)} is there already and is not distributed; leave --distribute out, "
            "or give another --to"
        )
    for name, value in wanted.items():
        has = getattr(table, name)
        if value is not None and value != has:
            table.close()
            place = "--out" if isinstance(out, Path) else "--to"
            raise InputError(
                f"{notes.shown(out)} is there already and has {OPTION[name]}={_option(has)}, not "
                f"{_option(value)}; leave --{OPTION[name]} out, or give another {place}"
            )
    return table


OPTION = {"metric": "metric", "dtype": "dtype", "id_kind": "ids"}


def _option(value: str) -> str:
    """A setting as the option has it."""
    return {kind: name for name, kind in ID_KINDS.items()}.get(value, value)


class Indexing:
    """One run over a collection, with a journal so that it goes on where it stopped.

    Args:
        table: in a folder, or an engine; what is in it stays.
        encoder: that made it.
        collection: what is added.
        source: words that tell this collection from others: where it is, which part of it.
        pictures: keep a small picture of each item.
        device: to encode on what is looked for after an interrupt.
        again: forget what was done, all items are added, under new numbers.

    Raises:
        DamagedFileError: without ``again``, the journal does not say any more what was done.
    """

    def __init__(
        self, table: HashTable | RemoteEngine, encoder: Encoder, collection: Collection,
        source: Sequence[str], pictures: bool, device: str = "auto", again: bool = False,
    ) -> None:  # fmt: skip
        self.table, self.encoder, self.collection = table, encoder, collection
        self.pictures, self.device = pictures, device
        self.names = table.id_kind == "string"
        # A folder has one writer. Others may add to an engine at any moment, and would be replaced
        # by numbers that were chosen here: the engine counts.
        self.shared = not isinstance(table, HashTable)
        self.notes = notes.Notes(table)
        # One for each collection: others may be indexed between two attempts at this one.
        self.journal = f"{notes.JOURNAL}{_digest(collection, source)}"
        self.done, self.first, self.finished = 0, table.next_id, False
        self.batch, self.ids = USUAL_BATCH, Ranges()
        try:
            self._go_on(self.notes.journal(self.journal))
        except DamagedFileError:
            if not again:
                raise
        if again:
            self.done, self.first, self.finished = 0, table.next_id, False
        self.stored = self.done  # more than the journal knows in the middle of a batch

    def run(self, batch: int, device: str, output: Output) -> int:
        """Add what is left; how many items that was."""
        start, total, self.batch = self.done, len(self.collection), batch
        self.stored = start
        if start:
            output.say(f"going on after {start:,} of {count(total, 'item')}")
        self._note()
        parts = self._parts(start, batch, device)
        for part in shown(parts, "index", total - start, not output.quiet):
            self.done += len(part)
            self._keep(part)
            self._note()
        # Kept: the same rows, added again, would be in the table twice, under other numbers.
        self.finished = True
        self._note()
        return total - start

    def _go_on(self, record: dict[str, Any] | None) -> None:
        """Take up the journal, and find what was stored after its last line."""
        if record is None:
            return
        try:
            done, first = int(record["done"]), int(record["first"])
            finished = bool(record.get("finished"))
            batch = int(record.get("batch", USUAL_BATCH))
            ids = [[int(low), int(high)] for low, high in record.get("ids", [])]
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise self.notes.damaged(self.journal, f"{type(error).__name__}: {error}") from error
        if not 0 <= done <= len(self.collection) or batch < 1:
            reason = f"it says that {done} of {len(self.collection)} items are done"
            raise self.notes.damaged(self.journal, reason)
        self.done, self.first, self.finished = done, first, finished
        self.batch, self.ids = batch, ids
        if self.names:  # an item that is added twice replaces itself
            self.done = 0 if self.finished else done
            self.finished = False
        elif not self.finished:
            doubt = Doubt(self.table, self.encoder, self.collection, batch, self.device)
            found = doubt.stored(done, first + done, self._of_others())
            self.done += len(found)
            self._keep(np.array(found, np.int64))
            # Somebody else may have added meanwhile.
            self.first = max(first, self.table.next_id - self.done)

    def _of_others(self) -> Iterator[Any]:
        """The ids that other collections' journals know as theirs, as ranges."""
        for name, record in self.notes.journals().items():
            known = record.get("ids")
            for one in known if isinstance(known, list) else []:
                whole = isinstance(one, list) and all(isinstance(end, int) for end in one)
                if name != self.journal and whole and len(one) == 2:
                    yield one

    def _keep(self, ids: Any) -> None:
        """Note which items are this collection's, for those whose journals are in doubt."""
        if not self.names:
            self.ids = joined(self.ids, ids)

    def _note(self) -> None:
        if self.shared:  # numbers from here on may be of the next batch
            self.first = self.table.next_id - self.done
        record = {
            "done": self.done, "first": self.first, "finished": self.finished,
            "batch": self.batch, "ids": self.ids,
        }  # fmt: skip
        self.notes.write_journal(self.journal, record)

    def _parts(self, start: int, batch: int, device: str) -> Iterator[Any]:
        for begin in range(start, len(self.collection), batch):
            end = min(begin + batch, len(self.collection))
            added = []
            for first in range(begin, end, AT_ONCE):
                places = np.arange(first, min(first + AT_ONCE, end))
                added.append(self._add(places, device))
                self.stored += len(places)
            yield np.concatenate(added)

    def _add(self, places: Any, device: str) -> Any:
        """Store some items; their ids."""
        items = self.collection.take(places)
        return self.encoder.add(
            self.table,
            items,
            ids=self._ids(places),
            payloads=self.collection.payloads(int(places[0]), items, self.pictures),
            batch_size=AT_ONCE,
            device=device,
        )

    def _ids(self, places: Any) -> Any:
        if self.names:
            return [self.collection.names[place] for place in places.tolist()]
        return None if self.shared else self.first + places


def _digest(collection: Collection, source: Sequence[str]) -> str:
    """What tells collections apart: their source, and the names of their files or their number."""
    digest = hashlib.sha256(json.dumps([list(source), len(collection)]).encode())
    if collection.files:
        for name in collection.names:
            digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    elif Path(collection.source).is_file():  # written anew, it is another one
        status = Path(collection.source).stat()
        digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]
