"""``StoredCodes``: codes for the items of a table that no encoder makes of an item alone.

Second buckets depend on which other items there are. They are found for all items of a table
together, with the calibration that fits them, and committed in one step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.durable_files import atomic_file
from flowhash.errors import InputError, StorageError
from flowhash.progress_bars import items_bar, shown
from flowhash.table import FEWEST, RECALL_NOTE, HashTable

if TYPE_CHECKING:
    from flowhash.encoder import Encoder
    from flowhash.learn import ItemBuckets

CODES, NOTES = "codes.npy", "notes.json"  # in the folder of an encoder, until they are committed


@dataclass(frozen=True, eq=False)
class StoredCodes:
    """Codes for a state of a table, in the order in which its items are stored.

    Attributes:
        version: of the table.
        codes: [n, k].
        notes: what to note with them: the calibration, and the rule for further items.
    """

    version: str
    codes: NDArray[np.int32]
    notes: dict[str, Any]

    @classmethod
    def of(
        cls,
        table: HashTable,
        version: str,
        embeddings: NDArray[np.float32],
        made: ItemBuckets,
        encoder: Encoder,
        device: str = "auto",
    ) -> StoredCodes:
        """These buckets, calibrated by the items that were held out.

        Args:
            table: whose items they are.
            version: of the table when they were read.
            embeddings: of the items [n, dim].
            made: their buckets.
            encoder: whose buckets these are.
            device: for activations.
        """
        from flowhash.learn import SECOND_NOTE

        notes: dict[str, Any] = {SECOND_NOTE: None if made.rule is None else made.rule.to_json()}
        if len(made.held_out) >= FEWEST:
            trial = HashTable.create(
                buckets=table.buckets, dim=table.dim, active=table.active, metric=table.metric
            )
            trial.add(made.codes, embeddings)
            asked = encoder.encode_stored(embeddings[made.held_out], device)
            trial.calibrate(asked.activations, asked.embeddings, own=made.held_out)
            notes[RECALL_NOTE] = trial.notes()[RECALL_NOTE]
        return cls(version, made.codes, notes)

    @classmethod
    def load(cls, folder: Path, version: str) -> StoredCodes:
        """What :meth:`save` has written for this state of a table."""
        from flowhash.model_files import read_json

        try:
            codes = np.load(folder / CODES, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise StorageError(f"{folder / CODES} cannot be read: {error}") from error
        return cls(version, codes, read_json(folder / NOTES))

    def save(self, folder: Path) -> None:
        """Write them, so that a run which is killed before they are committed can go on."""
        from flowhash.model_files import write_json

        with atomic_file(folder / CODES) as file:
            np.save(file, self.codes)
        write_json(folder / NOTES, self.notes)

    def forget(self, folder: Path) -> None:
        """Remove what :meth:`save` has written: it is committed."""
        for name in (CODES, NOTES):
            (folder / name).unlink(missing_ok=True)

    def commit(
        self, table: HashTable, encoder: str | None, notes: dict[str, Any], show: bool
    ) -> None:
        """Give the items these codes, in one step with all notes."""
        with items_bar("recode", len(table), show) as advance:
            table.recode(self._codes_of(table, advance), encoder, {**self.notes, **notes})

    def _codes_of(
        self, table: HashTable, advance: Callable[[int], None]
    ) -> Callable[[NDArray[np.float32]], NDArray[np.int32]]:
        done = 0

        def codes_of(embeddings: NDArray[np.float32]) -> NDArray[np.int32]:
            nonlocal done
            if table.version != self.version:
                raise InputError(
                    "the table was changed while its items were given new buckets, and is as that "
                    "left it; nothing else may change it meanwhile. Run it again"
                )
            start, done = done, done + len(embeddings)
            advance(len(embeddings))
            return self.codes[start:done]

        return codes_of


def stored_embeddings(table: HashTable, show: bool = False) -> NDArray[np.float32]:
    """The embeddings of all items, in the order in which they are stored [n, dim]."""
    embeddings, done = np.empty((len(table), table.dim), np.float32), 0
    for part in shown(table.batches(payloads=False), "read", len(table), show):
        count = min(len(part), len(embeddings) - done)  # another thread may add meanwhile
        embeddings[done : done + count] = part.embeddings[:count]
        done += count
    return embeddings[:done]


def share_table(
    table: HashTable,
    encoder: Encoder,
    copies: float | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
    show: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> StoredCodes:
    """Give some items a second bucket, where a recall then scans less, and calibrate the table.

    The first bucket of each stays where its encoder puts it. Items that queries near them would
    miss are put into a bucket that those do open, too. Codes and calibration are committed in one
    step; searches go on meanwhile.

    Args:
        table: with room for more buckets an item than its encoder gives it.
        encoder: that made its codes, one bucket an item, and makes them of embeddings.
        copies: the share of the items that get one, at the most; None tries 20 and 40 %.
        seed: of everything drawn at random.
        device: for activations.
        show: progress, on the error stream.
        say: hears a line for each share that is tried.

    Raises:
        InputError: the table has no room, or the encoder does not do.
    """
    from flowhash.encoder import check_table
    from flowhash.learn import share_items

    check_table(encoder, table)
    if encoder.active > 1 or table.active < 2:
        raise InputError(
            f"the encoder puts an item into {encoder.active} of the table's buckets, and the table "
            f"has room for {table.active}; expected one, and room for two. Index the items into a "
            "new table with active=2 (flowhash index --active 2)"
        )
    if not encoder.takes_embeddings:
        raise InputError(
            "the encoder takes items, and the table holds their embeddings only, so that nobody "
            "knows which buckets they would open; adapt the table first (flowhash adapt)"
        )
    version = table.version
    embeddings = stored_embeddings(table, show)

    def activations(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return encoder.encode_stored(rows, device).activations

    ranked = embeddings
    if table.metric == "cosine":
        lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
        ranked = (embeddings / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    made = share_items(
        ranked, _homes(encoder, embeddings, device), table.buckets, activations,
        inputs=embeddings, copies=copies, inner=table.metric == "inner", seed=seed, show=show,
        say=say,
    )  # fmt: skip
    found = StoredCodes.of(table, version, embeddings, made, encoder, device)
    found.commit(table, encoder.fingerprint, {}, show)
    return found


def _homes(encoder: Encoder, embeddings: NDArray[np.float32], device: str) -> NDArray[np.int32]:
    """The first bucket of each, block after block [n]."""
    size = 1 << 16
    parts = [
        encoder.encode_stored(embeddings[start : start + size], device).codes[:, 0]
        for start in range(0, len(embeddings), size)
    ]
    return np.concatenate([np.zeros(0, np.int32), *parts])
