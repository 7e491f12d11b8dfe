"""A table in which something cannot be read: the rest is served, and what is lost has a name."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.errors import DamagedFileError
from flowhash.serve import create_app, table_health
from flowhash.serve.search_executor import SearchQuery
from flowhash.table import HashTable
from flowhash.table.hash_table import state_of
from flowhash.table.segments.segment import Segment
from tests.serve.servers import message_of, serving
from tests.serve.test_limits import ask

ROWS, ODD = 60, 17
ALL = {"embedding": [0, 0], "buckets": [0, 1], "probe": 2, "top": ROWS}


def label_of(row: int) -> str:
    return "aabcc"[row % 5]


@pytest.fixture
def odd_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table with an item whose payload no version of today would store: 5,000 deep."""
    dumps, odd, path = json.dumps, {"odd": 1}, tmp_path / "table"

    def deep(value: Any, **options: Any) -> str:
        return '{"a":' * 5000 + "1" + "}" * 5000 if value == odd else dumps(value, **options)

    with HashTable.create(path, buckets=3, dim=2) as table, monkeypatch.context() as patch:
        patch.setattr(json, "dumps", deep)
        payloads = [{"row": row, "label": label_of(row)} for row in range(ROWS)]
        payloads[ODD] = odd
        table.add(
            (np.arange(ROWS) % 2)[:, None], np.arange(2 * ROWS).reshape(ROWS, 2) / 100,
            payloads=payloads,
        )  # fmt: skip
    return path


def test_the_rest_of_an_odd_table_is_served(odd_table: Path) -> None:
    with HashTable.open(odd_table, "r+") as table:
        app = create_app(table)
        with pytest.MonkeyPatch.context() as patch:
            said: list[str] = []
            patch.setattr(
                logging.getLogger("flowhash.serve"),
                "error",
                lambda text, *of: said.append(text % of),
            )
            app.state.service.warm_up()  # reads every payload of its hits; nothing is raised
            found = ask(app, "POST", "/search", json=ALL).json()
        assert len(said) == 1
        assert f"item {ODD} " in said[0]
        assert found["damaged"] == [ODD]
        shown = {hit["id"]: hit["payload"] for hit in found["answers"][0]["hits"]}
        assert shown == {row: None if row == ODD else {"row": row} for row in range(ROWS)}
        health = ask(app, "GET", "/health")
        assert health.status_code == 200
        assert health.json() == {"status": "damaged", "items": ROWS, "damaged": 1}
        for method, path, body in (
            ("GET", f"/items/{ODD}", None),
            ("POST", "/search", {"id": ODD}),
        ):
            answer = ask(app, method, path, json=body)
            assert f"item {ODD} is damaged" in message_of(answer, 503, "damaged")
        for path in (f"/items?count={ROWS}", f"/buckets/{ODD % 2}?count={ROWS}"):
            items = {item["id"] for item in ask(app, "GET", path).json()["items"]}
            expected = range(ROWS) if "items" in path else range(ODD % 2, ROWS, 2)
            assert items == {*expected} - {ODD}
        assert ask(app, "DELETE", f"/items/{ODD}").status_code == 200
        assert ask(app, "GET", "/health").json()["status"] == "ok"
        assert ask(app, "POST", "/search", json=ALL).json()["damaged"] == []


def test_a_bucket_is_counted_around_damage(odd_table: Path) -> None:
    """Each item once, whether all are drawn or some; the load is that of the damaged one, too."""
    rows = [row for row in range(ODD % 2, ROWS, 2) if row != ODD]
    labels = Counter(label_of(row) for row in rows)
    with HashTable.open(odd_table) as table:
        app = create_app(table)
        for count in (1, 10, 29, 30, 60):
            found = ask(app, "GET", f"/buckets/{ODD % 2}?count={count}&seed=3").json()
            assert (found["load"], found["counted"]) == (30, 29)
            assert found["purity"] == max(labels.values()) / 29
            assert {each["label"]: each["items"] for each in found["classes"]} == labels
            drawn = {item.id for item in table.bucket_items(ODD % 2, count, 3, ignore)}
            assert [item["id"] for item in found["items"]] == sorted(drawn)
            assert len(drawn) >= min(count, 30) - 1
        for count in (1, 20, 59, 60):
            found = ask(app, "GET", f"/items?count={count}&seed=3").json()
            ids = {item["id"] for item in found["items"]}
            assert found["total"] == ROWS
            assert len(ids) == len(found["items"])
            assert ids <= {*range(ROWS)} - {ODD}
            assert len(ids) >= count - 1
        sound = ask(app, "GET", f"/buckets/{1 - ODD % 2}").json()
        assert (sound["load"], sound["counted"]) == (30, 30)
        with pytest.raises(DamagedFileError):
            table.sample(ROWS, 0)


def ignore(item: int | str | None, error: DamagedFileError) -> None:
    assert item == ODD


@pytest.mark.parametrize("path", [f"/items?count={ROWS}", f"/buckets/{ODD % 2}"])
def test_health_shows_damage_that_was_left_out_of_a_sample(odd_table: Path, path: str) -> None:
    with HashTable.open(odd_table) as table:
        app = create_app(table)  # nothing has searched it yet
        assert ask(app, "GET", "/health").json()["status"] == "ok"
        assert ask(app, "GET", path).status_code == 200
        health = ask(app, "GET", "/health").json()
        assert health == {"status": "damaged", "items": ROWS, "damaged": 1}


def plain(value: Any) -> Any:
    """What JSON can hold of an answer, or of a number of numpy's."""
    return vars(value) if is_dataclass(value) else float(value)


def test_a_payload_that_cannot_be_written_is_lost_alone(odd_table: Path) -> None:
    """One that Python reads, and cannot write as a part of an answer."""
    from flowhash.serve import search_executor

    as_json = search_executor.as_json

    def fails(value: Any) -> bytes:
        if '{"row": 3}' in json.dumps(value, default=plain):
            raise RecursionError("too deep")
        return as_json(value)

    with HashTable.open(odd_table) as table, pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_executor, "as_json", fails)
        patch.setattr(table_health, "as_json", fails)
        patch.setattr(table_health, "AGAIN", 0)
        app = create_app(table)
        found = ask(app, "POST", "/search", json=ALL).json()
        for _ in range(2):  # it is not forgotten because it can be read
            assert ask(app, "GET", "/health").json()["damaged"] == 2
    assert sorted(found["damaged"]) == [3, ODD]
    assert len(found["answers"][0]["hits"]) == ROWS


def test_a_server_starts_on_an_odd_table(odd_table: Path) -> None:
    """A real process, whose command fails for nothing; what it lost is in its log."""
    with serving((odd_table, None, {})) as (server,):
        assert server.client.get("/health").json() == {
            "status": "damaged",
            "items": ROWS,
            "damaged": 1,
        }
        assert len(server.search(**ALL)["answers"][0]["hits"]) == ROWS


def damaged_embedding(path: Path, dim: int) -> tuple[Path, bytes]:
    """A table of 400 items, one byte of which is wrong; the file, and what it should be."""
    random = np.random.default_rng(0)
    with HashTable.create(path, buckets=2, dim=dim) as table:
        table.add(np.arange(400)[:, None] // 200, random.normal(size=(400, dim)))
        segment = state_of(table).parts[0].segment
        file, row = Path(segment.file), segment.arrays.highs[20].tobytes()
    content = file.read_bytes()
    place = content.index(row)
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    return file, content


def write_back(file: Path, content: bytes) -> None:
    """In place and without emptying it first: it is mapped."""
    with file.open("r+b") as opened:
        opened.write(content)


def test_health_notices_bytes_that_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before some seconds have passed, and never in the event loop's thread."""
    path, dim = tmp_path / "table", 64
    file, content = damaged_embedding(path, dim)
    wrong = file.read_bytes()
    looks: list[str] = []
    sound_block = Segment.sound_block

    def watched(segment: Segment, block: int) -> bool:
        looks.append(threading.current_thread().name)
        return sound_block(segment, block)

    monkeypatch.setattr(Segment, "sound_block", watched)
    asked = {"embedding": [1] * dim, "buckets": [0]}
    with HashTable.open(path) as table:
        app = create_app(table)
        message_of(ask(app, "POST", "/search", json=asked), 503, "storage")
        monkeypatch.setattr(table_health, "AGAIN", 1e9)
        message_of(ask(app, "GET", "/health"), 503, "damaged")
        assert len(looks) == 1  # it had not seen this state
        write_back(file, content)
        message_of(ask(app, "GET", "/health"), 503, "damaged")
        assert len(looks) == 1
        monkeypatch.setattr(table_health, "AGAIN", 0)
        assert ask(app, "GET", "/health").json() == {"status": "ok", "items": 400, "damaged": 0}
        assert ask(app, "POST", "/search", json=asked).status_code == 200
        assert ask(app, "GET", "/health").json()["status"] == "ok"
        assert len(looks) == 2  # nothing is known, nothing is looked at
        assert all(name.startswith("flowhash-read") for name in looks)
    write_back(file, wrong)
    with HashTable.open(path) as table:  # and damage that stays is not forgotten
        app = create_app(table)
        message_of(ask(app, "POST", "/search", json=asked), 503, "storage")
        for _ in range(3):
            assert "1 places" in message_of(ask(app, "GET", "/health"), 503, "damaged")


def test_health_notices_payloads_that_are_restored(
    odd_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_health, "AGAIN", 0)
    with HashTable.open(odd_table) as table:
        file = Path(state_of(table).parts[0].segment.file)
        content = file.read_bytes()
        place = content.index(b'{"row": 3,' if b'{"row": 3,' in content else b'{"row":3,')
        write_back(file, content[:place] + b"[" + content[place + 1 :])
        app = create_app(table)
        lost = ask(app, "POST", "/search", json=ALL).json()["damaged"]
        assert {3, ODD} <= {*lost}  # and those of the same block
        for _ in range(2):
            assert ask(app, "GET", "/health").json()["damaged"] == len(lost)
        write_back(file, content)
        health = ask(app, "GET", "/health").json()
        assert health == {"status": "damaged", "items": ROWS, "damaged": 1}


def test_a_sample_around_a_damaged_embedding(tmp_path: Path) -> None:
    """Searches that need it are refused, so that this is no matter of payloads."""
    path, dim = tmp_path / "table", 64
    damaged_embedding(path, dim)
    with HashTable.open(path) as table:
        app = create_app(table)
        found = ask(app, "GET", "/items?count=400").json()
        ids = {item["id"] for item in found["items"]}
        assert len(found["items"]) == len(ids)
        missing = {*range(400)} - ids  # those that share its block of 1,024 bytes, of 128 each
        assert 20 in missing
        assert len(missing) <= 9
        assert ask(app, "GET", "/buckets/0").json()["counted"] == 200
        assert "1 places" in message_of(ask(app, "GET", "/health"), 503, "damaged")


def test_health_shows_damage_that_was_met(tmp_path: Path) -> None:
    """A byte of one embedding: searches that need it are refused, others are not."""
    path, dim = tmp_path / "table", 64
    damaged_embedding(path, dim)
    asked = [{"embedding": [1] * dim, "buckets": [bucket]} for bucket in (0, 1)]
    with HashTable.open(path, "r+") as table:
        app = create_app(table)
        assert ask(app, "POST", "/search", json=asked[1]).status_code == 200
        assert ask(app, "GET", "/health").json() == {"status": "ok", "items": 400, "damaged": 0}
        message = message_of(ask(app, "POST", "/search", json=asked[0]), 503, "storage")
        assert str(path) not in message
        for _ in range(2):
            message = message_of(ask(app, "GET", "/health"), 503, "damaged")
            assert "1 places" in message
            assert str(path) not in message
        rows, orders = np.ones((1, dim), np.float32), np.array([[0], [1]], np.int32)
        queries = [SearchQuery(rows, order[None], 200, None, None, False) for order in orders]
        answers = app.state.service.executor.batch(queries)  # together, and yet
        assert [type(answer) for answer in answers] == [DamagedFileError, bytes]
        started = create_app(table)
        started.state.service.warm_up()  # it searches everywhere, and raises nothing
        message_of(ask(started, "GET", "/health"), 503, "damaged")
        table.delete(list(range(400)))
        assert ask(app, "GET", "/health").json()["status"] == "ok"
