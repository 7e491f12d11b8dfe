"""A recall asked of real servers: by vector, image, id and activations; alone, and among others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from flowhash.encoder import Encoder
from flowhash.serve import create_app
from flowhash.serve.search_executor import SearchQuery
from flowhash.table import RECALL_TOPS, HashTable, Hits, open_buckets
from tests.encoder.encoders import DIM, items_of, make
from tests.serve.conftest import Servers
from tests.serve.servers import (
    PATIENCE,
    Server,
    finished,
    image_file,
    make_images,
    message_of,
    serving,
)

ITEMS, TOP = 1_500, 10
MIDDLES = np.random.default_rng(3).normal(size=(12, DIM))


def drawn(seed: int, count: int) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    near = MIDDLES[random.integers(0, 12, count)] + 0.3 * random.normal(size=(count, DIM))
    return near.astype(np.float32)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """With an encoder that takes embeddings; without one; and with one that takes images."""
    folder = tmp_path_factory.mktemp("recall")
    encoder = make("linear", base=False)
    encoder.save(folder / "encoder")
    with encoder.create_table(folder / "table") as table:
        encoder.add(table, drawn(0, ITEMS))
        made = encoder.encode(drawn(1, 400))
        table.calibrate(made.activations, made.embeddings)
    images, taker = make_images(tmp_path_factory.mktemp("images"))
    with HashTable.open(images, "r+") as table:
        made = Encoder.load(taker).encode(items_of("residual", 60))
        table.calibrate(made.activations, made.embeddings, tops=(5,))
    with serving(
        (folder / "table", folder / "encoder", {"read_only": True}),
        (folder / "table", None, {"read_only": True}),
        (images, taker, {"read_only": True}),
    ) as servers:
        yield servers


def read(server: Server) -> tuple[HashTable, Any]:
    assert isinstance(server.table, Path)
    return HashTable.open(server.table), Encoder.load(
        server.encoder or server.table.parent / "encoder"
    )


def check(answer: dict[str, Any], expected: Hits, row: int, recall: float | None) -> None:
    """One query's answer is what the table finds."""
    count = int(expected.counts[row])
    found = answer["answers"][0]
    assert [hit["id"] for hit in found["hits"]] == expected.ids[row, :count].tolist()
    assert len(found["opened"]) == expected.opened[row]
    assert found["scanned"] == expected.scanned[row]
    assert answer["recall"] == recall


@pytest.mark.parametrize("recall", [0.8, 0.97, 1])
def test_every_answer_is_brute_force_over_the_buckets_that_the_recall_opens(
    calibrated: list[Server], recall: float
) -> None:
    table, encoder = read(calibrated[0])
    queries = drawn(2, 80)
    made = encoder.encode(queries)
    known = table.calibration
    assert known is not None
    order, opened = open_buckets(
        made.activations, table.bucket_loads(), known.temperature, known.threshold(recall, TOP)
    )
    answer = calibrated[0].search(vectors=queries.tolist(), top=TOP, recall=recall, payloads=False)
    assert answer["recall"] == recall
    stored = list(table.batches())
    items = np.concatenate([part.embeddings for part in stored]).astype(np.float64)
    codes = np.concatenate([part.codes for part in stored])
    ids = np.concatenate([part.ids for part in stored])
    reached = []
    for row, found in enumerate(answer["answers"]):
        assert found["opened"] == order[row, : opened[row]].tolist()
        far = np.square(items - made.embeddings[row]).sum(axis=1)
        inside = np.isin(codes, found["opened"]).any(axis=1)
        best = ids[inside][np.argsort(far[inside], kind="stable")[:TOP]].tolist()
        assert [hit["id"] for hit in found["hits"]] == best
        assert found["scanned"] == inside.sum()
        nearest = ids[np.argsort(far, kind="stable")[:TOP]].tolist()
        reached.append(len({*best} & {*nearest}) / TOP)
    assert np.mean(reached) > recall - 0.04
    if recall == 0.97:
        assert len({len(found["opened"]) for found in answer["answers"]}) > 1
    assert (np.mean([found["scanned"] for found in answer["answers"]]) < ITEMS) == (recall < 1)


def test_an_id_an_embedding_and_an_image_may_ask_for_a_recall(calibrated: list[Server]) -> None:
    table, encoder = read(calibrated[0])
    # One more is searched for, with the buckets of a recall of the top nearest.
    known = table.calibration
    assert known is not None
    ids = range(0, 600, 20)
    made = encoder.encode_stored(np.stack([table[item].embedding for item in ids]))
    (order, opened), (_, more) = (
        open_buckets(
            made.activations, table.bucket_loads(), known.temperature, known.threshold(0.97, top)
        )
        for top in (TOP, TOP + 1)
    )
    assert (opened != more).any()  # or nothing would be proven
    expected = table.search(order, made.embeddings, TOP + 1, probe=opened)
    for row, item in enumerate(ids):
        answer = calibrated[0].search(id=item, top=TOP, recall=0.97)
        others = [each for each in expected.ids[row].tolist() if each != item]
        assert [hit["id"] for hit in answer["answers"][0]["hits"]] == others[:TOP]
        assert answer["answers"][0]["opened"] == order[row, : opened[row]].tolist()

    asked = {"top": TOP, "recall": 0.9}
    item = table[17]
    made = encoder.encode_stored(item.embedding[None])
    whole = table.search(made.activations, made.embeddings, TOP, recall=0.9)
    body = {"embedding": item.embedding.tolist(), "activations": made.activations[0].tolist()}
    for server in calibrated[:2]:
        check(server.search(**body, **asked), whole, 0, 0.9)

    images, taker = read(calibrated[2])
    picture = items_of("residual", 3)[2]
    made = taker.encode(picture[None])
    expected = images.search(made.activations, made.embeddings, 5, recall=0.7)
    file = {"image": ("x.png", image_file(picture), "image/png")}
    form = {"top": "5", "recall": "0.7", "compare": "true"}
    got = calibrated[2].client.post("/search", files=file, data=form)
    assert got.status_code == 200, got.text
    check(got.json(), expected, 0, 0.7)
    assert got.json()["exhaustive"]["scanned"] == len(images)


def test_further_buckets_follow_those_of_the_recall(calibrated: list[Server]) -> None:
    table, encoder = read(calibrated[0])
    made = encoder.encode(drawn(6, 1))
    expected = table.search(made.activations, made.embeddings, TOP, recall=0.5, at_least=1_000)
    answer = calibrated[0].search(
        vector=drawn(6, 1)[0].tolist(), top=TOP, recall=0.5, at_least=1_000
    )
    check(answer, expected, 0, 0.5)
    assert answer["answers"][0]["scanned"] >= 1_000


def test_recall_and_probe_at_the_same_time_get_each_its_own_answer(
    calibrated: list[Server],
) -> None:
    table, encoder = read(calibrated[0])
    queries = drawn(4, 90)
    made = encoder.encode(queries)
    ways: list[dict[str, Any]] = [
        {"recall": 0.8}, {"recall": 0.95}, {"recall": 0.95, "top": 3}, {"probe": 1}, {"probe": 3},
        {},
    ]  # fmt: skip

    async def ask_all() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=60)
        async with httpx.AsyncClient(
            base_url=calibrated[0].url, timeout=PATIENCE, limits=limits
        ) as client:
            return await asyncio.gather(
                *(
                    client.post("/search", json={"vector": query, "top": TOP, **ways[row % 6]})
                    for row, query in enumerate(queries.tolist())
                )
            )

    for row, answer in enumerate(finished(ask_all())):
        way = {"top": TOP, **ways[row % 6]}
        order = (made.activations if "recall" in way else made.ordered_buckets(None))[[row]]
        expected = table.search(order, made.embeddings[[row]], **way)
        assert answer.status_code == 200, answer.text
        check(answer.json(), expected, 0, way.get("recall"))


def test_queries_of_other_recalls_never_share_a_search() -> None:
    rows = np.zeros((1, 2), np.float32)

    def group(top: int = 5, recall: float | None = None, without: int | None = None) -> Any:
        return SearchQuery(rows, None, top, None, None, True, recall, without).group

    alone = [
        group(), group(recall=0.9), group(recall=0.95), group(4, 0.9), group(4, 0.9, without=1)
    ]  # fmt: skip
    assert len(set(alone)) == len(alone)
    assert group(recall=0.9) == group(recall=0.9)


def test_a_recall_of_one_is_wide(calibrated: list[Server]) -> None:
    table, _ = read(calibrated[0])
    rows = np.zeros((1, 2), np.float32)

    def is_wide(recall: float) -> bool:
        return SearchQuery(rows, None, TOP, None, None, True, recall).is_wide(table)

    assert is_wide(1)  # although so few buckets may be opened at the highest recall below
    assert not is_wide(0.8)


def test_what_cannot_be_asked_is_said(calibrated: list[Server], servers: Servers) -> None:
    known, bare, images = calibrated
    vector = drawn(5, 1)[0].tolist()

    def refused(server: Server, **body: Any) -> str:
        return message_of(server.client.post("/search", json=body), 422)

    assert "recall and probe came together" in refused(known, vector=vector, recall=0.9, probe=2)
    assert "recall and probe came together" in refused(known, id=1, recall=0.9, probe=1)
    for wrong in (0, 1.01, -0.5, "0.9", True):
        assert refused(known, vector=vector, recall=wrong).startswith("recall is ")
    assert refused(known, vector=vector, recall=0.9, top=101) == (
        "recall was calibrated for up to 100 neighbours (for 1, 5, 10, 20, 50, 100), not for 101; "
        "ask for fewer, or calibrate again with `flowhash calibrate --top 101`"
    )
    assert "promise up to" in refused(known, vector=vector, recall=0.9999)
    embedding = [0.0] * known.client.get("/stats").json()["dim"]
    message = refused(known, embedding=embedding, buckets=[1], recall=0.9)
    assert "Send activations" in message
    assert "Activations go with recall" in refused(bare, embedding=embedding)
    assert "expected" in refused(bare, embedding=embedding, activations=[1.0], recall=0.9)
    assert "no encoder" in refused(bare, id=1, recall=0.9)
    assert "takes images" in refused(images, id=1, recall=0.9)
    message = refused(servers.vectors, vectors=items_of("mlp", 2).tolist(), recall=0.9)
    assert "never calibrated" in message
    assert "`flowhash calibrate`" in message
    file = {"image": ("x.png", image_file(items_of("residual", 1)[0]), "image/png")}
    for text in ("much", "1.5", "nan", "1e-3", "0"):
        answer = images.client.post("/search", files=file, data={"recall": text})
        assert message_of(answer, 422).startswith("recall is ")


def test_figures_say_what_a_recall_takes(calibrated: list[Server], servers: Servers) -> None:
    assert servers.vectors.client.get("/stats").json()["recall"] is None
    table, _ = read(calibrated[0])
    known = table.calibration
    assert known is not None
    for server in calibrated[:2]:
        figures = server.client.get("/stats").json()
        shown = figures["recall"]
        assert (shown["queries"], shown["items"], shown["stored"]) == (320, ITEMS, False)
        assert (shown["changed"], shown["old"]) == (0, False)
        assert shown["tops"] == list(RECALL_TOPS)
        assert shown["highest"] == pytest.approx(1 - 1 / 321)
        assert [(cost["top"], cost["recall"]) for cost in shown["expected"]] == [
            (top, recall) for top in RECALL_TOPS for recall in (0.8, 0.9, 0.95, 0.99)
        ]
        for cost in shown["expected"]:
            share, opened = known.expected(cost["recall"], cost["top"])
            assert (cost["scanned"], cost["opened"]) == (share, opened)
    stored = [server.client.get("/stats").json()["takes"] for server in calibrated]
    assert [takes and takes["stored"] for takes in stored] == [True, None, False]


def test_figures_say_when_the_calibration_is_old(tmp_path: Path) -> None:
    encoder = make("linear", base=False)
    with encoder.create_table(tmp_path / "table") as table:
        encoder.add(table, drawn(0, 200))
        made = encoder.encode(drawn(1, 100))
        table.calibrate(made.activations, made.embeddings, tops=(5,))

        async def changed() -> list[Any]:
            app = create_app(table, encoder)
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1"
            ) as client:
                before = (await client.get("/stats")).json()["recall"]
                items = [{"vector": row} for row in drawn(7, 41).tolist()]
                assert (await client.post("/items", json={"items": items})).status_code == 201
                after = (await client.get("/stats")).json()["recall"]
                # It answers all the same, and no warning stops it.
                body = {"vector": drawn(8, 1)[0].tolist(), "top": 5, "recall": 0.9}
                return [before, after, (await client.post("/search", json=body)).json()]

        before, after, answer = finished(changed())
    assert (before["changed"], before["old"]) == (0, False)
    assert (after["changed"], after["old"], after["items"]) == (41, True, 200)
    assert answer["recall"] == 0.9


def test_a_reader_sees_a_new_calibration(tmp_path: Path) -> None:
    encoder = make("linear", base=False)
    encoder.save(tmp_path / "encoder")
    with encoder.create_table(tmp_path / "table") as table:
        encoder.add(table, drawn(0, 200))
    body = {"vector": drawn(8, 1)[0].tolist(), "top": 5, "recall": 0.9}
    with serving((tmp_path / "table", tmp_path / "encoder", {"read_only": True})) as [server]:
        assert "never" in message_of(server.client.post("/search", json=body), 422)
        with HashTable.open(tmp_path / "table", "r+") as table:
            made = encoder.encode(drawn(1, 100))
            table.calibrate(made.activations, made.embeddings, tops=(5,))
        end = time.monotonic() + PATIENCE
        while server.client.get("/stats").json()["recall"] is None:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert server.search(**body)["recall"] == 0.9
