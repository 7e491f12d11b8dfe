"""Queries that are searched together get each its own answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest

from flowhash.serve import search_executor
from flowhash.serve.errors import RequestError
from flowhash.serve.metrics import Metrics
from flowhash.serve.search_executor import QueryBatcher, SearchExecutor, SearchQuery
from flowhash.table import HashTable
from tests.serve.conftest import Servers
from tests.serve.servers import ACTIVE, BUCKETS, DIM, PATIENCE, finished, message_of, raw_items


@dataclass(eq=False)
class Word:
    """A query of the batcher's own tests."""

    text: str
    group: int = 0
    size: int = 1

    def __len__(self) -> int:
        return self.size


class Echo:
    """Answers each query with its text; waits where it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go = threading.Event()

    def __call__(self, words: Sequence[Word]) -> list[bytes | BaseException]:
        self.batches.append([word.text for word in words])
        assert self.go.wait(PATIENCE)
        if any(word.text == "broken" for word in words):
            raise RuntimeError("on purpose")
        return [
            RequestError(422, "wrong") if word.text == "wrong" else word.text.encode()
            for word in words
        ]


def asked(echo: Echo, words: list[Word], most: int = 4, timeout: float = PATIENCE) -> list[Any]:
    """Ask all at once, let them go, and give back answers or exceptions."""

    async def all_of_them() -> list[Any]:
        batcher = QueryBatcher(echo, most, timeout, PATIENCE, "test")
        jobs = [asyncio.create_task(batcher.ask(word)) for word in words]
        await asyncio.sleep(0.05)
        echo.go.set()
        try:
            return await asyncio.gather(*jobs, return_exceptions=True)
        finally:
            batcher.close()

    return finished(all_of_them())


def test_what_waits_is_answered_together_and_in_order() -> None:
    echo = Echo()
    words = [Word(str(number)) for number in range(11)]
    assert asked(echo, words) == [word.text.encode() for word in words]
    assert [len(batch) for batch in echo.batches] == [4, 4, 3]
    assert [text for batch in echo.batches for text in batch] == [word.text for word in words]


def test_groups_never_mix_and_none_starves() -> None:
    echo = Echo()
    words = [Word(f"{group}-{place}", group) for place in range(5) for group in range(3)]
    assert asked(echo, words, most=2) == [word.text.encode() for word in words]
    assert all(len({text[0] for text in batch}) == 1 for batch in echo.batches)
    assert [batch[0][0] for batch in echo.batches[:3]] == ["0", "1", "2"]


def test_rows_count_not_queries() -> None:
    echo = Echo()
    words = [Word("a", size=3), Word("b", size=2), Word("c", size=9), Word("d")]
    assert asked(echo, words) == [b"a", b"b", b"c", b"d"]
    assert echo.batches == [["a"], ["b"], ["c"], ["d"]]


def test_one_that_is_wrong_is_alone_with_it() -> None:
    answers = asked(Echo(), [Word("a"), Word("wrong"), Word("b")])
    assert (answers[0], answers[2]) == (b"a", b"b")
    assert isinstance(answers[1], RequestError)


def test_a_fault_reaches_everyone_of_the_batch_and_nobody_after() -> None:
    answers = asked(Echo(), [Word("a"), Word("broken"), Word("b", 1)])
    assert [type(answer) for answer in answers] == [RuntimeError, RuntimeError, bytes]


def test_who_waits_too_long_is_told_and_not_searched() -> None:
    echo = Echo()

    async def late() -> list[Any]:
        batcher = QueryBatcher(echo, 4, 0.1, PATIENCE, "test")
        first = asyncio.create_task(batcher.ask(Word("first")))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(batcher.ask(Word("second")))
        answers = await asyncio.gather(first, second, return_exceptions=True)
        echo.go.set()
        answers.append(await batcher.ask(Word("third")))
        batcher.close()
        return answers

    answers = finished(late())
    assert [getattr(answer, "status", None) for answer in answers[:2]] == [504, 504]
    assert answers[2] == b"third"
    assert echo.batches == [["first"], ["third"]]


def test_a_query_that_cannot_be_searched_fails_alone() -> None:
    codes, embeddings = raw_items(0)
    table = HashTable.create(buckets=BUCKETS, dim=DIM, active=ACTIVE, metric="cosine")
    table.add(codes, embeddings)
    searching = SearchExecutor(table, None, Metrics(lambda: 0), None)
    order = np.arange(ACTIVE, dtype=np.int32)[None]
    rows = [embeddings[[0]], np.zeros((1, DIM), np.float32), embeddings[[1]]]
    queries = [SearchQuery(row, order, 3, None, None, False) for row in rows]
    answers = searching.batch(queries)
    assert isinstance(answers[0], bytes)
    assert isinstance(answers[2], bytes)
    assert answers[0] != answers[2]
    assert isinstance(answers[1], RequestError)
    assert answers[1].status == 422


def test_everybody_gets_the_right_answer_at_the_same_time(servers: Servers) -> None:
    """Different queries and options, wrong ones among them, all at once on a real server."""
    random = np.random.default_rng(4)
    wanted: list[tuple[dict[str, Any], Any]] = []
    with HashTable.open(servers.strings.table) as table:
        for number in range(300):
            query = random.normal(size=DIM).astype(np.float32)
            order = random.permutation(BUCKETS)[: random.integers(ACTIVE, 5)].astype(np.int32)
            top = int(random.integers(1, 4))
            options = {"top": top, "payloads": bool(number % 2)}
            body = {"embedding": query.tolist(), "buckets": order.tolist(), **options}
            expected = table.search(order[None], query[None], top).ids[0].tolist()
            if number % 10 == 3:
                body["embedding"], expected = [0.0] * DIM, None
            if number % 10 == 7:
                body["buckets"], expected = [1, 1], None
            wanted.append((body, expected))

    async def all_of_them() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=60)
        async with httpx.AsyncClient(
            base_url=servers.strings.url, timeout=PATIENCE, limits=limits
        ) as client:
            return await asyncio.gather(*(client.post("/search", json=body) for body, _ in wanted))

    for answer, (_, expected) in zip(finished(all_of_them()), wanted, strict=True):
        if expected is None:
            message_of(answer, 422)
        else:
            assert [hit["id"] for hit in answer.json()["answers"][0]["hits"]] == expected


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("payloads", [True, False])
def test_a_batch_answers_as_one_by_one(count: int, payloads: bool) -> None:
    """Also where it is cut into pieces for the table, and where queries leave an item out."""
    codes, embeddings = raw_items(0)
    table = HashTable.create(buckets=BUCKETS * 10, dim=DIM, active=ACTIVE)
    table.add(codes * 10, embeddings, payloads=[{"row": row} for row in range(len(codes))])
    searching = SearchExecutor(table, None, Metrics(lambda: 0), None)
    queries = []
    for row in range(count):
        query = SearchQuery(embeddings[[row]], codes[[row]] * 10, 3, None, None, payloads)
        query.without = row
        queries.append(query)
    together = [json.loads(body) for body in searching.batch(queries)]  # type: ignore[arg-type]
    alone = [json.loads(searching.batch([query])[0]) for query in queries]  # type: ignore[arg-type]
    for row, (one, other) in enumerate(zip(together, alone, strict=True)):
        assert one["answers"] == other["answers"]
        inside = np.flatnonzero(np.isin(codes, codes[row]).any(1))
        distances = ((embeddings[inside] - embeddings[row]) ** 2).sum(1)
        nearest = [each for each in inside[np.argsort(distances)].tolist() if each != row][:3]
        assert [hit["id"] for hit in one["answers"][0]["hits"]] == nearest
        shown = [hit["payload"] for hit in one["answers"][0]["hits"]]
        assert shown == ([{"row": each} for each in nearest] if payloads else [None] * 3)


@pytest.mark.parametrize("kind", ["int64", "string"])
@pytest.mark.parametrize("queries", [1, 20])  # one call of the table, and several
def test_an_answer_is_of_one_state_while_others_write(
    monkeypatch: pytest.MonkeyPatch, kind: str, queries: int
) -> None:
    """All items are replaced whenever a search has taken a step: places, buckets and payloads."""
    names: list[Any] = [0, 1, 2] if kind == "int64" else ["a", "b", "c"]
    table = HashTable.create(buckets=40, dim=1, ids=kind)
    versions = 0

    def change() -> None:
        nonlocal versions
        versions += 1
        rows = np.arange(3)[:, None]
        payloads = [{"version": versions}] * 3
        table.add(0 * rows + versions % 2, rows + 10 * versions, names, payloads)
        table.compact()

    def changing(step: Any) -> Any:
        def changed(*given: Any, **named: Any) -> Any:
            change()
            try:
                return step(*given, **named)
            finally:
                change()

        return changed

    change()
    searching = SearchExecutor(table, None, Metrics(lambda: 0), None)
    step = changing(search_executor._search_state)
    monkeypatch.setattr(search_executor, "_search_state", step)
    monkeypatch.setattr(table, "_searcher_of", changing(table._searcher_of))
    order = np.tile(np.array([0, 1], np.int32), (queries, 1))
    query = SearchQuery(np.zeros((queries, 1), np.float32), order, 5, 2, None, True)
    (answer,) = searching.batch([query])
    assert isinstance(answer, bytes)
    assert versions > 2
    shown = set()
    for line in json.loads(answer)["answers"]:
        assert [hit["id"] for hit in line["hits"]] == names
        for row, hit in enumerate(line["hits"]):
            version = hit["payload"]["version"]
            assert hit["buckets"] == [version % 2]
            assert hit["distance"] == (row + 10 * version) ** 2
            shown.add(version)
    assert len(shown) == 1
