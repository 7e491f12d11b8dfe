"""Bulk encode in one process, and the commands as a person runs them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flowhash.bulk import Choices, LocalRunner, Source, TableChoices, encode, index
from flowhash.bulk.parquet_files import read_head
from flowhash.cli.app import _code
from flowhash.cli.commands import bulk as cli
from flowhash.cli.options import Opening
from flowhash.cli.output import Output
from flowhash.data import open_collection
from flowhash.data.preprocess import Preprocessing
from flowhash.encoder import Encoder
from flowhash.errors import InputError, StorageError
from flowhash.networks import EmbeddingNetwork, build_backbone
from flowhash.table import HashTable
from tests.bulk.builders import content_of
from tests.cli.commands import COMMAND, run
from tests.encoder.encoders import DIM, make
from tests.table.oracles import contents


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder of vectors, and vectors with labels."""
    folder = tmp_path_factory.mktemp("vectors")
    make("mlp").save(folder / "encoder")
    random = np.random.default_rng(5)
    labels = np.array(["ant", "bée", "cow"])[random.integers(0, 3, 70)]
    values = random.normal(size=(70, DIM)).astype(np.float32)
    np.savez(folder / "items.npz", embeddings=values, labels=labels)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder of images, and pictures."""
    folder = tmp_path_factory.mktemp("images")
    make("residual").save(folder / "encoder")
    random = np.random.default_rng(6)
    for number in range(11):
        place = folder / "pictures" / ("cats", "dogs")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (40, 30, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"no {number}.png")
    return folder


def columns_of(folder: Path) -> dict[str, Any]:
    table = pq.read_table(folder)
    return {name: table.column(name).to_pylist() for name in table.column_names}


@pytest.mark.parametrize("rows", [7, 70, 1000])
def test_what_is_written_is_what_the_encoder_makes(
    vectors: Path, tmp_path: Path, rows: int
) -> None:
    source = Source(str(vectors / "items.npz"))
    choices = Choices(probe=5, batch=3)
    work = encode(vectors / "encoder", source, tmp_path / "out", LocalRunner(), choices, rows=rows)
    assert work.plan.sizes == [min(rows, 70)] * (70 // min(rows, 70))
    encoder = make("mlp")
    made = encoder.encode(np.load(vectors / "items.npz")["embeddings"])
    found = columns_of(tmp_path / "out")
    assert found["id"] == list(range(70))
    assert found["code"] == made.codes.tolist()
    np.testing.assert_allclose(found["embedding"], made.embeddings, 1e-5, 1e-6)
    assert found["buckets"] == made.ordered_buckets(5).tolist()
    collection = open_collection(vectors / "items.npz")
    told = collection.payloads(0, collection.take(np.arange(70)), True)
    assert [json.loads(text) for text in found["payload"]] == told
    facts = read_head(tmp_path / "out" / "part-000000.parquet")[2]
    assert facts["encoder"] == encoder.fingerprint
    assert (facts["buckets"], facts["active"], facts["dim"]) == (11, 2, 4)


def test_images_have_names_and_pictures(images: Path, tmp_path: Path) -> None:
    source = Source(str(images / "pictures"))
    encode(images / "encoder", source, tmp_path / "one", LocalRunner(), rows=4)
    lines = content_of(tmp_path / "one")
    assert [line["id"] for line in lines] == list(open_collection(images / "pictures").names)
    assert all("picture" in json.loads(line["payload"]) for line in lines)
    plain = Choices(ids="numbers", pictures=False)
    encode(images / "encoder", source, tmp_path / "two", LocalRunner(), plain)
    assert [line["id"] for line in content_of(tmp_path / "two")] == list(range(11))
    assert not any(
        "picture" in json.loads(line["payload"]) for line in content_of(tmp_path / "two")
    )


def test_what_cannot_be_encoded(vectors: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def attempt(folder: Path, items: Path, choices: Choices | None = None) -> None:
        encode(folder / "encoder", Source(str(items)), out, LocalRunner(), choices or Choices())

    with pytest.raises(InputError, match="the encoder takes vectors"):
        attempt(vectors, images / "pictures")
    np.save(tmp_path / "wide.npy", np.zeros((3, DIM + 1), np.float32))
    with pytest.raises(InputError, match="does not fit the encoder"):
        attempt(vectors, tmp_path / "wide.npy")
    np.save(tmp_path / "empty.npy", np.zeros((0, DIM), np.float32))
    with pytest.raises(InputError):
        attempt(vectors, tmp_path / "empty.npy")
    with pytest.raises(InputError, match="probe is 99; expected 1 to 11"):
        attempt(vectors, vectors / "items.npz", Choices(probe=99))
    with pytest.raises(InputError, match="ids is 'words'"):
        attempt(vectors, vectors / "items.npz", Choices(ids="words"))
    assert not out.exists()


@pytest.mark.parametrize(("mean", "taken"), [(3.0, False), (0.0, True)])
def test_moved_vectors_have_no_angles(mean: float, taken: bool, tmp_path: Path) -> None:
    plain = EmbeddingNetwork(build_backbone({"name": "linear", "inputs": DIM}), None)
    preprocessing = Preprocessing("vectors", mean=np.float32([mean] * DIM))
    Encoder(plain, make("mlp").hash, preprocessing, 2).save(tmp_path / "encoder")
    np.save(tmp_path / "items.npy", np.ones((5, DIM), np.float32))
    encode(
        tmp_path / "encoder", Source(str(tmp_path / "items.npy")), tmp_path / "out", LocalRunner()
    )
    asked = TableChoices(metric="cosine")
    if taken:
        assert index(tmp_path / "out", tmp_path / "table", LocalRunner(), asked)[0] == 5
        return
    with pytest.raises(InputError, match="subtracts a mean from the vectors"):
        index(tmp_path / "out", tmp_path / "table", LocalRunner(), asked)
    assert index(tmp_path / "out", tmp_path / "table", LocalRunner())[0] == 5


def test_an_unfinished_folder_is_not_indexed(vectors: Path, tmp_path: Path) -> None:
    source = Source(str(vectors / "items.npz"))
    encode(vectors / "encoder", source, tmp_path / "out", LocalRunner(), rows=30)
    (tmp_path / "out" / "part-000001.parquet").unlink()
    with pytest.raises(StorageError, match="has 2 of 3 parts"):
        index(tmp_path / "out", tmp_path / "table", LocalRunner())
    assert not (tmp_path / "table").exists()
    work = encode(vectors / "encoder", source, tmp_path / "out", LocalRunner(), rows=30)
    assert work.before == 40
    assert index(tmp_path / "out", tmp_path / "table", LocalRunner())[0] == 70


def test_the_commands_one_after_another(vectors: Path, tmp_path: Path) -> None:
    """The table is that of ``Encoder.add``, and the answers are those of ``Encoder.search``."""
    encoder, items = str(vectors / "encoder"), str(vectors / "items.npz")
    encoded, table = str(tmp_path / "encoded"), tmp_path / "table"
    words = ["encode", encoder, items, "--out", encoded, "--rows", "20", "--batch", "70"]
    done = run(COMMAND, "bulk", *words)
    assert done.returncode == 0, done.stderr
    assert "70 items in 4 parts, 70 of them now" in done.stdout
    done = run(COMMAND, "bulk", "index", encoded, "--out", str(table), "--compact")
    assert "the table has 70 items" in done.stdout, done.stderr
    collection = open_collection(items)
    values = collection.take(np.arange(70))
    other = make("mlp").create_table()
    make("mlp").add(other, values, payloads=collection.payloads(0, values, True), batch_size=20)
    with HashTable.open(table) as one:
        assert contents(one) == contents(other)
        expected = make("mlp").search(one, values, 3)
    # Queries from an encoded folder, and from items.
    for place, more in ((encoded, []), (items, ["--encoder", encoder])):
        out = str(tmp_path / f"answers{len(more)}")
        words = ["search", str(table), place, "--out", out, "--top", "3", "--json", *more]
        done = run(COMMAND, "bulk", *words)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rows"] == 70
        lines = sorted(content_of(Path(out)), key=lambda line: line["row"])
        assert [line["ids"] for line in lines] == [
            ids[:count] for ids, count in zip(expected.ids.tolist(), expected.counts, strict=True)
        ]
    assert json.loads(run(COMMAND, "bulk", *words).stdout)["done_now"] == 0  # nothing was left
    out = str(tmp_path / "neighbours")
    done = run(COMMAND, "bulk", "neighbours", str(table), "--out", out, "--top", "2")
    assert "70 items in 1 part" in done.stdout, done.stderr
    # The table remembers its encoder.
    assert run(COMMAND, "search", str(table), "id:3").returncode == 0
    assert encoder in (table / "index.toml").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("encode nowhere digits --out o", "nowhere does not exist"),
        ("index nowhere --out o", "nowhere does not exist"),
        ("neighbours nowhere --out o", "nowhere does not exist"),
        ("neighbours nowhere --out o --workers 2", "--workers is for a cluster"),
        ("neighbours nowhere --out o --ray localhost", "--ray is 'localhost'; expected local"),
    ],
)
def test_mistakes_take_one_line(tmp_path: Path, words: str, message: str) -> None:
    done = run(COMMAND, "bulk", *words.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "o").exists()


def test_the_command_speaks_of_options(vectors: Path, tmp_path: Path, capsys: Any) -> None:
    encoder, items, out = str(vectors / "encoder"), str(vectors / "items.npz"), str(tmp_path / "o")
    for more, words in (
        (["--probe", "99"], "--probe is 99; expected 1 to 11"),
        (["--ids", "words"], "--ids is 'words'"),
        (["--device", "tpu"], "--device is 'tpu'"),
    ):
        assert _code(["bulk", "encode", encoder, items, "--out", out, *more]) == 2
        assert words in capsys.readouterr().err
    table = str(tmp_path / "table")
    make("mlp").create_table(table).close()
    (tmp_path / "words.txt").touch()
    assert _code(["bulk", "search", table, str(tmp_path / "words.txt"), "--out", out]) == 2
    assert "items that are not encoded yet need --encoder" in capsys.readouterr().err
    assert _code(["bulk", "encode", encoder, items, "--out", out]) == 0
    capsys.readouterr()
    assert _code(["bulk", "encode", encoder, items, "--out", out, "--probe", "3"]) == 2
    assert capsys.readouterr().err.endswith("begin anew, --restart\n")
    assert _code(["bulk", "search", table, out, "--out", f"{out}2", "--probe", "9"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("flowhash: --probe is 9, but")
    assert said.endswith("encode the queries with --probe 9\n")


@pytest.mark.parametrize(
    ("device", "ray", "expected"),
    [
        ("auto", "local", ("cpu", 0)),
        ("cpu", "local", ("cpu", 0)),
        ("cuda", "local", ("cuda", 1)),
        ("auto", None, ("auto", None)),
    ],
)
def test_a_worker_takes_a_gpu_where_it_encodes_on_one(
    vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, ray: str | None,
    expected: tuple[str, int | None],
) -> None:  # fmt: skip
    asked: list[Any] = []
    monkeypatch.setattr(
        "flowhash.bulk.RayRunner",
        lambda address, workers, gpus: asked.append(gpus) or contextlib.nullcontext(),
    )

    def stop(
        folder: Path, source: Source, out: Path, runner: Any, choices: Choices, **_: Any
    ) -> None:
        raise StorageError(choices.device)

    monkeypatch.setattr("flowhash.bulk.encode", stop)
    make("mlp").create_table(tmp_path / "table").close()
    context: Any = SimpleNamespace(params={})
    items, out, encoder = str(vectors / "items.npz"), tmp_path / "out", vectors / "encoder"
    given: dict[str, Any] = {
        "out": out, "device": device, "opening": Opening(), "execution": cli.Execution(ray=ray),
        "output": Output(),
    }  # fmt: skip
    with pytest.raises(StorageError, match=expected[0]):
        cli.search(tmp_path / "table", items, encoder=encoder, **given)
    with pytest.raises(StorageError, match=expected[0]):
        cli.encode(context, encoder, items, **given)
    assert asked == ([expected[1]] * 2 if ray else [])


def test_only_the_workers_need_a_gpu(
    vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    source, choices = Source(str(vectors / "items.npz")), Choices(device="cuda")
    asked: list[str] = []

    class Elsewhere(LocalRunner):
        here = False

        def run(self, job: Any, parts: Any) -> Any:
            asked.append(job.choices.device)
            on_its_own = replace(job, choices=replace(job.choices, device="cpu"))
            yield from super().run(on_its_own, parts)

    encode(vectors / "encoder", source, tmp_path / "there", Elsewhere(), choices)
    assert asked == ["cuda"]
    assert len(content_of(tmp_path / "there")) == 70
    with pytest.raises(InputError, match="torch finds no GPU here"):
        encode(vectors / "encoder", source, tmp_path / "here", LocalRunner(), choices)
    for runner in (Elsewhere(), LocalRunner()):
        with pytest.raises(InputError, match="device is 'tpu'; expected auto, cpu, cuda"):
            encode(vectors / "encoder", source, tmp_path / "here", runner, Choices(device="tpu"))
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(("more", "extra"), [([], "parquet"), (["--ray", "auto"], "ray")])
def test_without_its_extra(
    more: list[str], extra: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Ray is only needed by those who ask for it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert _code(["bulk", "neighbours", "x.table", "--out", "y", *more]) == 2
    said = capsys.readouterr().err
    assert f"pip install 'flowhash[{extra}]'" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["", "encode", "index", "search", "neighbours"])
def test_help_says_what_ray_is_for(name: str) -> None:
    done = run(COMMAND, "bulk", *name.split(), "--help")
    said = " ".join(done.stdout.replace("│", " ").split())
    assert "Ray cluster" in said
    assert "Without" in said
    assert "this process" in said


def test_control_c_says_how_far_it_is(vectors: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "many.npy", np.random.default_rng(0).normal(size=(30_000, DIM)))
    words = [
        "bulk", "encode", str(vectors / "encoder"), str(tmp_path / "many.npy"), "--out",
        str(tmp_path / "out"), "--rows", "50", "--quiet",
    ]  # fmt: skip
    process = subprocess.Popen([COMMAND, *words], stderr=subprocess.PIPE, text=True)
    while len(list(tmp_path.glob("out/part-*"))) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert "of 30,000 rows are done, the same command goes on" in said
    there = len(list((tmp_path / "out").glob("*.parquet")))
    assert 3 <= there < 600
    assert not list(tmp_path.glob("out/.part*"))
