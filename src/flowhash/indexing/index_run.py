"""Items into a table: batch by batch, gone on with where it was interrupted, each stored once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.data import Collection
from flowhash.engines import RemoteEngine, engine_exists, hidden, open_any
from flowhash.errors import Argument, ChangedNotesError, DamagedFileError, InputError, StorageError
from flowhash.indexing.table_notes import SOURCE, TableNotes, source_note
from flowhash.progress_bars import shown
from flowhash.table import HashTable

if TYPE_CHECKING:
    from flowhash.encoder import Encoded, Encoder

AT_ONCE = 500  # items that are encoded and stored at once, at the most
ROUTED = 2  # buckets that an item without a label may be in
ID_KINDS = {"numbers": "int64", "names": "string"}


@dataclass(frozen=True)
class TableChoices:
    """What the user chose for a table; None is what the table has that is there, or the usual.

    Attributes:
        ids: "numbers" or "names".
        pictures: keep a small picture of each item.
        metric: of a new table.
        dtype: of a new table.
        distribute: spread it over the nodes of Citus.
        buckets: of a new table; where an encoder makes the items, it knows.
        active: of a new table, in how many buckets an item may be at the most; as many as the
            encoder gives it, and two where it was fitted to vectors without labels.
    """

    ids: str | None = None
    pictures: bool = True
    metric: str | None = None
    dtype: str | None = None
    distribute: bool = False
    buckets: int | None = None
    active: int | None = None


def open_table(
    out: str | Path, encoder: Encoder, collection: Collection, choices: TableChoices
) -> HashTable | RemoteEngine:
    """The table that is there, which must fit, or a new one.

    Raises:
        InputError: the table that is there is of another encoder, or has other settings.
    """
    check_id_kind(choices.ids)
    kind = None if choices.ids is None else ID_KINDS[choices.ids]
    wanted: dict[str, Any] = {
        "metric": choices.metric, "dtype": choices.dtype, "id_kind": kind, "active": choices.active,
    }  # fmt: skip
    if choices.active is not None and not encoder.active <= choices.active <= encoder.buckets:
        raise InputError(
            f"is {choices.active}; expected {encoder.active} to {encoder.buckets}, from the "
            "buckets that the encoder gives an item to all that there are",
            subject="active",
        )
    there = (out / "manifest.json").exists() if isinstance(out, Path) else engine_exists(out)
    if not there:
        active = choices.active or _usual_active(encoder)
        try:
            return encoder.create_table(
                out,
                metric=choices.metric or "euclidean",
                dtype=choices.dtype or "float32",
                ids=kind or ("string" if collection.files else "int64"),
                **({"active": active} if active != encoder.active else {}),
                **({"distribute": True} if choices.distribute else {}),
            )
        except StorageError:
            if isinstance(out, Path) or not engine_exists(out):
                raise
            # Somebody else has made it this moment.
    place, other = (str(out), "folder") if isinstance(out, Path) else (hidden(out), "address")
    table = open_any(out, "r+", encoder=encoder.fingerprint)
    if choices.distribute and not getattr(table, "distributed", False):
        table.close()
        raise InputError(
            f"{place} is there already and is not distributed; give another address, or leave out",
            Argument("distribute"),
        )
    for name, value in wanted.items():
        has = getattr(table, name)
        if value is not None and value != has:
            table.close()
            choice = "ids" if name == "id_kind" else name
            chosen = {kind: name for name, kind in ID_KINDS.items()}
            raise InputError(
                f"{place} is there already and has {choice}={chosen.get(has, has)}, not "
                f"{chosen.get(value, value)}; give another {other}, or leave out",
                Argument(choice),
            )
    return table


def _usual_active(encoder: Encoder) -> int:
    """Room for second buckets where searches will be asked for a recall."""
    from flowhash.learn import is_router

    return max(encoder.active, min(ROUTED, encoder.buckets) if is_router(encoder) else 1)


def check_id_kind(ids: str | None) -> None:
    """Refuse ids that are of no kind."""
    if ids not in (None, *ID_KINDS):
        raise InputError(f"is {ids!r}; expected {' or '.join(ID_KINDS)}", subject="ids")


def check_items(encoder: Encoder, items: Collection, source: str, device: str) -> None:
    """Refuse items that the encoder does not take, before there is a place for them.

    The first is encoded; messages call them ``source``.
    """
    if items.items.kind != encoder.preprocessing.kind:
        raise InputError(
            f"{source} holds {items.items.kind}, but the encoder takes "
            f"{encoder.preprocessing.kind}; give items of the kind that it was trained on"
        )
    if not len(items):
        raise InputError(f"{source} has no items; give at least one")
    try:
        encoder.encode(items.take(np.arange(1)), device=device)
    except InputError as error:
        raise InputError(f"{source} does not fit the encoder: {error}") from error


class IndexRun:
    """One run over a collection, which goes on where an earlier one stopped.

    The table's note of how many items are done is committed with the items, so that each is stored
    once, wherever a run ends, and however many run at once: a batch is refused whose beginning is
    not where the note says by now.

    Args:
        table: in a folder, or an engine; what is in it stays.
        encoder: that made it.
        collection: what is added.
        source: words that tell this collection from others: where it is, which part of it.
        pictures: keep a small picture of each item.
        again: forget what was done, all items are added, under new numbers.

    Attributes:
        done: items of the collection that are stored, those of other runs too.
        added: items that this run has stored.

    Raises:
        DamagedFileError: without ``again``, the note does not say any more what was done.
    """

    def __init__(
        self, table: HashTable | RemoteEngine, encoder: Encoder, collection: Collection,
        source: Sequence[str], pictures: bool, again: bool = False,
    ) -> None:  # fmt: skip
        from flowhash.encoder import check_table

        check_table(encoder, table)
        self.table, self.encoder, self.collection = table, encoder, collection
        self.pictures = pictures
        self.names = table.id_kind == "string"
        self.notes = TableNotes(table)
        # One for each collection: others may be indexed between two attempts at this one.
        self.note = f"{SOURCE}{_digest(collection, source)}"
        self.done = self.added = 0
        self._known: Any = None  # the note as it stood in the table when it was read or written
        try:
            self._read_note()
        except DamagedFileError:
            if not again:
                raise
        if again or (self.names and self.finished):  # a name that is added twice replaces itself
            self.done = 0

    @property
    def finished(self) -> bool:
        """Whether all items are stored."""
        return self.done == len(self.collection)

    def run(self, batch: int, device: str, show: bool = False) -> int:
        """Add what is left.

        Args:
            batch: items that are encoded and stored at a time, up to 500.
            device: to encode on.
            show: progress, on the error stream.

        Returns:
            How many items this run has added; others may have added the rest meanwhile.
        """
        left = len(self.collection) - self.done
        for _ in shown(self._parts(min(batch, AT_ONCE), device), "index", left, show):
            pass
        return self.added

    def _parts(self, size: int, device: str) -> Iterator[range]:
        while not self.finished:
            start = self.done
            try:
                self._add(np.arange(start, min(start + size, len(self.collection))), device)
            except ChangedNotesError:  # another run has stored these items, and perhaps more
                self._read_note()
            yield range(start, self.done)

    def _add(self, places: NDArray[np.int64], device: str) -> None:
        """Store some items, and how far that is, in one step."""
        items = self.collection.take(places)
        made = self.encoder.encode(items, AT_ONCE, device)
        noted = source_note(int(places[-1]) + 1)
        self.table.add(
            self._codes(made),
            made.embeddings,
            # Without names the table counts: others may add to an engine at any moment.
            [self.collection.names[place] for place in places.tolist()] if self.names else None,
            self.collection.payloads(int(places[0]), items, self.pictures),
            encoder=made.fingerprint,
            notes={self.note: noted},
            expected_notes={self.note: self._known},
        )
        self._known = noted
        self.done = noted["done"]
        self.added += len(places)
        self.notes.remove_old_file(self.note)

    def _codes(self, made: Encoded) -> NDArray[np.int32]:
        """The buckets of items: what the encoder says, and second ones where the table has some."""
        table, codes = self.table, made.codes
        if table.active == codes.shape[1]:
            return codes
        from flowhash.learn import SECOND_NOTE, SecondRule, second_codes

        # An engine would be asked for thousands of embeddings; there they come with `copy`.
        noted = table.notes().get(SECOND_NOTE) if isinstance(table, HashTable) else None
        rule = SecondRule.from_json(noted)
        if rule is not None and isinstance(table, HashTable) and self.encoder.takes_embeddings:
            codes = second_codes(table, made, rule, self._activations_of)
        return codes

    def _activations_of(self, ids: NDArray[Any]) -> NDArray[np.float32]:
        """Those of items in the table."""
        assert isinstance(self.table, HashTable)
        return self.encoder.encode_stored(self.table.embeddings_of(ids)).activations

    def _read_note(self) -> None:
        """How far the collection is by now."""
        self._known = self.table.notes().get(self.note)
        done = self.notes.done(self.note)
        if done > len(self.collection):
            raise self.notes.damaged(
                self.note, f"it says that {done} of {len(self.collection)} items are done"
            )
        self.done = done


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
