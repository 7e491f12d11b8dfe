"""Items to be stored: from folders of any layout, files with or without labels, data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, strategies as st
from PIL import Image

from flowhash.data import open_collection, open_data
from flowhash.data.item_collection import _Rows
from flowhash.data.item_payloads import picture_of
from flowhash.errors import DamagedFileError, InputError


def save_images(root: Path, names: list[str]) -> None:
    rng = np.random.default_rng(0)
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 30, 3), np.uint8)).save(root / name)


def test_a_folder_may_have_any_layout(tmp_path: Path) -> None:
    names = ["a/1.png", "a/deep/2.png", "b/3.png", "loose.png"]
    save_images(tmp_path, names)
    found = open_collection(tmp_path, size=(8, 6))
    assert list(found.names) == names
    assert list(found.labels) == ["a", "a", "b", None]
    assert found.files
    assert found.take(np.arange(4)).shape == (4, 8, 6, 3)
    payloads = found.payloads(1, found.take(np.arange(1, 3)), True)
    assert [(one["name"], one["label"]) for one in payloads] == [
        ("a/deep/2.png", "a"),
        ("b/3.png", "b"),
    ]
    media, _ = picture_of(payloads[0]) or ("", b"")
    assert media == "image/jpeg"  # from the file, 40 pixels high, not from the 8 that are encoded
    assert "picture" not in found.payloads(0, found.take(np.arange(1)), False)[0]


def test_one_image_is_a_collection(tmp_path: Path) -> None:
    save_images(tmp_path, ["cat.png"])
    found = open_collection(tmp_path / "cat.png", size=(4, 4))
    assert (list(found.names), list(found.labels), len(found)) == (["cat.png"], [None], 1)


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("ending", [".npz", ".npy", ".parquet"])
def test_arrays_with_labels_or_without(ending: str, labelled: bool, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    labels = np.array(["x", "y", "x", "z", "y"])
    path = tmp_path / f"items{ending}"
    options = {}
    if ending == ".npz":
        np.savez(path, embeddings=values, **({"labels": labels} if labelled else {}))
    elif ending == ".npy":
        np.save(path, values)
        if labelled:
            np.save(tmp_path / "labels.npy", labels)
            options["labels"] = tmp_path / "labels.npy"
    else:
        columns = {"embedding": values.tolist()} | ({"label": labels.tolist()} if labelled else {})
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    found = open_collection(path, **options)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.take(np.arange(5)), values)
    assert list(found.labels) == (labels.tolist() if labelled else [None] * 5)
    assert found.names[4] == f"items{ending} row 4"
    assert found.picture is None
    assert not found.files


def test_labels_with_gaps_are_not_passed_over(tmp_path: Path) -> None:
    columns = {"embedding": [[1.0], [2.0]], "label": ["x", None]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="have no label"):
        open_collection(tmp_path / "x.parquet")


def test_damage_is_named(tmp_path: Path) -> None:
    for name in ("x.npz", "x.parquet", "x.npy"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(DamagedFileError, match=name):
            open_collection(tmp_path / name)


@pytest.mark.parametrize("split", ["train", "validation", "test", "all"])
def test_splits_of_a_data_set(split: str) -> None:
    splits = open_data("digits")
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    chosen = [part for name, part in parts.items() if part is not None and split in (name, "all")]
    found = open_collection("digits", split=split)
    assert len(found) == sum(len(part) for part in chosen)
    every = np.concatenate([part.take(np.arange(len(part))) for part in chosen])
    np.testing.assert_array_equal(found.take(np.arange(len(found))), every)
    labels = [part.class_names[label] for part in chosen for label in part.labels]
    assert list(found.labels) == labels
    assert len(set(found.names)) == len(found)
    assert "picture" in found.payloads(0, found.take(np.arange(2)), True)[1]


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("digits", {"split": "half"}, "expected one of train"),
        ("nothing", {}, "neither a data set nor a folder"),
        (".", {"folder": "x"}, "takes no folder"),
    ],
)
def test_mistakes_are_said(
    source: str, options: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        open_collection(source, **options)  # type: ignore[arg-type]


def test_an_empty_folder_and_other_files_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no images"):
        open_collection(tmp_path)
    save_images(tmp_path, ["a/1.png"])
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"notes\.txt"):
        open_collection(tmp_path)
    assert len(open_collection(tmp_path, ignore_other=True)) == 1


@given(count=st.integers(0, 20), start=st.integers(-3, 25), stop=st.integers(-3, 25))
def test_rows_are_a_list(count: int, start: int, stop: int) -> None:
    rows, plain = _Rows(count, "row"), [f"row {place}" for place in range(count)]
    assert list(rows) == plain
    assert rows[start:stop] == plain[start:stop]
