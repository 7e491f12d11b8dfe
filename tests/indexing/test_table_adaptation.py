"""Buckets fitted to a stored table: whole or not at all, gone on with, found again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.encoder import Encoder
from flowhash.errors import InputError, StorageError
from flowhash.indexing import (
    LostEncoderError,
    TableNotes,
    adapt_table,
    adaptation_folder,
    adapted_before,
    own_encoder,
    tell_index,
)
from flowhash.learn import adaptation
from flowhash.table import HashTable
from tests.encoder.encoders import items_of, make
from tests.indexing import adapting

ROOT = Path(adapting.__file__).parents[2]


def stored(folder: Path, **options: Any) -> tuple[Path, Encoder]:
    """A table of 90 items and some that were deleted, and its encoder, saved beside it."""
    encoder = make("mlp", seed=2)
    encoder.save(folder / "encoder")
    with encoder.create_table(folder / "x.table", **options) as table:
        for start in (0, 50):
            encoder.add(table, items_of("mlp", 50, seed=start), payloads=[{"n": start}] * 50)
        table.delete(np.arange(10))
    return folder / "x.table", encoder


def contents(table: HashTable) -> dict[int, tuple[list[float], Any]]:
    found: dict[int, tuple[list[float], Any]] = {}
    for part in table.batches():
        for item, row, payload in zip(part.ids, part.embeddings, part.payloads, strict=True):
            found[int(item)] = (row.tolist(), payload)
    return found


def assert_codes_of(table: HashTable, encoder: Encoder) -> None:
    """Every item is where a query for it looks first."""
    assert table.encoder == encoder.fingerprint
    for part in table.batches(payloads=False):
        np.testing.assert_array_equal(part.codes, encoder.encode_stored(part.embeddings).codes)
    assert table.check() == []


def test_items_in_fewer_than_k_buckets_get_k(tmp_path: Path) -> None:
    place, encoder = stored(tmp_path)
    assert encoder.active > 1
    with HashTable.open(place, "r+") as table:
        for part in list(table.batches()):
            codes = part.codes
            codes[part.ids % 2 == 0, 1:] = -1
            table.add(codes, part.embeddings, part.ids, part.payloads)
        assert table.stats().mean_active < encoder.active
        before = contents(table)
        done = adapt_table(table, encoder, tmp_path / "new")
        assert contents(table) == before
        assert table.stats().mean_active == encoder.active
        assert_codes_of(table, done.encoder)


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "inner"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_all_items_get_codes_of_the_new_encoder(metric: str, dtype: str, tmp_path: Path) -> None:
    place, encoder = stored(tmp_path, metric=metric, dtype=dtype)
    with HashTable.open(place) as reader, HashTable.open(place, "r+") as table:
        before = contents(table)
        done = adapt_table(table, encoder, tmp_path / "new")
        assert not done.resumed
        assert contents(table) == before
        assert_codes_of(table, done.encoder)
        assert reader.encoder == encoder.fingerprint  # goes on among the old codes
        reader.refresh()
        assert reader.encoder == done.encoder.fingerprint
    saved = Encoder.load(tmp_path / "new" / "encoder")
    assert saved.fingerprint == done.encoder.fingerprint
    with HashTable.open(place) as table:
        assert own_encoder(table, place) == tmp_path / "new" / "encoder"
        hits = saved.search(table, items_of("mlp", 50, seed=50), 1)
        assert hits.counts.min() == 1
        if dtype == "float32" and metric != "inner":
            np.testing.assert_array_equal(hits.ids[:, 0], np.arange(50, 100))


def test_in_memory_nothing_is_saved() -> None:
    encoder = make("mlp")
    table = encoder.create_table()
    encoder.add(table, items_of("mlp", 30))
    done = adapt_table(table, encoder)
    assert done.folder is None
    assert table.notes() == {}
    assert_codes_of(table, done.encoder)


def test_the_table_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of it is what the encoder is fitted to, as many as there are to be."""
    seen: list[Any] = []

    def watched(encoder: Encoder, embeddings: Any, codes: Any, **options: Any) -> Encoder:
        seen.append((embeddings, codes))
        return real(encoder, embeddings, codes, **options)

    real = adaptation.adapt_encoder
    place, encoder = stored(tmp_path)
    monkeypatch.setattr("flowhash.learn.adapt_encoder", watched)
    monkeypatch.setattr(adaptation, "PER_BUCKET", 3)
    with HashTable.open(place, "r+") as table:
        rows = {tuple(row): item for item, (row, _) in contents(table).items()}
        codes = {tuple(row): table.codes_of([item])[0] for row, item in rows.items()}
        adapt_table(table, encoder, tmp_path / "new", seed=5)
    ((embeddings, given),) = seen
    assert len(embeddings) == 33
    drawn = [tuple(row) for row in embeddings.tolist()]
    assert len(set(drawn)) == 33
    assert [codes[row] for row in drawn] == given.tolist()


def test_a_saved_encoder_is_used_while_the_table_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, encoder = stored(tmp_path)
    with HashTable.open(place, "r+") as table:
        with monkeypatch.context() as broken:
            broken.setattr(HashTable, "recode", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                adapt_table(table, encoder, tmp_path / "new")
        assert table.encoder == encoder.fingerprint
        assert adapted_before(table) is None
        assert adaptation_folder(table, encoder) == tmp_path / "x.adapted"
        (tmp_path / "new").rename(tmp_path / "x.adapted")
        assert adaptation_folder(table, encoder) == tmp_path / "x.adapted"
        assert adaptation_folder(table, encoder, seed=1) == tmp_path / "x.adapted-2"
        (tmp_path / "x.adapted").rename(tmp_path / "new")
        with pytest.raises(InputError, match="was not fitted to the table as it is now"):
            adapt_table(table, encoder, tmp_path / "new", seed=1)
        done = adapt_table(table, encoder, tmp_path / "new")
        assert done.resumed
        assert_codes_of(table, done.encoder)
        assert adapted_before(table) == tmp_path / "new" / "encoder"
        assert adapted_before(table, seed=1) is None
        table.delete([20])
        assert adapted_before(table) is None
        with pytest.raises(InputError, match="new folder"):
            adapt_table(table, done.encoder, tmp_path / "new")
        assert not adapt_table(table, done.encoder, tmp_path / "newer").resumed
        assert own_encoder(table, place) == tmp_path / "newer" / "encoder"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["encoder", "new", "newer", "x.table"]


def test_a_home_is_found_for_the_encoder_where_its_note_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, encoder = stored(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    with HashTable.open(place, "r+") as table:
        done = adapt_table(table, encoder, "~/new")
        assert done.folder == tmp_path / "new"
        assert own_encoder(table, place) == tmp_path / "new" / "encoder"
    assert not any((tmp_path / "elsewhere").iterdir())


def test_table_and_encoder_may_move_together(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    place, encoder = stored(tmp_path / "here")
    with HashTable.open(place, "r+") as table:
        adapt_table(table, encoder, tmp_path / "here" / "new")
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = tmp_path / "there" / "x.table"
    with HashTable.open(moved) as table:
        found = own_encoder(table, moved)
        assert found is not None
        assert found.resolve() == tmp_path / "there" / "new" / "encoder"
        shutil.rmtree(tmp_path / "there" / "new")
        with pytest.raises(LostEncoderError, match=r"new/encoder, which is not there any more"):
            own_encoder(table, moved)


def test_what_index_noted_names_an_encoder_that_is_there(tmp_path: Path) -> None:
    place, encoder = stored(tmp_path)
    with HashTable.open(place, "r+") as table:
        notes = TableNotes(table)
        notes.write_settings({"encoder": str(tmp_path / "encoder"), "metric": "euclidean"})
        adapt_table(table, encoder, tmp_path / "new")
        told = {"encoder": str(tmp_path / "new" / "encoder"), "metric": "euclidean"}
        assert notes.settings() == told
        moved = {**told, "encoder": str(tmp_path / "moved" / "encoder")}
        (tmp_path / "new").rename(tmp_path / "moved")
        tell_index(table)  # nowhere to be found
        assert notes.settings() == told
        with pytest.raises(LostEncoderError):
            adapted_before(table)
        notes.write_settings(moved)
        tell_index(table)
        assert notes.settings() == moved
        assert adapted_before(table) == tmp_path / "moved" / "encoder"
        # In its place there is another by now, or something that cannot be read.
        encoder.save(tmp_path / "new" / "encoder")
        tell_index(table)
        assert notes.settings() == moved
        (tmp_path / "new" / "encoder" / "encoder.json").write_text("{")
        tell_index(table)
        assert notes.settings() == moved


def test_what_cannot_be_adapted_says_why(tmp_path: Path) -> None:
    place, encoder = stored(tmp_path)
    with HashTable.open(place) as table, pytest.raises(StorageError, match="searched only"):
        adapt_table(table, encoder, tmp_path / "new")
    with HashTable.open(place, "r+") as table:
        with pytest.raises(InputError, match="nothing says where the new encoder"):
            adapt_table(table, encoder)
        with pytest.raises(InputError, match="was made with encoder"):
            adapt_table(table, make("mlp", seed=9), tmp_path / "new")
        (tmp_path / "file").write_text("")
        for there in ("encoder", "file"):
            with pytest.raises(InputError, match=f"{there} is there already"):
                adapt_table(table, encoder, tmp_path / there)
        table.delete(list(table))
        with pytest.raises(InputError, match="is empty"):
            adapt_table(table, encoder, tmp_path / "new")
    with pytest.raises(InputError, match="expected a HashTable"):
        adapt_table(object(), encoder)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def worker() -> Iterator[subprocess.Popen[str]]:
    paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])
    process = subprocess.Popen(
        [sys.executable, adapting.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def test_killed_at_any_flush_it_leaves_all_whole_and_goes_on(
    worker: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    ended, fingerprints, number = None, set(), 0
    resumed = 0
    while ended != 0:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        place, encoder = stored(folder)
        with HashTable.open(place) as table:
            before = contents(table)
        order = {"place": str(place), "encoder": str(folder / "encoder"), "out": str(folder / "n")}
        print(json.dumps({**order, "die": number}), file=worker.stdin, flush=True)
        ended = int(worker.stdout.readline())
        assert ended in (0, -signal.SIGKILL)
        with HashTable.open(place) as table:
            own = Encoder.load(folder / "encoder")  # the old one is whole, always
            changed = table.encoder != encoder.fingerprint
            if changed:
                own = Encoder.load(own_encoder(table, place) or "")
                assert_codes_of(table, own)
            assert contents(table) == before
            assert own.search(table, items_of("mlp", 5, seed=50), 1).counts.min() == 1
        if not changed:
            print(json.dumps({**order, "die": 0}), file=worker.stdin, flush=True)
            again = int(worker.stdout.readline())
            assert again in (0, 10)
            resumed += again == 10
        with HashTable.open(place) as table:
            fingerprints.add(table.encoder)
            assert_codes_of(table, Encoder.load(folder / "n" / "encoder"))
        assert sorted(one.name for one in folder.iterdir()) == ["encoder", "n", "x.table"]
    assert number > 10
    assert resumed >= 2  # killed between the encoder and the table
    assert len(fingerprints) == 1  # what was killed gives what was not
