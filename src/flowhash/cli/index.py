"""``flowhash index``: items into a table, batch by batch, each safe on disk before the next."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from flowhash.bars import shown
from flowhash.cli.config import save_settings
from flowhash.cli.opening import encoder_folder, in_our_words, load_encoder, located
from flowhash.cli.reply import Reply, count
from flowhash.data import Collection, open_collection
from flowhash.errors import InputError
from flowhash.table import HashTable

if TYPE_CHECKING:
    from flowhash.encoder import Encoder

SETTINGS = "index.toml"  # beside the table's own files; it names the encoder
JOURNAL = "index.json"  # there while an indexing is not finished
ID_KINDS = {"numbers": "int64", "names": "string"}


@dataclass(frozen=True)
class TableChoices:
    """What the user chose for the table; None is for the table that is there, or the usual."""

    ids: str | None
    pictures: bool
    metric: str | None
    dtype: str | None


def index(
    context: typer.Context,
    run: Path,
    source: str,
    split: str,
    opening: dict[str, Any],
    out: Path,
    choices: TableChoices,
    batch: int,
    device: str,
    reply: Reply,
) -> None:
    """Open everything, add what is not there yet, say what comes next."""
    if batch < 1:
        raise InputError(f"--batch is {batch}; expected one or more items")
    encoder = load_encoder(run)
    collection = _opened(source, split, opening, encoder)
    began = time.monotonic()
    with _table(out, encoder, collection, choices) as table:
        before = len(table)
        save_settings(
            context, out / SETTINGS, encoder=encoder_folder(run), items=located(source),
            metric=table.metric, dtype=table.dtype,
        )  # fmt: skip
        work = _Indexing(table, encoder, collection, f"{located(source)} {split}", choices.pictures)
        try:
            added = work.run(batch, device, reply)
        except KeyboardInterrupt:
            print(
                f"flowhash: stopped; {work.done:,} of {count(len(collection), 'item')} are in "
                f"{out}, the same command goes on",
                file=sys.stderr,
            )
            sys.exit(130)
        replaced = before + added - len(table)
        _answer(reply, out, table, added, replaced, time.monotonic() - began)


def _answer(
    reply: Reply, out: Path, table: HashTable, added: int, replaced: int, seconds: float
) -> None:
    facts = {
        "table": out, "added": added, "replaced": replaced, "items": len(table),
        "seconds": seconds,
    }  # fmt: skip
    again = f", {count(replaced, 'item')} replaced" if replaced else ""
    reply.result(
        facts,
        f"{out}: {count(added, 'item')} added in {seconds:.1f} s{again}; the table has "
        f"{count(len(table), 'item')}",
        f"next: flowhash search {out} QUERY   or   flowhash serve {out} --open",
    )


def _opened(source: str, split: str, opening: dict[str, Any], encoder: Encoder) -> Collection:
    takes = encoder.preprocessing
    try:
        found = open_collection(source, size=takes.size, split=split, **opening)
    except InputError as error:
        raise InputError(in_our_words(str(error))) from error
    if found.items.kind != takes.kind:
        raise InputError(
            f"{source} holds {found.items.kind}, but the encoder takes {takes.kind}; give items of "
            "the kind that it was trained on"
        )
    if not len(found):
        raise InputError(f"{source} has no items; give at least one to store")
    return found


def _table(out: Path, encoder: Encoder, collection: Collection, choices: TableChoices) -> HashTable:
    """The table that is there, which must fit, or a new one."""
    if choices.ids not in (None, *ID_KINDS):
        raise InputError(f"--ids is {choices.ids!r}; expected {' or '.join(ID_KINDS)}")
    kind = None if choices.ids is None else ID_KINDS[choices.ids]
    wanted = {"metric": choices.metric, "dtype": choices.dtype, "id_kind": kind}
    if out.is_dir() and any(out.glob("manifest*")):
        table = HashTable.open(out, "r+", encoder=encoder.fingerprint)
        for name, value in wanted.items():
            has = getattr(table, name)
            if value is not None and value != has:
                table.close()
                raise InputError(
                    f"{out} is there already and has {name.removesuffix('_kind')}={has}, not "
                    f"{value}; leave the option out, or give another --out"
                )
        return table
    return encoder.create_table(
        out,
        metric=choices.metric or "euclidean",
        dtype=choices.dtype or "float32",
        ids=kind or ("string" if collection.files else "int64"),
    )


class _Indexing:
    """One run over a collection, with a journal so that it goes on where it stopped.

    Every item has its id before it is added: what is added twice, because the process died between
    the table and the journal, replaces itself.
    """

    def __init__(
        self, table: HashTable, encoder: Encoder, collection: Collection, source: str,
        pictures: bool,
    ) -> None:  # fmt: skip
        from flowhash.artefact import read_json

        assert table.path is not None
        self.table, self.encoder, self.collection = table, encoder, collection
        self.pictures = pictures
        self.journal = table.path / JOURNAL
        self.record = {"source": source, "items": len(collection)}
        self.done, self.first = 0, table.next_id
        if self.journal.exists():
            earlier = read_json(self.journal)
            if {name: earlier.get(name) for name in self.record} == self.record:
                self.done, self.first = int(earlier["done"]), int(earlier["first"])

    def run(self, batch: int, device: str, reply: Reply) -> int:
        """Add what is left; how many items that was."""
        from flowhash.artefact import write_json

        start, total = self.done, len(self.collection)
        if start:
            reply.say(f"going on after {start:,} of {count(total, 'item')}")
        write_json(self.journal, {**self.record, "first": self.first, "done": start})
        for part in shown(self._parts(start, batch, device), "index", total - start,
                          not reply.quiet):  # fmt: skip
            self.done += len(part)
            write_json(self.journal, {**self.record, "first": self.first, "done": self.done})
        self.journal.unlink()
        return total - start

    def _parts(self, start: int, batch: int, device: str) -> Iterator[Any]:
        for begin in range(start, len(self.collection), batch):
            places = np.arange(begin, min(begin + batch, len(self.collection)))
            items = self.collection.take(places)
            yield self.encoder.add(
                self.table,
                items,
                ids=self._ids(places),
                payloads=self.collection.payloads(begin, items, self.pictures),
                device=device,
            )

    def _ids(self, places: Any) -> Any:
        if self.table.id_kind == "string":
            return [self.collection.names[place] for place in places.tolist()]
        return self.first + places
