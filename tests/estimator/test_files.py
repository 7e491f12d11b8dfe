"""Folders: what is loaded answers the same, what is damaged is refused; pickles for joblib."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from flowhash.encoder import Encoder
from flowhash.errors import DamagedFileError, InputError, StorageError
from flowhash.estimator import FlowHasher, hasher_files as files
from flowhash.table import HashTable
from tests.estimator.clouds import clouds, quick


def same(one: FlowHasher, other: FlowHasher, rows: Any) -> None:
    for mine, theirs in zip(one.kneighbors(rows), other.kneighbors(rows), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for mine, theirs in zip(one.kneighbors(), other.kneighbors(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert (one.transform(rows) != other.transform(rows)).nnz == 0
    np.testing.assert_array_equal(one.search(rows).scanned, other.search(rows).scanned)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"active": 2, "rank": "codes", "hidden": [4]},
        {"metric": "cosine", "random_state": np.random.RandomState(0)},
        {"metric": "dot", "active": 2},
        {"buckets": "auto", "hidden": "auto"},
        {
            "metric": "l2",
            "penalty": np.float32(0.25),
            "buckets": np.int64(9),
            "hidden": (5,),
            "loss": "npairs",
        },
    ],
)
@pytest.mark.parametrize(
    "names", [np.arange(4), np.array(["b", "a", "d", "c"]), np.array(["é", 1, 2, 3], str)]
)
def test_what_is_loaded_answers_the_same(
    tmp_path: Path, parameters: dict[str, Any], names: Any
) -> None:
    rows, labels = clouds()
    hasher = quick(**parameters).fit(rows[:100], names[labels[:100]])
    hasher.add(rows[100:110])
    hasher.save(tmp_path / "saved")
    again = FlowHasher.load(tmp_path / "saved")
    same(hasher, again, rows)
    assert again.classes_.dtype == hasher.classes_.dtype
    assert again.classes_.tolist() == hasher.classes_.tolist()
    assert again.score(rows[:50], names[labels[:50]]) == hasher.score(rows[:50], names[labels[:50]])
    assert again.n_features_in_ == 6
    assert again.n_samples_fit_ == 110
    before, after = hasher.get_params(), again.get_params()
    for name in before.keys() - {"random_state", "hidden"}:
        assert before[name] == after[name]
    wanted = before["hidden"]
    assert (wanted if wanted == "auto" else tuple(wanted)) == after["hidden"]
    assert again.trials_ == hasher.trials_
    again.add(rows[110:])
    again.fit(rows, labels)


def test_keeps_what_was_tried(tmp_path: Path) -> None:
    rows, labels = clouds(400, classes=2)
    hasher = quick(hidden="auto").fit(rows, labels)
    hasher.save(tmp_path)
    assert FlowHasher.load(tmp_path).trials_ == hasher.trials_
    assert len(hasher.trials_) == 2


def test_keeps_names_of_columns_and_object_labels(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows, labels = clouds(features=2)
    frame = pandas.DataFrame(rows, columns=["a", "b"])
    hasher = quick().fit(frame, np.array(["x", "y", "z", "w"], object)[labels])
    hasher.save(tmp_path)
    again = FlowHasher.load(tmp_path)
    assert again.feature_names_in_.tolist() == ["a", "b"]
    assert again.classes_.dtype == object
    same(hasher, again, frame)


def test_saving_again_replaces_and_leaves_nothing(tmp_path: Path) -> None:
    rows, labels = clouds()
    quick().fit(rows, labels).save(tmp_path)
    other = quick(active=2).fit(rows[:50], labels[:50])
    other.save(tmp_path)
    same(other, FlowHasher.load(tmp_path), rows)
    assert sorted(path.name[:7] for path in tmp_path.iterdir()) == ["fitted-", "flowhas"]


@pytest.mark.parametrize(("metric", "number"), [("l2", 1), ("cosine", 1), ("inner", 2)])
def test_the_parts_are_an_encoder_and_a_table(tmp_path: Path, metric: str, number: int) -> None:
    rows, labels = clouds()
    if metric == "cosine":
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    hasher = quick(metric=metric).fit(rows, labels)
    hasher.save(tmp_path)
    (inside,) = tmp_path.glob("fitted-*")
    encoder = Encoder.load(inside / "encoder")
    with HashTable.open(inside / "table", encoder=encoder.fingerprint) as table:
        found = encoder.search(table, rows, top=3, at_least=3)
    np.testing.assert_array_equal(found.ids, hasher.kneighbors(rows, 3)[1])
    # Earlier versions read the first format and would rank by distances.
    assert json.loads((tmp_path / "flowhasher.json").read_text())["format"] == number


@pytest.mark.parametrize("step", ["write_tensors", "write_sealed"])
def test_interrupted_it_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    rows, labels = clouds()
    old = quick().fit(rows, labels)
    old.save(tmp_path)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files, step, fail)
        with pytest.raises(KeyboardInterrupt):
            quick(active=3).fit(rows, labels).save(tmp_path)
    same(old, FlowHasher.load(tmp_path), rows)
    old.save(tmp_path)
    assert len(list(tmp_path.glob("fitted-*"))) == 1


def test_every_damaged_file_is_refused(tmp_path: Path) -> None:
    rows, labels = clouds()
    quick(active=2).fit(rows, labels).save(tmp_path)
    paths = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]
    assert len(paths) >= 5
    for path in paths:
        content = path.read_bytes()
        for place in (len(content) // 3, len(content) // 2, len(content) - 2):
            changed = bytearray(content)
            changed[place] ^= 4
            path.write_bytes(bytes(changed))
            with pytest.raises((StorageError, InputError)):
                FlowHasher.load(tmp_path)
        path.unlink()
        with pytest.raises((StorageError, InputError)):
            FlowHasher.load(tmp_path)
        path.write_bytes(content)
    FlowHasher.load(tmp_path)


def test_refuses_other_folders_and_formats(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no FlowHasher"):
        FlowHasher.load(tmp_path)
    files.write_sealed(tmp_path / files.RECORD, {"format": 4})
    with pytest.raises(InputError, match="has format 4; this FlowHash reads 1 to 3"):
        FlowHasher.load(tmp_path)
    files.write_sealed(tmp_path / files.RECORD, {"format": 1, "fitted": "../elsewhere"})
    with pytest.raises(DamagedFileError, match="names no folder"):
        FlowHasher.load(tmp_path)


def test_it_is_not_mixed_into_a_folder_of_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, labels = clouds()
    hasher = quick().fit(rows, labels)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"foreign holds thesis.tex and no FlowHasher; expected"):
        hasher.save(foreign)
    with pytest.raises(InputError, match=r"thesis.tex is a file; expected a new folder"):
        hasher.save(foreign / "thesis.tex")
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]
    # What was saved before is replaced, whatever has come beside it; so is what a kill has left.
    hasher.save(tmp_path / "saved")
    (tmp_path / "saved" / "notes.txt").write_text("x")
    hasher.save(tmp_path / "saved")
    same(hasher, FlowHasher.load(tmp_path / "saved"), rows)
    (tmp_path / "empty").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_tensors", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            hasher.save(tmp_path / "empty")
    (tmp_path / "empty" / f"flowhasher.json.{'a' * 16}.new").write_text("{")
    hasher.save(tmp_path / "empty")
    same(hasher, FlowHasher.load(tmp_path / "empty"), rows)


def test_only_a_fitted_one_is_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not fitted yet"):
        quick().save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_stored_is_a_pickle(tmp_path: Path) -> None:
    rows, labels = clouds()
    quick().fit(rows, labels).save(tmp_path)
    kinds = {path.suffix for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size}
    assert kinds <= {".json", ".safetensors", ".npy"}
    assert json.loads((tmp_path / "flowhasher.json").read_text())["parameters"]["buckets"] == 8


def test_a_pickle_answers_the_same() -> None:
    rows, labels = clouds()
    hasher = quick(active=2, metric="ip").fit(rows, labels)
    again = pickle.loads(pickle.dumps(hasher))
    same(hasher, again, rows)
    assert again.score(rows, labels) == hasher.score(rows, labels)
    assert pickle.loads(pickle.dumps(quick())).get_params() == quick().get_params()


def test_a_pickle_of_an_older_version_has_the_defaults_of_what_it_did_not_know() -> None:
    items, labels = clouds()
    hasher = quick().fit(items, labels)
    state = hasher.__getstate__()
    del state["groups"]
    older = FlowHasher.__new__(FlowHasher)
    older.__setstate__(state)
    assert older.groups == FlowHasher().groups
    assert clone(older).get_params() == older.get_params()
    assert repr(older)
