"""The server before engines: the same answers as before a folder, and a database that goes away."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from flowhash.engines import copy, open_engine
from flowhash.engines.engine_registry import room_of
from flowhash.serve import ServeOptions, create_app
from flowhash.table import HashTable
from tests.encoder.encoders import DIM, make as make_encoder
from tests.engines.servers import Postgres, Server, removed, running_server, table_of
from tests.serve.servers import (
    KEY,
    PATIENCE,
    finished,
    make_images,
    make_strings,
    make_vectors,
    message_of,
    raw_items,
    serving,
    start,
    started,
    string_id,
)

NUMBER = re.compile(r"\b[0-9a-f]{12}\b")


def in_engine(table: Path, address: str) -> str:
    """A table of the other tests, copied."""
    with HashTable.open(table) as opened:
        copy(opened, address)
    return address


@pytest.fixture(params=["postgres", "qdrant"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_address")
    else:
        pytest.importorskip("qdrant_client", reason="the tests of Qdrant need flowhash[qdrant]")
        yield f"qdrant+local://{tmp_path / 'qdrant'}?collection=pets"


def without_time(answer: httpx.Response) -> Any:
    """An answer, without what differs from run to run."""
    assert answer.status_code == 200, answer.text
    found = answer.json()
    for part in (found, found.get("exhaustive") or {}):
        part.pop("milliseconds", None)
    return found


def rounded(value: Any) -> Any:
    """The same, with distances to compare by closeness."""
    if isinstance(value, dict):
        return {
            name: pytest.approx(part, rel=1e-5, abs=1e-6) if name.startswith("distance")
            else rounded(part)
            for name, part in value.items()
        }  # fmt: skip
    return [rounded(part) for part in value] if isinstance(value, list) else value


def test_an_engine_answers_as_a_folder(address: str, tmp_path: Path) -> None:
    folder, encoder = make_vectors(tmp_path)
    place = in_engine(folder, address)
    with HashTable.open(folder) as table:
        lists = [set(table.bucket(bucket).tolist()) for bucket in range(table.buckets)]
        order = np.argsort([len(line) for line in lists], kind="stable").tolist()  # emptiest first
        embedding, fewest = table[17].embedding.tolist(), table.active
    with serving((folder, encoder, {}), (place, encoder, {})) as (ours, theirs):
        vector = [0.5, -0.25, 0.125, 1.0][: _inputs(ours.client)]
        vector += [0.0] * (_inputs(ours.client) - len(vector))
        for asked in (
            {"vector": vector, "top": 7},
            {"vectors": [vector, vector[::-1]], "top": 3, "payloads": False},
            {"id": 17, "top": 5, "compare": True},
            {"vector": vector, "at_least": 40, "top": 9},
            {"embedding": embedding, "buckets": order, "at_least": 40, "top": 9},
        ):
            answers = [without_time(server.client.post("/search", json=asked))
                       for server in (ours, theirs)]  # fmt: skip
            assert answers[1] == rounded(answers[0])
        (wide,) = answers[1]["answers"]  # of the last, which opens until it has so many
        count, found = 0, set[int]()
        while count < fewest or len(found) < 40:
            found |= lists[order[count]]
            count += 1
        assert fewest < count < len(order)
        assert (wide["opened"], wide["scanned"]) == (order[:count], len(found))
        assert theirs.client.get("/buckets").json() == ours.client.get("/buckets").json()
        assert theirs.client.get("/items/17").json() == ours.client.get("/items/17").json()
        bucket = theirs.client.get("/buckets/1", params={"count": 3}).json()
        same = ours.client.get("/buckets/1", params={"count": 3}).json()
        for name in ("load", "purity", "counted", "classes"):
            assert bucket[name] == same[name]
        assert len(bucket["items"]) == len(same["items"])
        sample = theirs.client.get("/items", params={"count": 5, "seed": 3}).json()
        assert sample == theirs.client.get("/items", params={"count": 5, "seed": 3}).json()
        assert (sample["total"], len(sample["items"])) == (300, 5)
        figures, expected = (server.client.get("/stats").json() for server in (theirs, ours))
        for name in ("items", "buckets", "active", "dim", "encoder", "load_max", "empty", "takes"):
            assert figures[name] == expected[name]
        assert figures["writable"]
        assert "<html" in theirs.client.get("/").text
        added = theirs.client.post(
            "/items", json={"items": [{"vector": vector, "label": "new", "payload": {"shop": 3}}]}
        )
        assert added.status_code == 201, added.text
        assert (added.json()["ids"], added.json()["total"]) == ([300], 301)
        assert theirs.client.get("/items/300").json()["label"] == "new"
        found = theirs.search(vector=vector, top=1)
        assert found["answers"][0]["hits"][0]["id"] == 300
        assert theirs.client.delete("/items/300").json() == {"deleted": 1, "total": 300}
        message_of(theirs.client.get("/items/300"), 404)
        message_of(theirs.client.delete("/items/300"), 404)
        wrong = theirs.client.post("/search", json={"embedding": [1.0], "buckets": [0]})
        assert "embedding" in message_of(wrong, 422)


def _inputs(client: httpx.Client) -> int:
    inputs: int = client.get("/stats").json()["takes"]["inputs"]
    return inputs


def test_pictures_and_strings(postgres: Postgres, tmp_path: Path) -> None:
    for name in ("images", "strings"):
        (tmp_path / name).mkdir()
    pictures, encoder = make_images(tmp_path / "images")
    strings = make_strings(tmp_path / "strings")
    places = [in_engine(path, postgres.address()) for path in (pictures, strings)]
    try:
        with serving(
            (places[0], encoder, {}),
            (places[1], None, {"api_key": KEY}),
        ) as (images, names):
            kept = images.client.get("/pictures/7")
            assert kept.headers["content-type"] == "image/png"
            with HashTable.open(pictures) as table:
                expected = table[7].payload
            assert expected is not None
            hit = images.search(id=7, top=1)["answers"][0]
            assert hit["query_picture"] == "/pictures/7"
            for row in range(6):
                path = httpx.URL(names.url).copy_with(raw_path=b"/items/" + _quoted(string_id(row)))
                assert names.client.get(path).json()["id"] == string_id(row)
            asked = {"items": [{"embedding": [1, 0, 0, 0], "code": [1, 2], "id": "a/b"}]}
            message_of(names.client.post("/items", json=asked), 401)
            key = {"Authorization": f"Bearer {KEY}"}
            assert names.client.post("/items", json=asked, headers=key).status_code == 201
            assert names.client.get("/items/a/b").json()["buckets"] == [1, 2]
    finally:
        for place in places:
            room_of(place).remove(place)


def _quoted(text: str) -> bytes:
    from urllib.parse import quote

    return quote(text, safe="").encode()


def test_what_others_write_is_seen(postgres_address: str, tmp_path: Path) -> None:
    place = in_engine(make_strings(tmp_path), postgres_address)
    codes, embeddings = raw_items(9, 1)
    with serving((place, None, {"read_only": True})) as (server,):
        assert server.client.get("/health").json()["items"] == 300
        message_of(server.client.post("/items", json={"items": []}), 403)
        with open_engine(place, "r+") as writer:
            writer.add(codes, embeddings, ["late"])
        until(lambda: server.client.get("/health").json()["items"] == 301)
        assert server.client.get("/items/late").status_code == 200


@pytest.fixture
def guest(postgres: Postgres) -> Iterator[tuple[str, str]]:
    """The address of a table as somebody sees it who may only search it, and who that is."""
    postgres.own()
    role = f"guest_{os.getpid()}"
    postgres.sql(f"CREATE ROLE {role} LOGIN")
    with removed(postgres.address()) as address:
        try:
            yield address.replace("//postgres@", f"//{role}@"), role
        finally:
            postgres.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_user_who_may_only_search(
    postgres: Postgres, guest: tuple[str, str], tmp_path: Path
) -> None:
    place, role = guest
    folder = make_strings(tmp_path)
    address = in_engine(folder, place.replace(f"//{role}@", "//postgres@"))
    rights = f"ON {table_of(address)}, flowhash_tables"
    postgres.sql(f"GRANT SELECT {rights} TO {role}")
    asked = {"embedding": [1, 0, 0, 0], "buckets": [1, 2, 3], "top": 5}
    new = {"items": [{"embedding": [1, 0, 0, 0], "code": [1, 2], "id": "new"}]}
    process = start(place)
    assert process.stdout is not None
    server = started(process, place, None)
    try:
        with serving((folder, None, {"read_only": True})) as (reader,):
            expected = reader.client.post("/items", json=new)
            assert reader.client.get("/stats").json()["writable"] is False
        assert server.client.get("/stats").json()["writable"] is False
        assert server.client.get("/stats").json()["needs_key"] is False
        for answer in (server.client.post("/items", json=new), server.client.delete("/items/x")):
            assert message_of(answer, 403, "read_only")
            assert answer.json() == expected.json()
        assert server.search(**asked)["items"] == 300
        # The right comes and goes while the server runs.
        postgres.sql(f"GRANT INSERT, UPDATE, DELETE {rights} TO {role}")
        until(lambda: server.client.get("/stats").json()["writable"])
        assert server.client.post("/items", json=new).json()["total"] == 301
        postgres.sql(f"REVOKE INSERT, UPDATE, DELETE {rights} FROM {role}")
        assert server.client.post("/items", json=new).json() == expected.json()
        assert server.client.delete("/items/new").json() == expected.json()
        until(lambda: not server.client.get("/stats").json()["writable"])
        # Somebody who may not even search is no matter of the client's.
        postgres.sql(f"REVOKE SELECT {rights} FROM {role}")
        message_of(server.client.post("/search", json=asked), 503, "storage")
    finally:
        code = server.stop(signal.SIGTERM)
        said = process.stderr.read() if process.stderr is not None else ""
    assert code == 0, said
    assert "permission denied" in said
    assert "Traceback" not in said


def test_a_right_that_is_lost_is_told_at_once(
    postgres: Postgres, guest: tuple[str, str], tmp_path: Path
) -> None:
    """Before anybody has looked at the rights again."""
    place, role = guest
    address = in_engine(make_strings(tmp_path), place.replace(f"//{role}@", "//postgres@"))
    rights = f"ON {table_of(address)}, flowhash_tables"
    postgres.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE {rights} TO {role}")
    new = {"items": [{"embedding": [1, 0, 0, 0], "code": [1, 2], "id": "new"}]}
    with open_engine(place, "r+") as engine:
        app = create_app(engine)
        assert app.state.service.guard.writable

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1"
            ) as client:
                assert (await client.post("/items", json=new)).status_code == 201
                postgres.sql(f"REVOKE UPDATE {rights} FROM {role}")
                return await client.post("/items", json=new)

        message_of(finished(ask()), 403, "read_only")
        app.state.service.close()


def test_the_line_at_the_start_says_who_may_not_write(
    postgres: Postgres, guest: tuple[str, str], tmp_path: Path
) -> None:
    place, role = guest
    address = in_engine(make_strings(tmp_path), place.replace(f"//{role}@", "//postgres@"))
    postgres.sql(f"GRANT SELECT ON {table_of(address)}, flowhash_tables TO {role}")
    process = start(place)
    assert process.stdout is not None
    try:
        assert "read only: the database does not let this user" in process.stdout.readline()
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A PostgreSQL that is killed."""
    with running_server() as server:
        yield server


def until(true: Any) -> None:
    """Wait for something that comes by itself."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_lost_database_comes_back(own_server: Server, way: str, tmp_path: Path) -> None:
    place = in_engine(make_strings(tmp_path), own_server.guarded(table=f"lost_{way}"))
    process = start(place)
    server = started(process, place, None)
    asked = {"embedding": [1, 0, 0, 0], "buckets": [1, 2, 3], "top": 5}
    new = {"items": [{"embedding": [1, 0, 0, 0], "code": [1, 2], "id": "new"}]}
    try:
        before = without_time(server.client.post("/search", json=asked))
        getattr(own_server, way)()
        try:
            for answer in (
                server.client.post("/search", json=asked),
                server.client.get("/items"),
                server.client.post("/items", json=new),
            ):
                message = message_of(answer, 503, "storage")
                assert "again" in message
                assert "correct" not in message  # the password
            until(lambda: server.client.get("/health").status_code == 503)
            numbers = [NUMBER.findall(message_of(server.client.get("/health"), 503, "storage"))]
            answer = server.client.get("/items/x")
            numbers.append(NUMBER.findall(message_of(answer, 503, "storage")))
            assert answer.headers["retry-after"] == "1"
            answer = server.client.post("/search", json=asked)
            numbers.append(NUMBER.findall(message_of(answer, 503, "storage")))
            assert len(numbers[0]) == 1
            assert numbers[1:] == numbers[:1] * 2
            assert server.client.get("/metrics").status_code == 200
            assert server.client.get("/").status_code == 200
        finally:
            own_server.start()
        until(lambda: server.client.get("/health").status_code == 200)
        assert without_time(server.client.post("/search", json=asked)) == before
        assert server.client.post("/items", json=new).json()["total"] == 301
    finally:
        code = server.stop(signal.SIGTERM)
        said = process.stderr.read() if process.stderr is not None else ""
    assert code == 0, said
    assert "Traceback" not in said
    assert "can be read again" in said
    assert said.count(numbers[0][0]) == 1
    assert "staple" not in said


def test_an_engine_says_when_its_calibration_is_old(address: str, tmp_path: Path) -> None:
    encoder = make_encoder("linear", base=False)
    items = np.random.default_rng(0).normal(size=(200, DIM)).astype(np.float32)
    with encoder.create_table(tmp_path / "table") as table:
        encoder.add(table, items)
        copy(table, address)
    made = encoder.encode(items[:60])
    with removed(address), open_engine(address, "r+") as engine:
        engine.calibrate(made.activations, made.embeddings, tops=5)
        body = {
            "embedding": made.embeddings[0].tolist(), "activations": made.activations[0].tolist(),
            "top": 5, "recall": 0.8,
        }  # fmt: skip

        async def ask() -> list[Any]:
            transport = httpx.ASGITransport(create_app(engine))
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1"
            ) as client:
                before = (await client.get("/stats")).json()["recall"]
                engine.delete(list(range(50)))
                after = (await client.get("/stats")).json()["recall"]
                with warnings.catch_warnings():  # which stop no search of a server
                    warnings.simplefilter("error")
                    found = await client.post("/search", json=body)
                return [before, after, found.status_code]

        before, after, status = finished(ask())
    assert (before["changed"], before["old"]) == (0, False)
    assert (after["changed"], after["old"], after["items"]) == (50, True, 200)
    assert status == 200


def test_an_engine_behind_an_app(address: str, tmp_path: Path) -> None:
    """``create_app`` takes what is open; queries that meet are searched together."""
    place = in_engine(make_strings(tmp_path), address)
    codes, embeddings = raw_items(9, 12)
    asked = [
        {"embedding": embedding.tolist(), "buckets": code.tolist(), "top": 10}
        for code, embedding in zip(codes, embeddings, strict=True)
    ]
    with open_engine(place) as engine:
        app = create_app(engine, None, ServeOptions())

        async def ask() -> list[httpx.Response]:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1"
            ) as client:
                return await asyncio.gather(*(client.post("/search", json=one) for one in asked))

        answers = finished(ask())
        app.state.service.close()
    with HashTable.open(tmp_path / "table") as table:
        hits = table.search(codes, embeddings, 10)
    for row, answer in enumerate(answers):
        (found,) = without_time(answer)["answers"]
        count = int(hits.counts[row])
        assert [hit["id"] for hit in found["hits"]] == hits.ids[row, :count].tolist()
        distances = [hit["distance"] for hit in found["hits"]]
        np.testing.assert_allclose(distances, hits.distances[row, :count], rtol=1e-5, atol=1e-6)
        assert found["scanned"] == hits.scanned[row]
