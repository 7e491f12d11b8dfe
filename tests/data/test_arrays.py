"""Arrays of embeddings in files and in memory; ``open_data`` and digits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

import flowhash.data as room
from flowhash.data import arrays, digits, open_data
from flowhash.errors import DamagedFileError, InputError

COUNT, DIM = 40, 6
VECTORS = np.random.default_rng(0).normal(size=(COUNT, DIM)).astype(np.float32)
LABELS = np.arange(COUNT) % 4
WORDS = np.array(["pear", "apple", "fig", "plum"])[LABELS]


def check(splits: Any, names: tuple[str, ...] = ("0", "1", "2", "3"), labels: Any = LABELS) -> None:
    """Every vector is in one split, with its label."""
    seen = []
    for split in (splits.train, splits.validation):
        assert split.class_names == names
        taken = split.take(np.arange(len(split)))
        assert taken.dtype == np.float32
        for vector, label in zip(taken, split.labels, strict=True):
            (row,) = np.flatnonzero((vector == VECTORS).all(axis=1))
            assert names[label] == str(labels[row])
            seen.append(row)
    assert sorted(seen) == list(range(COUNT))
    assert np.bincount(splits.validation.labels).tolist() == [1] * 4
    assert splits.test is None


def test_in_memory() -> None:
    check(arrays(VECTORS, LABELS))
    check(arrays(VECTORS.tolist(), WORDS.tolist()), ("apple", "fig", "pear", "plum"), WORDS)
    check(arrays(VECTORS.astype(np.float64), LABELS.astype(float)))
    check(arrays(VECTORS, WORDS.astype(object)), ("apple", "fig", "pear", "plum"), WORDS)
    check(arrays(VECTORS, WORDS.astype("S")), ("apple", "fig", "pear", "plum"), WORDS)
    spread = np.array([-7, 10, 9, 1000])[LABELS]  # sorted as numbers, not as text
    check(arrays(VECTORS, spread), ("-7", "9", "10", "1000"), spread)


def test_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VECTORS)
    np.save(tmp_path / "y.npy", WORDS)
    splits = open_data(tmp_path / "x.npy", labels=tmp_path / "y.npy")
    check(splits, ("apple", "fig", "pear", "plum"), WORDS)
    base: Any = splits.train.items.items.array  # type: ignore[attr-defined]
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap)
    check(arrays(str(tmp_path / "x.npy"), LABELS))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("keys", [("embeddings", "labels"), ("X", "y"), ("data", "label")])
def test_npz(tmp_path: Path, save: Any, keys: tuple[str, str]) -> None:
    save(tmp_path / "a.npz", **{keys[0]: VECTORS, keys[1]: LABELS, "other": np.zeros(3)})
    check(open_data(str(tmp_path / "a.npz")))
    save(tmp_path / "a.npz", mine=np.asfortranarray(VECTORS), classes=LABELS)
    check(open_data(tmp_path / "a.npz", embedding="mine", label="classes"))
    check(open_data(tmp_path / "a.npz", embedding="mine", labels=LABELS))
    with pytest.raises(InputError, match=r"a\.npz has mine, classes; looked for items.*embedding="):
        open_data(tmp_path / "a.npz")
    with pytest.raises(InputError, match=r"a\.npz has mine, classes; looked for labels.*label="):
        open_data(tmp_path / "a.npz", embedding="mine")


@pytest.mark.parametrize("kind", ["list", "large", "fixed"])
def test_parquet(tmp_path: Path, kind: str) -> None:
    make: Any = {"list": pyarrow.list_, "large": pyarrow.large_list}.get(
        kind, lambda item: pyarrow.list_(item, DIM)
    )
    for item in (pyarrow.float32(), pyarrow.float64()):
        column = pyarrow.array(VECTORS.tolist(), make(item))
        for labels in (WORDS.tolist(), pyarrow.array(WORDS.tolist()).dictionary_encode()):
            table = pyarrow.table({"id": np.arange(COUNT), "embedding": column, "label": labels})
            pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
            check(open_data(tmp_path / "a.parquet"), ("apple", "fig", "pear", "plum"), WORDS)
    check(open_data(tmp_path / "a.parquet", labels=LABELS))


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ([[1.0, 2.0], [3.0]], "lists of several lengths"),
        ([[1.0, 2.0], None], "gaps"),
        ([[1.0, None], [1.0, 2.0]], "gaps"),
        ([1.0, 2.0], "has type double"),
        ([["a"], ["b"]], "does not hold numbers"),
    ],
)
def test_parquet_columns_that_do_not_fit(tmp_path: Path, column: Any, words: str) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"embedding": column, "label": [0, 1]}), path)
    with pytest.raises(InputError, match=rf"a\.parquet: the column embedding.*{words}"):
        open_data(path)


def test_parquet_without_labels_or_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"embedding": [[1.0], [2.0]], "label": ["a", None]})
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(InputError, match=r"a\.parquet: 1 rows have no label"):
        open_data(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamagedFileError, match=r"a\.parquet"):
        open_data(path)


def test_numbers_that_do_not_match_are_told(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VECTORS)
    np.save(tmp_path / "y.npy", LABELS[:-1])
    with pytest.raises(InputError, match=r"x\.npy has 40 rows, but .*y\.npy have .*\(39,\)"):
        open_data(tmp_path / "x.npy", labels=tmp_path / "y.npy")
    with pytest.raises(InputError, match=r"x\.npy comes without labels"):
        open_data(tmp_path / "x.npy")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_values_that_are_not_finite_are_told(
    tmp_path: Path, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowhash.data.sets.embedding_arrays.CHUNK", 5 * DIM)
    bad = VECTORS.astype(np.float64)
    bad[17, 2] = value
    np.save(tmp_path / "x.npy", bad)
    with pytest.raises(InputError, match=r"x\.npy: row 17 has"):
        arrays(tmp_path / "x.npy", LABELS)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VECTORS)
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-4])
    with pytest.raises(DamagedFileError, match=r"x\.npy"):
        arrays(tmp_path / "x.npy", LABELS)
    np.save(tmp_path / "o.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(InputError, match=r"o\.npy holds Python objects"):
        arrays(tmp_path / "o.npy", LABELS)
    np.savez(tmp_path / "cut.npz", X=VECTORS, y=LABELS)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:-9])
    with pytest.raises(DamagedFileError, match=r"cut\.npz"):
        arrays(tmp_path / "cut.npz")
    np.savez(tmp_path / "o.npz", X=np.array([{}] * COUNT), y=LABELS)
    with pytest.raises(InputError, match=r"o\.npz: X holds Python objects"):
        arrays(tmp_path / "o.npz")
    with pytest.raises(InputError, match=r"gone\.npy is not a file"):
        arrays(tmp_path / "gone.npy")
    with pytest.raises(InputError, match=r"y\.csv is not an \.npy file"):
        arrays(VECTORS, tmp_path / "y.csv")
    with pytest.raises(InputError, match=r"labels have dtype object"):
        arrays(VECTORS, np.array([None] * COUNT))
    with pytest.raises(InputError, match=r"labels have dtype float64"):
        arrays(VECTORS, LABELS + 0.5)


def test_preprocessing_of_arrays() -> None:
    usual = arrays(VECTORS * 9 + 5, LABELS)
    made = usual.preprocessing(usual.train.take(np.arange(len(usual.train))))
    np.testing.assert_allclose(made.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(np.square(made).mean(), 1, atol=1e-4)
    none = arrays(VECTORS, LABELS, preprocess="none")
    np.testing.assert_array_equal(none.preprocessing(VECTORS), VECTORS)
    with pytest.raises(InputError, match="preprocess is 'all'"):
        arrays(VECTORS, LABELS, preprocess="all")  # type: ignore[arg-type]


def test_arrays_of_images() -> None:
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 5, 4, 3), np.uint8)
    splits = arrays(images, LABELS, test=0.2)
    assert splits.train.items.kind == "images"
    assert splits.preprocessing.size == (5, 4)
    assert len(splits.test or ()) == 8


def test_digits() -> None:
    splits = digits()
    assert splits.test is not None
    for split in (splits.train, splits.validation, splits.test):
        assert split.classes == 10
        taken = split.take(np.arange(len(split)))
        assert taken.shape == (len(split), 64)
        assert (taken.min(), taken.max()) == (0, 1)
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 1797
    assert (np.bincount(splits.validation.labels) >= 34).all()


def test_open_data_says_what_it_takes(tmp_path: Path) -> None:
    assert len(open_data("digits", seed=3).train) == len(digits(seed=3).train)
    with pytest.raises(InputError, match=r'takes folder.*open_data\("cifar100", folder='):
        open_data("cifar100")
    with pytest.raises(InputError, match=r"'colour'.*takes folder, seed, cache"):
        open_data("imagenet32", folder=tmp_path, colour=1)
    with pytest.raises(InputError, match=r"cifar10 is neither .* expected digits, cifar100"):
        open_data("cifar10")
    with pytest.raises(InputError, match=r"gone\.npy is not a file"):
        open_data(tmp_path / "gone.npy")
    for name in ("a", "b"):
        for image in range(3):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.new("RGB", (4, 4)).save(tmp_path / name / f"{image}.png")
    assert open_data(tmp_path, size=(4, 4)).preprocessing.size == (4, 4)


def test_every_name_loads_twice_and_without_torch() -> None:
    for _ in range(2):  # a module of the same name would hide a function at the second time
        for name in room.__all__:
            assert not isinstance(getattr(room, name), type(sys)), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        room.nothing  # noqa: B018
    code = (
        "import sys, flowhash.data as room; [getattr(room, name) for name in room.__all__];"
        "print([name for name in ('torch', 'pyarrow', 'PIL') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
