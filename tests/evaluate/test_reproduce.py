"""A whole reproduction on small pictures: networks, rows, files; interrupted and gone on with."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowhash.cli.output import in_words
from flowhash.data import Augmentation, LabelledItems, Splits
from flowhash.data.item_sources import ArrayItems
from flowhash.encoder import Encoder
from flowhash.errors import DamagedFileError, InputError
from flowhash.evaluate import METHODS, Row, paper_experiment, read_rows, reproduce
from flowhash.evaluate.comparison.comparison import passes_of
from flowhash.evaluate.output.write_results import write_reproduction
from flowhash.evaluate.reproduction import trained_networks as heads_room
from flowhash.evaluate.reproduction.encoding_cache import Encodings
from flowhash.evaluate.reproduction.experiment_plan import make_plan
from flowhash.evaluate.reproduction.trained_networks import Trainings, mirrored
from flowhash.evaluate.results import Outcome
from flowhash.learn import stages as stages_room
from flowhash.networks import EmbeddingNetwork, build_backbone

ROWS = ("method", "table", "k", "seed", "suf", "pr1", "pr4", "pr16", "nmi", "scanned", "seconds")
ENDS = ("pr1_low", "pr1_high", "pr4_low", "pr4_high", "pr16_low", "pr16_high")


@dataclass(frozen=True)
class Finished:
    """A reproduction of npairs, unseen classes too."""

    folder: Path
    outcome: Outcome
    said: list[str]

    def quality(self) -> list[Any]:
        return [numbers(row) for row in self.outcome.rows if row.table != "unseen"]


def numbers(row: Row) -> Any:
    return (row.table, row.method, row.k, row.suf, row.pr1, row.pr16, row.nmi)


@pytest.fixture(scope="module")
def finished(short: None, pictures: Splits, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder, said = tmp_path_factory.mktemp("finished"), list[str]()
    outcome = reproduce(pictures, "cifar100", "npairs", folder, quiet=True, say=said.append)
    return Finished(folder, outcome, said)


def test_from_nothing_to_files(finished: Finished, tmp_path: Path) -> None:
    outcome, said = finished.outcome, finished.said
    names = {(row.table, row.k) for row in outcome.rows}
    assert names == {(table, k) for table in ("train", "test", "unseen") for k in (None, 1, 2)}
    methods = {row.method for row in outcome.rows if row.table == "test"}
    # Npairs' outputs have any length, its base's length one; only the method trains with λ = 0.
    assert methods == set(METHODS) - {
        "flowhash-own", "flowhash-free", "exhaustive-unit", "vq-unit",
    }  # fmt: skip
    assert {row.method for row in outcome.rows if row.table == "train"} == methods - {"vq-train"}
    assert any("FlowHash k = 2" in words for words in said)
    assert len(outcome.examples) == 8
    assert set(outcome.curves) == {"stage 1", "k = 1", "k = 2"}
    written = write_reproduction(
        outcome, paper_experiment("cifar100", "npairs"), tmp_path / "results", "flowhash …"
    )
    assert {path.name for path in written} == {
        f"cifar100-npairs{ending}"
        for ending in (".json", ".csv", ".md", ".tex", "-suf.svg", "-suf.png", "-objective.svg",
                       "-objective.png", "-objective.csv", ".html")
    }  # fmt: skip
    rows = json.loads((tmp_path / "results" / "cifar100-npairs.json").read_text())
    assert len(rows) == len(outcome.rows)
    assert all(set(ROWS) <= set(row) for row in rows)
    assert all(isinstance(row[end], float) for row in rows for end in ENDS)
    assert read_rows(tmp_path / "results" / "cifar100-npairs.json") == outcome.rows
    page = (tmp_path / "results" / "cifar100-npairs.md").read_text()
    ours = next(row for row in outcome.rows if row.method == "flowhash" and row.table == "test")
    assert f"{ours.pr1:.2f}" in page
    assert "58.19" in page  # the paper's
    assert "## Classes that training had not" in page
    assert page.count("start, zero steps") >= 3 * 2  # every table, every k
    assert page.count("95 % intervals") == 2 * 3  # two kinds, for every searched table


def test_goes_on_and_shares_the_trunk(finished: Finished, pictures: Splits) -> None:
    place = finished.folder / "seed-0"
    files = [place / "trunk" / "metrics.jsonl", place / "npairs" / "k1" / "metrics.jsonl"]
    before = [path.read_bytes() for path in files]
    given: dict[str, Any] = {"quiet": True, "unseen": False}
    again = reproduce(pictures, "cifar100", "npairs", finished.folder, **given)
    other = reproduce(pictures, "cifar100", "triplet", finished.folder, **given)
    assert [path.read_bytes() for path in files] == before
    assert [numbers(row) for row in again.rows] == finished.quality()
    assert {row.method for row in other.rows} >= {"flowhash-own"}
    assert not (place / "triplet" / "base").exists()  # the trunk is its base


def test_several_seeds_are_several_trainings(
    finished: Finished, pictures: Splits, tmp_path: Path
) -> None:
    """Seed 0 is there already."""
    outcome = reproduce(
        pictures, "cifar100", "npairs", finished.folder, quiet=True, unseen=False, seeds=2
    )
    found = {
        seed: [row.pr1 for row in outcome.rows if row.seed == seed and row.table == "test"]
        for seed in (0, 1)
    }
    assert len(found[0]) == len(found[1]) > 5
    assert found[0] != found[1]
    write_reproduction(
        outcome, paper_experiment("cifar100", "npairs"), tmp_path / "results", "flowhash …"
    )
    page = (tmp_path / "results" / "cifar100-npairs.md").read_text()
    assert "Mean ± sample standard deviation over 2 seeds" in page
    assert f"{np.mean([values[0] for values in found.values()]):.2f} ±" in page


def test_interrupted_it_goes_on_to_the_same_numbers(
    finished: Finished, pictures: Splits, tmp_path: Path, monkeypatch: Any
) -> None:
    original, calls = heads_room.train, []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(heads_room, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reproduce(pictures, "cifar100", "npairs", tmp_path, quiet=True, unseen=False)
    monkeypatch.setattr(heads_room, "train", original)
    again = reproduce(pictures, "cifar100", "npairs", tmp_path, quiet=True, unseen=False)
    assert [numbers(row) for row in again.rows] == finished.quality()


@pytest.mark.parametrize("table", ["test", "train"])
def test_every_k_is_searched_with_the_network_of_its_own(
    table: str, paper_rows: tuple[Path, list[Row]], pictures: Splits
) -> None:
    """SUF by loops over the codes of the encoder that the folder of each k holds."""
    folder, rows = paper_rows
    assert pictures.test is not None
    items = pictures.train if table == "train" else pictures.test
    found = {row.k: row.suf for row in rows if (row.table, row.method) == (table, "flowhash")}
    networks = {k: Encoder.load(folder / f"k{k}" / "encoder") for k in (1, 2)}
    assert {k: encoder.active for k, encoder in networks.items()} == {1: 1, 2: 2}
    expected = {
        (network, k): speed_up(encoder, items, pictures.test, k)
        for network, encoder in networks.items()
        for k in (1, 2)
    }
    for k in (1, 2):
        assert found[k] == pytest.approx(expected[k, k], rel=1e-3)
        assert expected[k, k] != pytest.approx(expected[3 - k, k], rel=1e-2)  # the test can tell


@pytest.fixture(scope="module")
def paper_rows(
    short: None, pictures: Splits, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Row]]:
    """Of the paper's plan, whose encoders are stored whole, and where they are."""
    folder = tmp_path_factory.mktemp("paper")
    outcome = reproduce(
        pictures, "cifar100", "triplet", folder, preset="paper", quiet=True, unseen=False
    )
    return folder / "seed-0" / "triplet", outcome.rows


def speed_up(encoder: Encoder, items: LabelledItems, queries: LabelledItems, active: int) -> float:
    """Items a query could scan, over items that it does: those that share a bucket with it."""
    stored, asked = (
        [set(row) for row in np.argsort(-encoder.encode(given).activations)[:, :active].tolist()]
        for given in (items, queries)
    )
    itself = items is queries
    scanned = sum(
        bool(one & other)
        for query, one in enumerate(asked)
        for item, other in enumerate(stored)
        if not (itself and item == query)
    )
    return (len(items) - itself) * len(queries) / scanned


def test_what_is_kept_is_that_of_the_same_items(pictures: Splits, tmp_path: Path) -> None:
    splits = pictures
    network = EmbeddingNetwork(build_backbone({"name": "residual", "width": 4, "blocks": [1]}), 3)
    encodings = Encodings(tmp_path, splits.preprocessing, "cpu", quiet=True)
    assert splits.test is not None
    first = np.array(encodings.outputs(splits.test, "test", network))
    assert (encodings.outputs(splits.test, "test", network) == first).all()
    # The same labels on other images, under the same name.
    images = splits.test.take(np.arange(len(splits.test)))[:, ::-1]
    other = LabelledItems(
        ArrayItems(np.ascontiguousarray(images)), splits.test.labels, splits.test.class_names, "x"
    )
    assert not np.allclose(encodings.outputs(other, "test", network), first)
    plain = encodings.features(splits.test, "test", network, Augmentation(pad=1), (0,))
    wider = encodings.features(splits.test, "test", network, Augmentation(pad=3), (0,))
    assert not np.allclose(plain, wider)
    assert encodings.seconds() > 0
    for path in tmp_path.glob("outputs-*.npy"):
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DamagedFileError, match="delete it"):
        encodings.outputs(splits.test, "test", network)


def test_a_mirrored_network_does_not_tell_left_from_right(tmp_path: Path) -> None:
    network = EmbeddingNetwork(build_backbone({"name": "residual", "width": 4, "blocks": [1]}), 3)
    twice = mirrored(network.eval())
    images = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        expected = network.finish((network.backbone(images) + network.backbone(images.flip(3))) / 2)
        torch.testing.assert_close(twice(images), expected)
        torch.testing.assert_close(twice(images.flip(3)), twice(images))
    again = build_backbone(twice.backbone.spec)  # what an encoder stores
    again.load_state_dict(twice.backbone.state_dict())
    assert passes_of(twice) == 2
    assert passes_of(network) == 1


def test_the_encoder_is_whole(finished: Finished, pictures: Splits, tmp_path: Path) -> None:
    """What learned from features takes images, in one pass, and gives the same activations."""
    splits, place = pictures, finished.folder / "seed-0"
    plan = make_plan("cifar100", "npairs", "cpu", 0, splits.train.classes)
    trainings = Trainings(plan, splits, place, quiet=True)
    encoder = trainings.encoder(2)
    assert encoder.networks.shared
    learned = Encoder.load(place / "npairs" / "k2" / "encoder")  # from features
    assert (encoder.active, learned.active) == (2, 2)
    for one, other in zip(
        encoder.hash.head.parameters(), learned.hash.head.parameters(), strict=True
    ):
        assert torch.equal(one, other)
    assert splits.test is not None
    found = encoder.encode(splits.test)
    kept = trainings.encoded(splits.test, "test", encoder.hash)
    np.testing.assert_allclose(found.activations, kept, atol=1e-5)
    ranked = trainings.encoded(splits.test, "test", trainings.base())
    np.testing.assert_allclose(found.embeddings, ranked, atol=1e-5)
    encoder.save(tmp_path / "encoder")
    again = Encoder.load(tmp_path / "encoder")
    assert again.fingerprint == encoder.fingerprint
    # The classifier is stage 1's: after its few steps it does better than chance, 1 of 20.
    embeddings = trainings.encoded(splits.train, "train", trainings.base())
    scores = trainings.classifier().scores(embeddings)
    assert (scores.argmax(axis=1) == splits.train.labels).mean() > 0.12


def test_the_start_is_what_algorithm_1_begins_with(
    short: None, pictures: Splits, tmp_path: Path, monkeypatch: Any
) -> None:
    plan = make_plan("cifar100", "triplet", "cpu", 0, pictures.train.classes)
    trainings = Trainings(plan, pictures, tmp_path / "seed-0", quiet=True)
    assert trainings.classifier().weights.size  # fitted, before anything is watched
    begun: list[Any] = []
    original = stages_room.train_stage

    def watched(run: Any, *arguments: Any) -> Any:
        if run.name == "hash":
            begun.append({name: value.clone() for name, value in run.network.state_dict().items()})
        return original(run, *arguments)

    monkeypatch.setattr(stages_room, "train_stage", watched)
    for k in (1, 2):
        before = set(tmp_path.rglob("*"))
        start = trainings.start(k)
        assert len(begun) == k - 1  # no training ran for it
        assert {path.parent.name for path in set(tmp_path.rglob("*")) - before} <= {"encoded"}
        learned = trainings.encoder(k).hash
        assert start is not None
        for name in ("weight", "bias"):
            torch.testing.assert_close(
                getattr(start.head, name), begun[-1][f"head.{name}"], rtol=0, atol=0
            )
        assert not torch.equal(start.head.weight, learned.head.weight)
    random = Trainings(make_plan("cifar100", "npairs", "cpu"), pictures, tmp_path, quiet=True)
    assert random.start(1) is None
    # A folder that was trained before this row was there gets it, and trains nothing anew.
    outcome = reproduce(pictures, "cifar100", "triplet", tmp_path, quiet=True, unseen=False)
    assert len(begun) == 2
    assert {row.k for row in outcome.rows if row.method == "start"} == {1, 2}


def test_a_base_without_classes_gets_a_classifier(pictures: Splits, tmp_path: Path) -> None:
    plan = make_plan("cifar100", "triplet", "paper", 0)
    stage = replace(plan.hash.hash, steps=2, classes=5, items=2, outputs=8)
    assert plan.hash.base is not None
    base = replace(plan.hash.base, steps=20, classes=10, items=2, outputs=8)
    settings = replace(
        plan.hash, base=base, hash=stage,
        backbone={"name": "residual", "width": 4, "blocks": [1, 1]},
    )  # fmt: skip
    splits = pictures
    trainings = Trainings(replace(plan, base=settings, hash=settings), splits, tmp_path, quiet=True)
    classifier = trainings.classifier()
    assert classifier.weights.shape == (splits.train.classes, 8)
    scores = classifier.scores(trainings.encoded(splits.train, "train", trainings.base()))
    assert (scores.argmax(axis=1) == splits.train.labels).mean() > 0.3
    assert trainings.encoder(1).active == 1


def test_refuses_what_is_no_experiment(pictures: Splits, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no cpu preset for imagenet32") as error:
        make_plan("imagenet32", "npairs", "cpu")
    assert str(error.value).endswith('Choose preset="paper"')
    assert in_words(error.value).endswith("Choose --preset paper")
    with pytest.raises(InputError, match="no stage 1; give a trunk, a base, or both"):
        replace(make_plan("cifar100", "npairs", "paper"), base=None)
    with pytest.raises(InputError, match='choose "paper", "method" or "cpu"'):
        make_plan("cifar100", "npairs", "gpu")
    with pytest.raises(InputError, match="no method preset for imagenet32"):
        make_plan("imagenet32", "npairs", "method")
    with pytest.raises(InputError, match="one_base is for the presets paper and method"):
        reproduce(pictures, "cifar100", "npairs", tmp_path, one_base=True)
    splits = pictures
    with pytest.raises(InputError, match="seeds is 0"):
        reproduce(splits, "cifar100", "npairs", tmp_path, seeds=0)
    with pytest.raises(InputError, match="no test split"):
        reproduce(replace(splits, test=None), "cifar100", "npairs", tmp_path)


@pytest.mark.long
def test_the_method_from_nothing_to_files(short: None, pictures: Splits, tmp_path: Path) -> None:
    runs, said = tmp_path / "runs", list[str]()
    given: dict[str, Any] = {"preset": "method", "seeds": 2, "one_base": True, "quiet": True}
    outcome = reproduce(pictures, "cifar100", "triplet", runs, say=said.append, **given)
    found = {(row.method, row.table, row.k, row.seed): row for row in outcome.rows}
    assert {place[1] for place in found} == {"train", "test"}  # unseen classes are not asked for
    for table in ("train", "test"):
        for seed in (0, 1):
            methods = {name for name, *place in found if place == [table, 1, seed]}
            # The test table has fewer items than centroids.
            means = {"vq", "vq-raw", "ivf"} if table == "train" else {"vq-train"}
            trained = set() if seed else {"classifier", "flowhash-free"}  # with seed 0 only
            assert methods == {"th", "flowhash", "flowhash-own", *means, *trained}
        assert found["classifier", table, 1, 0].passes == 2
    # One base, several hash networks on it.
    assert (runs / "seed-0" / "triplet" / "base").exists()
    assert not (runs / "seed-1-on-0" / "triplet" / "base").exists()
    assert found["exhaustive", "test", None, 0].pr1 == found["exhaustive", "test", None, 1].pr1
    folders = [runs / name / "triplet" for name in ("seed-0", "seed-1-on-0")]
    for name in ("k1", "k2"):
        one, other = (Encoder.load(folder / name / "encoder") for folder in folders)
        assert one.base is not None
        assert other.base is not None
        assert torch.equal(one.base.head.weight, other.base.head.weight)
        assert not torch.equal(one.hash.head.weight, other.hash.head.weight)
    assert {path.name for path in folders[1].iterdir()} == {"k1", "k2"}
    assert set(found["flowhash", "test", 2, 1].over_seeds) >= {
        "exhaustive", "classifier", "classifier, k = 1", "flowhash-free",
    }  # fmt: skip
    # λ = 0 is trained with no penalty, and with nothing else changed; the rival has the classes.
    for k in (1, 2):
        settings = [json.loads((runs / "seed-0" / "triplet" / name / "settings.json").read_text())
                    for name in (f"k{k}", f"k{k}-free")]  # fmt: skip
        told = [each["settings"] for each in settings]
        assert (told[0].pop("penalty"), told[1].pop("penalty")) == (0.5, 0.0)
        assert told[0] == told[1]
    rival = Encoder.load(runs / "seed-0" / "triplet" / "classifier" / "encoder")
    assert pictures.test is not None
    classes = rival.encode(pictures.test).activations.argmax(axis=1)
    same = sum(int((classes == number).sum()) ** 2 for number in range(20)) - len(classes)
    assert found["classifier", "test", 1, 0].suf == pytest.approx(len(classes) * 119 / same)
    written = write_reproduction(
        outcome, paper_experiment("cifar100", "triplet"), tmp_path / "results", "flowhash …",
        "cifar100-triplet-method",
    )  # fmt: skip
    assert {path.name for path in written} == {
        f"cifar100-triplet-method{ending}"
        for ending in (".json", ".csv", ".md", ".tex", "-suf.svg", "-suf.png", "-objective.svg",
                       "-objective.png", "-objective.csv", ".html")
    }  # fmt: skip
    page = (tmp_path / "results" / "cifar100-triplet-method.md").read_text()
    for words in (
        "FlowHash, λ = 0", "exhaustive, raw vectors", "VQ, raw vectors", "classifier, k = 1",
        "against FlowHash, λ = 0", "All seeds share the base of seed 0", "M(θ)", "-objective.png",
        "over queries and seeds", "are trained with seed 0 only",
    ):  # fmt: skip
        assert words in page, words
    report = (tmp_path / "results" / "cifar100-triplet-method.html").read_text()
    assert "The gap of the bound of Eq. 4" in report
    # A second call trains nothing.
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("last.json")}
    again = reproduce(pictures, "cifar100", "triplet", runs, **given)
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("last.json")} == before
    assert [numbers(row) for row in again.rows] == [numbers(row) for row in outcome.rows]
