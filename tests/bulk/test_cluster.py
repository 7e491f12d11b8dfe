"""The same work on a real cluster of three nodes, one of which dies in the middle."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

from flowhash.bulk import (
    LocalRunner,
    RayRunner,
    Source,
    encode,
    index,
    neighbours,
    ray_runner as cluster_module,
    read_answers,
    search,
)
from flowhash.bulk.ray_runner import RayHead, connect, head_of
from flowhash.bulk.runners import Done
from flowhash.cli.output import in_words
from flowhash.errors import DamagedFileError, InputError
from flowhash.table import HashTable
from flowhash.table.integrity import folder_faults
from tests.bulk.builders import Items, content_of, make_table, random_order, wrong_answers
from tests.bulk.clusters import Deadly, Idle, OneNode, ThreeNodes, Torn, Unlucky
from tests.encoder.encoders import items_of, make
from tests.table.oracles import contents, model_contents


@pytest.fixture(scope="module")
def started() -> Iterator[ThreeNodes]:
    nodes = ThreeNodes()
    yield nodes
    nodes.close()


@pytest.fixture
def nodes(started: ThreeNodes) -> ThreeNodes:
    started.restore()
    return started


def asked(tmp_path: Path, count: int, width: int) -> tuple[Any, Any]:
    random = np.random.default_rng(8)
    order, queries = random_order(random, count, width), random.normal(size=(count, 6))
    np.savez(tmp_path / "queries.npz", buckets=order, embeddings=queries.astype(np.float32))
    return order, queries.astype(np.float32)


def test_search_while_a_node_dies(tmp_path: Path, nodes: ThreeNodes) -> None:
    items = Items(300, 2, "string")
    make_table(tmp_path / "table", items, [100])
    order, queries = asked(tmp_path, 90, 3)
    with Unlucky(nodes) as runner:
        search(
            tmp_path / "table", tmp_path / "queries.npz", tmp_path / "out", runner, top=7,
            probe=3, rows=10,
        )  # fmt: skip
        assert runner.losses == 1
    assert not wrong_answers(tmp_path / "out", items.model(), order, queries, 7, 3, "euclidean")
    assert not list((tmp_path / "out").glob(".part*"))


def test_search_while_a_worker_dies_before_it_names_its_part(
    tmp_path: Path, nodes: ThreeNodes
) -> None:
    items = Items(60, 2)
    make_table(tmp_path / "table", items, [])
    order, queries = asked(tmp_path, 40, 2)

    class Tearing(RayRunner):
        def run(self, job: Any, parts: Any) -> Iterator[Done]:
            return super().run(Torn(job, tmp_path / "flag"), parts)

    with Tearing(nodes.address) as runner:
        search(
            tmp_path / "table", tmp_path / "queries.npz", tmp_path / "out", runner, top=4, rows=10
        )
    assert int((tmp_path / "flag").read_text()) >= 1  # it had left something
    assert not wrong_answers(tmp_path / "out", items.model(), order, queries, 4, 2, "euclidean")
    assert not list((tmp_path / "out").glob(".part*"))


@pytest.mark.long
def test_index_while_a_node_dies(tmp_path: Path, nodes: ThreeNodes) -> None:
    items = Items(80, 2, among=60)
    cuts = list(range(10, 80, 10))
    encoded = items.write(tmp_path / "encoded", cuts)
    with Unlucky(nodes) as runner:
        found, _ = index(encoded, tmp_path / "table", runner, rows=10)
        assert runner.losses == 1
    assert folder_faults(tmp_path / "table") == []
    with HashTable.open(tmp_path / "table") as table:
        assert contents(table) == model_contents(items.model())
        assert len(table) == found == len(set(items.ids))


@pytest.mark.long
def test_encode_while_a_node_dies(tmp_path: Path, nodes: ThreeNodes) -> None:
    make("mlp").save(tmp_path / "encoder")
    np.save(tmp_path / "items.npy", items_of("mlp", 80))
    source = Source(str(tmp_path / "items.npy"))
    encode(tmp_path / "encoder", source, tmp_path / "here", LocalRunner(), rows=10)
    with Unlucky(nodes) as runner:
        encode(tmp_path / "encoder", source, tmp_path / "there", runner, rows=10)
        assert runner.losses == 1
    here, there = (content_of(tmp_path / name) for name in ("here", "there"))
    assert [line["id"] for line in there] == list(range(80))
    for one, other in zip(here, there, strict=True):
        # Another number of threads may round the last bit otherwise.
        np.testing.assert_allclose(one.pop("embedding"), other.pop("embedding"), 1e-5, 1e-6)
        assert one == other


@pytest.mark.long
def test_neighbours_while_a_worker_dies(tmp_path: Path, nodes: ThreeNodes) -> None:
    make_table(tmp_path / "table", Items(200, 2), [100])
    neighbours(tmp_path / "table", tmp_path / "here", LocalRunner(), top=5)
    with Unlucky(nodes, "worker") as runner:
        neighbours(tmp_path / "table", tmp_path / "there", runner, top=5, rows=25)
        assert runner.losses == 1
    here, there = (read_answers(tmp_path / name) for name in ("here", "there"))
    assert np.array_equal(here.queries, there.queries)
    for name in ("ids", "distances", "counts", "scanned"):
        assert np.array_equal(getattr(here.hits, name), getattr(there.hits, name))


@pytest.mark.long
def test_a_mistake_is_not_tried_again(
    tmp_path: Path, nodes: ThreeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = Items(20).write(tmp_path / "encoded", [10])
    path = encoded / "part-000001.parquet"
    whole = bytearray(path.read_bytes())
    whole[30] ^= 1
    path.write_bytes(whole)
    monkeypatch.setattr(cluster_module, "MOST_DEATHS", 2)
    with RayRunner(nodes.address) as runner:
        with pytest.raises(DamagedFileError, match=r"part-000001\.parquet cannot be read"):
            index(encoded, tmp_path / "table", runner, rows=10)
        with pytest.raises(InputError, match="part 0 has ended 2 workers"):
            list(runner.run(Deadly(), [0]))
        # The runner can be used again.
        Items(20).write(encoded, [10])
        index(encoded, tmp_path / "table", runner, rows=10, restart=True)
    with HashTable.open(tmp_path / "table") as table:
        assert contents(table) == model_contents(Items(20).model())


def test_workers_that_died_idle_are_no_fault_of_a_part(
    nodes: ThreeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "MOST_DEATHS", 1)
    with RayRunner(nodes.address, 2) as runner:
        assert len(list(runner.run(Idle(), range(4)))) == 4
        assert runner._idle
        for worker in runner._idle:
            ray.kill(worker)
        assert [done.part for done in runner.run(Idle(), [100])] == [100]
        with pytest.raises(InputError, match="part 7 has ended 1 workers"):
            list(runner.run(Deadly(), [7]))


def test_the_job_is_sent_once(nodes: ThreeNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[Any] = []
    real = ray.put
    monkeypatch.setattr(ray, "put", lambda value: put.append(value) or real(value))
    with RayRunner(nodes.address, 2) as runner:
        assert len(list(runner.run(Idle(), range(6)))) == 6
    assert put == [Idle()]


def test_a_worker_encodes_with_its_own_threads(tmp_path: Path) -> None:
    import torch

    make("mlp").save(tmp_path / "encoder")
    np.save(tmp_path / "items.npy", items_of("mlp", 8))
    seen: list[int] = []

    class OneThread(LocalRunner):
        def run(self, job: Any, parts: Any) -> Any:
            before = torch.get_num_threads()
            torch.set_num_threads(2)
            try:
                for part in parts:
                    yield Done(part, job.do(job.open(), part, 1))
                    seen.append(torch.get_num_threads())
            finally:
                torch.set_num_threads(before)

    encode(tmp_path / "encoder", Source(str(tmp_path / "items.npy")), tmp_path / "out", OneThread())
    assert seen == [1]


def test_one_cpu_stays_free(nodes: ThreeNodes) -> None:
    with RayRunner(nodes.address) as runner:
        assert runner._size() == 2
    with RayRunner(nodes.address, 5) as runner:  # half a CPU each
        assert runner._size() == 5
    with (
        RayRunner(nodes.address, 6) as runner,
        pytest.raises(InputError, match="has 3 CPUs; expected 5 at the most"),
    ):
        list(runner.run(Deadly(), [0]))


@pytest.mark.long
def test_the_command_on_a_cluster(tmp_path: Path, nodes: ThreeNodes) -> None:
    items = Items(60, 2)
    make_table(tmp_path / "table", items, [])
    order, queries = asked(tmp_path, 40, 2)
    words = ["search", "table", "queries.npz", "--out", "out", "--top", "4", "--rows", "10"]
    done = subprocess.run(
        [sys.executable, "-m", "flowhash", "bulk", *words, "--json", "--ray", nodes.address],
        cwd=tmp_path, capture_output=True, text=True, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"parts": 4' in done.stdout
    assert not wrong_answers(tmp_path / "out", items.model(), order, queries, 4, 2, "euclidean")


@pytest.mark.parametrize(
    ("address", "variable", "client", "expected"),
    [
        ("10.0.0.1:6379", "", False, "10.9.9.9:6379"),
        ("local", "ray://10.0.0.2:10001", False, "10.9.9.9:6379"),
        ("auto", "", False, "10.9.9.9:6379"),
        ("auto", "10.0.0.1:6379", False, "10.9.9.9:6379"),
        # Through a client only the client's own server can be seen.
        ("ray://10.0.0.1:10001", "", True, "ray://10.0.0.1:10001"),
        ("auto", "ray://10.0.0.2:10001", True, "ray://10.0.0.2:10001"),
        ("auto", "", True, None),  # a connection of the caller's
    ],
)
def test_where_the_head_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, address: str, variable: str, client: bool, expected: str | None
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", variable)
    inside = SimpleNamespace(gcs_address="10.9.9.9:6379")
    connected = SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: client))
    ray = SimpleNamespace(
        util=SimpleNamespace(client=connected), get_runtime_context=lambda: inside
    )
    assert head_of(ray, address) == expected


# The command, which gives a head that is gone two seconds.
SOON = """
import sys
from flowhash.bulk import ray_runner as connection
from flowhash.cli import main
connection.GONE_SECONDS = 2.0
main(sys.argv[1:])
"""
QUERIES = 400


def begun(tmp_path: Path, address: str) -> tuple[subprocess.Popen[str], list[Any]]:
    """A search of many parts on a cluster, in the middle; what is to come of it."""
    items = Items(60, 2)
    make_table(tmp_path / "table", items, [])
    order, queries = asked(tmp_path, QUERIES, 2)
    words = ["search", "table", "queries.npz", "--out", "out", "--top", "4", "--rows", "1"]
    process = subprocess.Popen(
        [sys.executable, "-c", SOON, "bulk", *words, "--quiet", "--ray", address],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=dict(os.environ),
    )  # fmt: skip
    while len(list(tmp_path.glob("out/part-*"))) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process, [items.model(), order, queries, 4, 2, "euclidean"]


def goes_on(tmp_path: Path, nodes: ThreeNodes, expected: list[Any]) -> None:
    """The same work on another cluster, or the same: only what is missing is done; exact."""
    there = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/part-*")}
    assert 3 <= len(there) < QUERIES
    with RayRunner(nodes.address) as runner:
        work = search(
            tmp_path / "table", tmp_path / "queries.npz", tmp_path / "out", runner, top=4, rows=1
        )
    assert work.before >= len(there)  # a worker may have finished its part meanwhile
    assert all(path.stat().st_mtime_ns == when for path, when in there.items())
    assert not wrong_answers(tmp_path / "out", *expected)
    assert not list((tmp_path / "out").glob(".part*"))


@pytest.mark.long
def test_the_command_is_killed(tmp_path: Path, nodes: ThreeNodes) -> None:
    process, expected = begun(tmp_path, nodes.address)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    goes_on(tmp_path, nodes, expected)


@pytest.mark.long
def test_the_head_is_lost(tmp_path: Path, nodes: ThreeNodes) -> None:
    one = OneNode()
    try:
        process, expected = begun(tmp_path, one.address)
        one.kill()
        _, said = process.communicate()
    finally:
        one.close()
    assert process.returncode == 2, said
    waiting, gone = said.strip().splitlines()
    assert waiting.endswith("does not answer; waiting 2 s for it")
    assert f"the cluster at {one.address} is gone (its head has not answered for" in gone
    assert gone.endswith("the same command goes on with the parts that are missing")
    goes_on(tmp_path, nodes, expected)


def test_a_head_that_comes_back(capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowhash.bulk.ray_runner.LOOK_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        head = RayHead(f"127.0.0.1:{port}")
        assert head.look()
    assert not head.look()
    assert not head.look()
    assert capfd.readouterr().err.count("does not answer; waiting 30 s") == 1
    with socket.create_server(("127.0.0.1", port)):
        assert head.look()
    assert not head.look()
    monkeypatch.setattr("flowhash.bulk.ray_runner.GONE_SECONDS", 0.0)
    with pytest.raises(ConnectionError, match="has not answered for"):
        head.look()
    assert RayHead(None).look()


@pytest.mark.long
def test_no_cpu_is_free(
    nodes: ThreeNodes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It waits, says so, and goes on when there is one."""
    monkeypatch.setattr(cluster_module, "PATIENCE", 1.0)
    say, others = RayRunner._say_waiting, list[Any]()

    def then_free(runner: RayRunner) -> float:
        for other in others:
            ray.kill(other)
        others.clear()
        return say(runner)

    monkeypatch.setattr(RayRunner, "_say_waiting", then_free)
    with RayRunner(nodes.address) as runner:
        others += nodes.occupy()
        assert len(list(runner.run(Idle(), range(3)))) == 3
    said = capfd.readouterr().err
    assert f"waiting for a free CPU of the cluster at {nodes.address}, which has 3 CPUs" in said


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nowhere", "expected local, auto, host:port or ray://host:port"),
        ("127.0.0.1:{port}", "no Ray cluster answers at 127.0.0.1"),
        ("ray://127.0.0.1:{port}", "no Ray cluster answers at ray://127.0.0.1"),
    ],
)
def test_an_address_that_does_not_answer(address: str, words: str) -> None:
    with socket.socket() as other:  # bound, but nobody listens
        other.bind(("127.0.0.1", 0))
        with pytest.raises(InputError, match=words):
            RayRunner(address.format(port=other.getsockname()[1]))


@pytest.mark.parametrize(
    ("address", "told", "raised", "words"),
    [
        ("auto", "", ConnectionError("set `--address`"), "address auto finds no Ray cluster on"),
        ("auto", "127.0.0.1:1", None, "at 127.0.0.1:1, which RAY_ADDRESS names: .*refused; start"),
        (
            "auto", "", RuntimeError("Version mismatch: it has:\n Ray: 9\nThis has:\n Ray: 2.6\n"),
            "auto gets .* this machine: Version mismatch: it has: Ray: 9 This has: Ray: 2.6;",
        ),
        ("local", "", RuntimeError("no\nmemory"), "does not start: no memory; use LocalRunner"),
    ],
)  # fmt: skip
def test_no_cluster_is_found(
    address: str, told: str, raised: Exception | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", told)

    class Ray:
        @staticmethod
        def init(**_: Any) -> None:
            assert raised is not None
            raise raised

    with pytest.raises(InputError, match=words) as error:
        connect(Ray, address, 2)
    assert "\n" not in str(error.value)
    assert "--address" not in str(error.value)  # Ray's own option, which is none of ours
    if address == "local":
        assert in_words(error.value).endswith("leave --ray out to work in this process")
