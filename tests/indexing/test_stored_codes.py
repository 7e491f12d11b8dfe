"""Second buckets for the items of a table: where they help, in one step, gone on with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from flowhash.data import Preprocessing
from flowhash.encoder import Encoder, search_encoded
from flowhash.errors import InputError
from flowhash.indexing import (
    IndexRun,
    StoredCodes,
    TableChoices,
    adapt_table,
    adapted_before,
    open_table,
    share_table,
)
from flowhash.learn import SECOND_NOTE, SecondRule, fit_vectors, router_encoder, second_codes
from flowhash.learn.routing.neighbour_router import NeighbourRouter
from flowhash.table import HashTable
from tests.encoder.encoders import items_of, make

ITEMS = 3_000


def rows(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Clouds that overlap."""
    middles = np.random.default_rng(7).normal(size=(40, 8))
    rng = np.random.default_rng(seed)
    made = middles[rng.integers(0, 40, count)] + 0.6 * rng.normal(size=(count, 8))
    return made.astype(np.float32)


def plain() -> Preprocessing:
    return Preprocessing(kind="vectors", mean=np.zeros(8, np.float32), std=np.float32(1), size=None)


@pytest.fixture(scope="module")
def crude() -> Encoder:
    """Buckets around points by lot, far from as sharp as they should be."""
    points = rows(40, 3)
    return router_encoder(
        NeighbourRouter(0.1 * points, -0.05 * np.square(points).sum(axis=1)), plain()
    )


def named(encoder: Encoder) -> Encoder:
    """The same with classes, so that its buckets are learned ones."""
    return Encoder(encoder.base, encoder.hash, encoder.preprocessing, 1, ["a", "b"])


def filled(encoder: Encoder, path: Path | None = None, active: int = 2) -> HashTable:
    table = encoder.create_table(path, active=active)
    encoder.add(table, rows(ITEMS))
    table.delete(np.arange(0, ITEMS, 10))
    return table


def recall(table: HashTable, encoder: Encoder, asked: float) -> tuple[float, float]:
    """Of further queries, by brute force over the stored embeddings; and what was scanned."""
    queries = encoder.encode(rows(300, 5))
    stored = {int(item): table[item].embedding for item in table}
    ids, vectors = np.array(list(stored)), np.stack(list(stored.values()))
    far = np.square(queries.embeddings[:, None].astype(np.float64) - vectors[None]).sum(axis=2)
    best = ids[np.argsort(far, axis=1, kind="stable")[:, :10]]
    hits = search_encoded(table, queries, 10, recall=asked)
    right = (hits.ids[:, :, None] == best[:, None, :]).any(axis=1)
    return float(right.mean()), float(hits.scanned.mean() / len(table))


def test_items_keep_their_first_bucket_and_a_recall_scans_less(crude: Encoder) -> None:
    with filled(crude) as table:
        before = {item: table.buckets_of(item).tolist() for item in table}
        table.calibrate(*_asked(crude, rows(1_000, 6)))
        reached, scanned = recall(table, crude, 0.9)
        lines: list[str] = []
        found = share_table(table, crude, 0.4, say=lines.append)
        assert isinstance(found, StoredCodes)
        assert lines[0].startswith("learned buckets and a threshold")
        assert 1.2 < table.stats().mean_active <= 1.4
        assert all(set(before[item]) <= set(table.buckets_of(item)) for item in table)
        assert table.check() == []
        table.calibrate(*_asked(crude, rows(1_000, 6)))
        after, less = recall(table, crude, 0.9)
        assert min(reached, after) > 0.87
        assert less < 0.97 * scanned


def _asked(encoder: Encoder, queries: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
    made = encoder.encode(queries)
    return made.activations, made.embeddings


def test_what_comes_later_gets_second_buckets_too(crude: Encoder, tmp_path: Path) -> None:
    from flowhash.data import open_collection

    np.save(tmp_path / "more.npy", rows(600, 9))
    with filled(crude, tmp_path / "table") as table:
        share_table(table, crude, 0.4)
        last = table.next_id
        collection = open_collection(str(tmp_path / "more.npy"))
        work = IndexRun(table, crude, collection, ["more"], pictures=False)
        assert work.run(200, "cpu") == 600
        share = np.mean([len(table.buckets_of(item)) == 2 for item in range(last, last + 600)])
        assert 0.2 < share < 0.6
        assert table.check() == []
    again = open_table(tmp_path / "table", crude, collection, TableChoices(active=2))
    again.close()
    with pytest.raises(InputError, match="active=2, not 3"):
        open_table(tmp_path / "table", crude, collection, TableChoices(active=3))


def test_what_comes_later_gets_the_same_whatever_the_batches(crude: Encoder) -> None:
    with filled(crude) as table:
        share_table(table, crude, 0.4)
        table.calibrate(*_asked(crude, rows(100, 6)), tops=(1,))  # fewer than vote
        rule = SecondRule.from_json(table.notes()[SECOND_NOTE])
        assert rule is not None
        later = rows(700, 9)

        def codes(some: NDArray[np.float32]) -> NDArray[np.int32]:
            return second_codes(
                table, crude.encode(some), rule,
                lambda ids: crude.encode_stored(table.embeddings_of(ids)).activations,
            )  # fmt: skip

        whole = codes(later)
        assert 0.2 < (whole[:, 1] >= 0).mean() < 0.6
        single = np.concatenate([codes(later[place : place + 1]) for place in range(60)])
        np.testing.assert_array_equal(single, whole[:60])
        table.delete(list(table))
        assert (codes(later)[:, 1] == -1).all()


def test_a_router_is_adapted_whole_and_goes_on_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    router, _ = fit_vectors(rows(ITEMS), 64)
    encoder = router_encoder(router, plain())
    place = tmp_path / "table"
    with filled(encoder, place) as table:
        encoder.add(table, rows(2_000, 4) + 2)  # from elsewhere
        before = {item: table[item].embedding.tolist() for item in table}
        state = table.version
        with monkeypatch.context() as patched:
            patched.setattr(HashTable, "recode", _killed)
            with pytest.raises(KeyboardInterrupt):
                adapt_table(table, encoder, tmp_path / "new")
        assert table.version == state
        assert table.encoder == encoder.fingerprint
        done = adapt_table(table, encoder, tmp_path / "new")
        assert done.resumed
        assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
            "adaptation.json",
            "encoder",
        ]
        assert table.encoder == done.encoder.fingerprint
        assert {item: table[item].embedding.tolist() for item in table} == before
        assert table.check() == []
        assert table.calibration is not None
        assert table.calibration.items == len(table)
        for part in table.batches(payloads=False):
            first = done.encoder.encode_stored(part.embeddings).codes[:, 0]
            held = (part.codes == first[:, None]).any(axis=1)
            assert held.mean() > 0.5  # where the router looks first; k-means has the last word
        reached, scanned = recall(table, done.encoder, 0.95)
        assert reached > 0.92
        assert scanned < 0.3


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_labelled_buckets_drop_the_rule_for_second_ones_when_they_are_adapted() -> None:
    encoder = make("mlp", seed=2)
    with encoder.create_table(active=encoder.active + 1) as table:
        encoder.add(table, items_of("mlp", 90))
        table.note(SECOND_NOTE, {"threshold": 1.0, "gain": 1.0, "sharpness": 1.0, "rates": [1.0]})
        said: list[str] = []
        adapted = adapt_table(table, encoder, say=said.append).encoder
        assert SECOND_NOTE not in table.notes()
        assert table.stats().mean_active == encoder.active
        assert said == []  # no item had a second one
        more = {item: [*table[item].code, 7] for item in table if 7 not in table[item].code}
        codes = np.array(list(more.values()), np.int32)
        vectors = np.stack([table[item].embedding for item in more])
        table.add(codes, vectors, list(more))
        adapt_table(table, adapted, say=said.append)
        assert table.stats().mean_active == encoder.active
        [line] = said
        assert "the second buckets of items will be gone" in line


def test_what_learned_buckets_do_not_keep_is_said_before_they_are_fitted_anew(
    crude: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = named(crude)
    with filled(learned) as table:
        share_table(table, learned, 0.4)
        said: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr("flowhash.learn.adapt_encoder", _killed)
            with pytest.raises(KeyboardInterrupt):
                adapt_table(table, learned, say=said.append)
        assert table.stats().mean_active > 1
        assert said == [
            "the table in memory: the second buckets of items and the calibration will be gone, "
            "since learned buckets are fitted anew; afterwards flowhash calibrate --copies (in "
            "Python share_table) makes such again and calibrates"
        ]
        adapted = adapt_table(table, learned).encoder
        assert (table.stats().mean_active, table.calibration) == (1, None)
        table.calibrate(*_asked(adapted, rows(100, 6)))
        adapt_table(table, adapted, say=said.append)
        assert said[1] == (
            "the table in memory: the calibration will be gone, since learned buckets are fitted "
            "anew; afterwards flowhash calibrate (in Python calibrate) makes such again"
        )
        assert len(said) == 2


def test_copies_are_refused_where_they_mean_nothing_and_are_a_part_of_the_record(
    crude: Encoder,
    tmp_path: Path,
) -> None:
    router, _ = fit_vectors(rows(ITEMS), 64)
    encoder = router_encoder(router, plain())
    room = r"^copies is 0.2, and the table .* room for one bucket .* \(flowhash index --active 2\)$"
    with filled(encoder, active=1) as table, pytest.raises(InputError, match=room):
        adapt_table(table, encoder, copies=0.2)
    labelled = make("mlp", seed=2)
    with labelled.create_table(active=labelled.active + 1) as table:
        labelled.add(table, items_of("mlp", 90))
        with pytest.raises(InputError, match=r"has learned buckets; .*\. Leave it out$"):
            adapt_table(table, labelled, copies=0.2)
    for active, words in ((1, r"in a table with room for them \(index --active 2\)$"), (2, "s$")):
        with (
            filled(named(crude), active=active) as table,
            pytest.raises(InputError, match=words) as error,
        ):
            adapt_table(table, named(crude), copies=0.2)
        assert "afterwards flowhash calibrate --copies (in Python" in str(error.value)
    with filled(encoder, tmp_path / "table") as table:
        adapt_table(table, encoder, tmp_path / "new", copies=0.0)
        assert table.stats().mean_active == 1
        assert adapted_before(table, copies=0.0) is not None
        assert adapted_before(table, copies=0.4) is None


def test_mistakes_are_said(crude: Encoder, tmp_path: Path) -> None:
    with filled(crude, active=1) as table, pytest.raises(InputError, match="--active 2"):
        share_table(table, crude)
    image = make("mlp", seed=2)
    with (
        image.create_table(active=image.active + 1) as table,
        pytest.raises(InputError, match="expected one, and room for two"),
    ):
        share_table(table, image)
    with filled(crude) as table:
        found = share_table(table, crude, 0.1)
        table.delete(np.arange(1, 5))
        with pytest.raises(InputError, match="was changed while"):
            found.commit(table, crude.fingerprint, {}, show=False)
