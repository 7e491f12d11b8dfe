"""Adaptation of a table: buckets fitted to the items that are in it, and new codes for all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.durable_files import folder_aside, naming, put_folder
from flowhash.errors import Argument, InputError, StorageError
from flowhash.indexing.stored_codes import StoredCodes, stored_embeddings
from flowhash.indexing.table_notes import (
    ADAPTED,
    LostEncoderError,
    TableNotes,
    adaptation_note,
    fingerprint_at,
    own_encoder,
)
from flowhash.progress_bars import items_bar, shown
from flowhash.table import RECALL_NOTE, HashTable, draw_sample

if TYPE_CHECKING:
    from flowhash.encoder import Encoder

FITTED_TO = "adaptation.json"  # in the new encoder's run: what it was fitted to
ENCODER = "encoder"  # its folder in there, as in the run of a training
SHARE_AGAIN = "flowhash calibrate --copies (in Python share_table)"
METHOD = 3  # counts up where the same items give other buckets


@dataclass(frozen=True, eq=False)
class Adaptation:
    """What ``adapt_table`` did.

    Attributes:
        encoder: the one that the table has codes of now.
        folder: where it is saved; None where it is not.
        resumed: whether it was fitted by an earlier attempt.
    """

    encoder: Encoder
    folder: Path | None
    resumed: bool


def adapt_table(
    table: HashTable,
    encoder: Encoder,
    out: str | Path | None = None,
    *,
    copies: float | None = None,
    seed: int = 0,
    device: str = "auto",
    show: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Adaptation:
    """Fit the buckets to the items in a table, without labels, and give each item a new code.

    With an encoder that was itself fitted to vectors without labels, all of that is done anew: the
    router learns in which buckets neighbours lie, items get second buckets where the table has room
    for two, and how many buckets a recall takes is calibrated by items that were held out. All of
    it is committed in the same step.

    The new encoder is saved first, whole or not at all, then all items get their codes in one step,
    with its fingerprint and a note of where it is. Ended anywhere, even by ``kill -9``, this leaves
    the table and its encoder as they were, or the new ones. Given again with the same ``out``, it
    takes an encoder that is saved there, if the table has not changed since it was fitted.

    Searches go on meanwhile, among the old codes. Of the embeddings a sample is in memory, 256 a
    bucket and 256 MB at the most; but 8 a bucket always, also where these are more than that. A
    router learns from all items, and has them in memory three times.

    Args:
        table: in a folder or in memory, open to be changed.
        encoder: that made its codes.
        out: a new folder for the run with the new encoder; None, for a table in memory, saves none.
        copies: for a router: the share of the items with a second bucket, where that lets a recall
            scan less; None tries 20 and 40 %. Beside learned buckets it is refused; second ones
            that are there are dropped, and a calibration, which ``say`` hears first.
        seed: of the sample, or of all that is drawn for a router.
        device: for the codes.
        show: progress, on the error stream.
        say: hears a line for each way to open buckets that is tried for a router.

    Raises:
        InputError: the table is empty, of another encoder or an engine's; ``out`` holds something
            else.
        StorageError: a file could not be written; the table is as it was.
    """
    from flowhash.learn import SECOND_NOTE, is_router

    _check(table, out)
    check_adaptable(table, encoder)
    if copies is not None:
        _check_copies(table, encoder, copies)
    if not is_router(encoder):
        _tell_dropped(table, encoder, say)
    folder = None if out is None else Path(out).expanduser()
    wanted = _record(table, encoder, seed, copies)
    saved = None if folder is None else _saved(folder, wanted, encoder)
    codes: StoredCodes | None = None
    if is_router(encoder):
        if saved is not None and folder is not None:
            adapted, codes = saved, StoredCodes.load(folder, table.version)
        else:
            share = copies if table.active > 1 else 0.0
            adapted, codes = _routed(table, encoder, share, seed, show, say)
    else:
        adapted = _fitted(table, encoder, seed, show) if saved is None else saved
    notes: dict[str, Any] = {} if codes is not None else {SECOND_NOTE: None}
    if folder is not None:
        if saved is None:
            _save(adapted, folder, wanted, codes)
        notes[ADAPTED] = {
            **wanted, "fingerprint": adapted.fingerprint, "path": _whole(folder / ENCODER),
            "beside": None if table.path is None else _whole(table.path),
        }  # fmt: skip
    if codes is None:
        with items_bar("recode", len(table), show) as advance:

            def codes_of(embeddings: NDArray[np.float32]) -> NDArray[np.int32]:
                made = adapted.encode_stored(embeddings, device).codes
                advance(len(made))
                return made

            table.recode(codes_of, adapted.fingerprint, notes)
    else:
        codes.commit(table, adapted.fingerprint, notes, show)
        if folder is not None:
            codes.forget(folder)
    with contextlib.suppress(StorageError):  # the table's own note says the same, and counts
        tell_index(table)
    return Adaptation(adapted, folder, saved is not None)


def check_adaptable(table: HashTable, encoder: Encoder) -> None:
    """Refuse a table whose buckets cannot be fitted to the items in it.

    Raises:
        InputError: it is empty or of another encoder; or that is a router, and the table ranks by
            cosine, or has too few items for its buckets.
    """
    from flowhash.encoder import check_table
    from flowhash.learn import is_router, suit_router

    check_table(encoder, table)
    if not len(table):
        raise InputError(f"{_place(table)} is empty; put items into it before its buckets are "
                         "fitted to them")  # fmt: skip
    if not is_router(encoder):
        return
    if table.metric == "cosine":
        raise InputError(
            f"{_place(table)} ranks by cosine, and a router by distance; bring vectors to length "
            "one and index them with --metric euclidean, which orders alike"
        )
    if not suit_router(len(table), table.buckets):
        raise InputError(
            f"{_place(table)} has {len(table):,} items in {table.buckets:,} buckets; without "
            "labels buckets are fitted to 250 items or more, and to two a bucket. Put more items "
            "into it, or fit an encoder with fewer buckets and index the items with that"
        )


def adapted_before(
    table: HashTable, seed: int = 0, encoder: Path | None = None, copies: float | None = None
) -> Path | None:
    """The encoder of the last adaptation, if it was the same and nothing has changed since.

    Args:
        table: in a folder.
        seed: of the sample.
        encoder: the folder where it is by now, if somebody knows better than the notes.
        copies: the share of second buckets that was asked for.

    Raises:
        LostEncoderError: it is not where the notes say.
    """
    note = adaptation_note(table)
    if note is None or table.path is None:
        return None
    identity, _, generation = str(note.get("table")).rpartition(" ")
    if (
        (note.get("seed"), note.get("copies")) != (seed, copies)
        or note.get("method") != METHOD
        or not generation.isdecimal()
    ):
        return None
    # The new codes were the next state after the one that was looked at.
    if table.version != f"{identity} {int(generation) + 1}":
        return None
    return own_encoder(table, table.path, encoder)


def adaptation_folder(
    table: HashTable, encoder: Encoder, seed: int = 0, copies: float | None = None
) -> Path:
    """Where the run of an adaptation goes, if nobody says so: a free name beside the table.

    One that has an encoder for this very state of the table is taken, too: it was not used yet.
    """
    if table.path is None:
        raise InputError("a table in memory has no folder to be beside of; say where, with out=")
    place = table.path if table.path.name not in ("", "..") else table.path.resolve()
    name = f"{place.name.removesuffix('.table')}.adapted"
    wanted, number = _record(table, encoder, seed, copies), 1
    while True:
        folder = place.with_name(name if number == 1 else f"{name}-{number}")
        if not folder.exists() or _record_of(folder) == wanted:
            return folder
        number += 1


def tell_index(table: HashTable, encoder: Path | None = None) -> None:
    """Let what ``index`` noted beside the table name the encoder of an adaptation.

    Args:
        table: what is noted beside it stays, if the encoder is nowhere to be found.
        encoder: the folder where it is by now; None for where the notes say.
    """
    if table.path is None or adaptation_note(table) is None:
        return
    notes = TableNotes(table)
    settings = notes.settings()
    with contextlib.suppress(LostEncoderError):
        found = own_encoder(table, table.path, encoder)
        if settings and found is not None and fingerprint_at(found) == table.encoder:
            notes.write_settings({**settings, "encoder": _whole(found)})


def _check(table: HashTable, out: str | Path | None) -> None:
    if not isinstance(table, HashTable):
        raise InputError(
            f"the table is a {type(table).__name__}; expected a HashTable. Copy it into a folder, "
            "adapt that, and copy it to a new address"
        )
    if not table.writable:
        raise StorageError(
            f'{_place(table)} was opened to be searched only; open it with mode="r+" to adapt it'
        )
    if out is None and table.path is not None:
        raise InputError(
            f"nothing says where the new encoder of {table.path} goes, without which it could not "
            "be searched; give a new folder with",
            Argument("out"),
        )


def _check_copies(table: HashTable, encoder: Encoder, copies: float) -> None:
    """Refuse second buckets where adapt gives none."""
    from flowhash.learn import is_router

    if not is_router(encoder):
        words = "has learned buckets; expected those of vectors without labels. Leave it out"
        if encoder.active == 1:
            room = "" if table.active > 1 else ", in a table with room for them (index --active 2)"
            words += f"; afterwards {SHARE_AGAIN} gives second buckets{room}"
    elif table.active == 1:
        words = (
            "has room for one bucket an item; expected room for two. Leave it out, or index the "
            "items into a new table with active=2 (flowhash index --active 2)"
        )
    else:
        return
    raise InputError(f"is {copies}, and {_place(table)} {words}", subject="copies")


def _tell_dropped(table: HashTable, encoder: Encoder, say: Callable[[str], None]) -> None:
    """Say, before anything is done, what learned buckets that are fitted anew do not keep."""
    again = {}
    if table.stats().mean_active > encoder.active:
        # The others come from no command.
        again["the second buckets of items"] = SHARE_AGAIN if encoder.active == 1 else "recode"
    if table.notes().get(RECALL_NOTE) is not None:
        again["the calibration"] = "flowhash calibrate (in Python calibrate)"
    if again:
        best, also = next(iter(again.values())), " and calibrates" if len(again) > 1 else ""
        say(
            f"{_place(table)}: {' and '.join(again)} will be gone, since learned buckets are "
            f"fitted anew; afterwards {best} makes such again{also}"
        )


def _record(table: HashTable, encoder: Encoder, seed: int, copies: float | None) -> dict[str, Any]:
    """All that the fitted encoder depends on."""
    made = {"table": table.version, "encoder": encoder.fingerprint, "seed": seed, "method": METHOD}
    return made if copies is None else {**made, "copies": copies}


def _record_of(folder: Path) -> dict[str, Any] | None:
    """What the encoder in a folder was fitted to; None where nothing readable says so."""
    from flowhash.model_files import read_json

    try:
        return read_json(folder / FITTED_TO)
    except (StorageError, OSError):
        return None


def _saved(folder: Path, wanted: Mapping[str, Any], encoder: Encoder) -> Encoder | None:
    """The encoder that an earlier attempt has fitted; None where there is a place for a new one."""
    from flowhash.encoder import Encoder

    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if _record_of(folder) != wanted:
        raise InputError(
            f"{folder} is there already, and was not fitted to the table as it is now; expected a "
            "new folder. Give another one with",
            Argument("out"),
        )
    with folder_aside(folder):  # which removes what an attempt that was killed has left there
        pass
    own = (encoder.base or encoder.hash).backbone  # a module of the user's own is not stored
    return Encoder.load(folder / ENCODER, own)


def _save(
    encoder: Encoder, folder: Path, record: Mapping[str, Any], codes: StoredCodes | None
) -> None:
    """Write the run beside its place, then give it its name, in one step."""
    from flowhash.model_files import write_json

    with naming(folder), folder_aside(folder) as made:
        encoder.save(made / ENCODER)
        write_json(made / FITTED_TO, record)
        if codes is not None:
            codes.save(made)
        put_folder(made, folder)


def _fitted(table: HashTable, encoder: Encoder, seed: int, show: bool) -> Encoder:
    """The encoder with buckets fitted to a sample of the table, which is read once."""
    from flowhash.learn import adapt_encoder, sample_size

    chosen = draw_sample(len(table), sample_size(table.buckets, table.dim), seed)
    embeddings = np.empty((len(chosen), table.dim), np.float32)
    codes = np.empty((len(chosen), table.active), np.int32)
    passed = taken = 0
    for part in shown(table.batches(payloads=False), "read", len(table), show):
        last = int(np.searchsorted(chosen, passed + len(part)))
        rows = chosen[taken:last] - passed
        embeddings[taken:last], codes[taken:last] = part.embeddings[rows], part.codes[rows]
        passed, taken = passed + len(part), last
    if taken < len(chosen):  # another thread deletes meanwhile
        embeddings, codes = embeddings[:taken], codes[:taken]
    codes = np.where(codes < 0, codes[:, :1], codes)  # so that every item counts alike
    return adapt_encoder(encoder, embeddings, codes, metric=table.metric, seed=seed, show=show)


def _routed(
    table: HashTable,
    encoder: Encoder,
    copies: float | None,
    seed: int,
    show: bool,
    say: Callable[[str], None],
) -> tuple[Encoder, StoredCodes]:
    """A router fitted to all items, and their buckets."""
    from flowhash.learn import fit_vectors, router_encoder

    version = table.version
    embeddings = stored_embeddings(table, show)
    router, made = fit_vectors(
        embeddings, table.buckets, copies=copies, inner=table.metric == "inner", seed=seed,
        show=show, say=say,
    )  # fmt: skip
    adapted = router_encoder(router, encoder.preprocessing)
    return adapted, StoredCodes.of(table, version, embeddings, made, adapted)


def _place(table: HashTable) -> str:
    return "the table in memory" if table.path is None else str(table.path)


def _whole(path: Path) -> str:
    return os.path.realpath(path)
