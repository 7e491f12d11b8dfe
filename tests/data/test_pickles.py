"""Pickles are read without running what they say."""

from __future__ import annotations

import gc
import os
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.data.files.pickles import ALLOWED, _Unpickler, read_pickle
from flowhash.errors import DamagedFileError
from tests.data.builders import python2_pickle


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_does_not_run(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "mark"
    content = pickle.dumps({"data": Evil(mark)}, protocol)
    with pytest.raises(DamagedFileError, match=r"evil\.pkl.*(posix|nt)\.system"):
        read_pickle(content, "evil.pkl")
    assert not mark.exists()
    pickle.loads(content)
    assert mark.exists()  # it would have


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["u1", "<i8", ">i4", "<f4", ">f8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_as_numpy_wrote_them(protocol: int, kind: str, order: Any) -> None:
    array = np.arange(12).reshape(3, 4).astype(kind, order=order)
    content = {b"data": array, "labels": [1, 2, 3], "names": ["é", b"b"], "none": None}
    found = read_pickle(pickle.dumps(content, protocol), "file")
    assert type(found["data"]) is np.ndarray
    assert found["data"].dtype == array.dtype
    np.testing.assert_array_equal(found["data"], array)
    assert (found["labels"], found["names"], found["none"]) == ([1, 2, 3], ["é", b"b"], None)


def test_a_pickle_of_python_2() -> None:
    array = np.random.default_rng(0).integers(0, 256, (5, 7), np.uint8)
    content = python2_pickle(array, [3, 1, 4, 1, 5])
    np.testing.assert_array_equal(pickle.loads(content, encoding="bytes")[b"data"], array)
    found = read_pickle(content, "file")
    np.testing.assert_array_equal(found["data"], array)
    assert found["labels"] == [3, 1, 4, 1, 5]


@pytest.mark.parametrize(
    "value",
    [
        np.array([{}], object),
        np.zeros(3, [("a", "i4")]),
        np.array(["text"]),
        np.array([1j]),
        np.ma.masked_array([1, 2], [True, False]),
    ],
    ids=["objects", "records", "text", "complex", "masked"],
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_only_numbers_are_read(value: Any, protocol: int) -> None:
    with pytest.raises(DamagedFileError, match="the-file"):
        read_pickle(pickle.dumps({"data": value}, protocol), "the-file")


def test_stand_ins_cannot_be_changed() -> None:
    # BUILD with a state of attributes, on something that the pickle may name.
    for module, name in ALLOWED:
        opcodes = f"\x80\x02c{module}\n{name}\nN}}U\x01xK\x01s\x86b.".encode("latin1")
        with pytest.raises(DamagedFileError, match="state"):
            read_pickle(opcodes, "file")


def test_bytes_are_released_without_a_collection() -> None:
    content = pickle.dumps({"data": b"\xff" * 9}, 2)
    assert b"_codecs" in content
    gc.disable()
    try:
        unpickler = _Unpickler(content)
        assert unpickler.load() == {"data": b"\xff" * 9}
        alive = weakref.ref(unpickler)
        del unpickler
        assert alive() is None
    finally:
        gc.enable()


def test_damaged_pickles_are_named() -> None:
    whole = pickle.dumps({"data": np.arange(100, dtype=np.uint8)}, 2)
    for content in (b"", b"nonsense", whole[:-20], whole[: len(whole) // 2]):
        with pytest.raises(DamagedFileError, match="the-file"):
            read_pickle(content, "the-file")
    with pytest.raises(DamagedFileError, match=r"the-file.*list.*dictionary"):
        read_pickle(pickle.dumps([1]), "the-file")


def test_an_array_of_another_size_than_its_bytes() -> None:
    array = np.arange(100, dtype=np.uint8)
    content = pickle.dumps({"data": array}, 2).replace(b"Kd\x85", b"Ke\x85")
    with pytest.raises(DamagedFileError, match="the-file"):
        read_pickle(content, "the-file")
