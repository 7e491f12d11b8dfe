"""Files of encoders and checkpoints: replaced in one step, every changed byte noticed."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from flowhash import model_files as artefact
from flowhash.errors import DamagedFileError, MissingExtraError, StorageError

RECORD: dict[str, Any] = {
    "text": "ü \ud800 \n", "list": [1, 2.5, None, True], "object": {"10": 1, "9": {}},
}  # fmt: skip


def test_json_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file.json"
    artefact.write_json(path, RECORD)
    assert artefact.read_json(path) == RECORD
    artefact.write_json(path, {})
    assert artefact.read_json(path) == {}
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


def test_sealed_json_comes_back_without_its_seal(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    artefact.write_sealed(path, RECORD)
    assert artefact.read_sealed(path) == RECORD
    assert list(artefact.read_json(path))[-1] == "checksum"


def test_every_changed_byte_of_sealed_json_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    artefact.write_sealed(path, RECORD)
    content = path.read_bytes()
    for place in range(len(content)):
        for other in {content[place] ^ 1, content[place] ^ 0x80, ord(" "), ord("\n"), ord("0")}:
            if other == content[place]:
                continue
            path.write_bytes(content[:place] + bytes([other]) + content[place + 1 :])
            with pytest.raises(DamagedFileError, match=r"file\.json"):
                artefact.read_sealed(path)
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        with pytest.raises(DamagedFileError, match=r"file\.json"):
            artefact.read_sealed(path)
    path.write_bytes(content + b" ")
    with pytest.raises(DamagedFileError, match=r"file\.json"):
        artefact.read_sealed(path)


@pytest.mark.parametrize("content", [b"[]", b"nonsense", b"\xff\xfe", b'{"a": NaN}', b"[" * 100000])
def test_what_was_never_written_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"file\.json"):
        artefact.read_sealed(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"absent\.json"):
        artefact.read_json(tmp_path / "absent.json")
    with pytest.raises(DamagedFileError, match=r"absent\.safetensors is missing"):
        artefact.read_tensors(tmp_path / "absent.safetensors")


def test_tensors_come_back_also_tied_and_strided_ones(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    whole = torch.arange(24.0).reshape(2, 3, 2, 2)
    tensors = {
        "whole": whole, "tied": whole, "part": whole[1], "turned": whole.transpose(0, 1),
        "number": torch.tensor(3), "flags": torch.tensor([True, False]), "none": torch.zeros(0, 4),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "last": whole.to(memory_format=torch.channels_last),
    }  # fmt: skip
    checksum = artefact.write_tensors(path, tensors)
    found = artefact.read_tensors(path, checksum)
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def test_a_changed_byte_of_tensors_is_noticed_by_their_checksum(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    checksum = artefact.write_tensors(path, {"one": torch.arange(3.0), "two": torch.zeros(2)})
    content = path.read_bytes()
    for place in range(len(content)):
        changed = bytes([content[place] ^ 1])
        path.write_bytes(content[:place] + changed + content[place + 1 :])
        with pytest.raises(DamagedFileError, match=r"file\.safetensors"):
            artefact.read_tensors(path, checksum)
    path.write_bytes(content[:-1])
    with pytest.raises(DamagedFileError, match=r"file\.safetensors cannot be read"):
        artefact.read_tensors(path)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (MemoryError(), StorageError, "more memory than is free"),
        (RuntimeError("can't allocate memory: 1 byte"), StorageError, "more memory than is free"),
        (OSError(errno.EMFILE, "Too many\nopen files"), StorageError, ": Too many open files"),
        (ImportError("\nit needs\ntimm"), MissingExtraError, ": it needs timm"),
        (MissingExtraError("install it"), MissingExtraError, "install it"),
        (KeyError("x"), DamagedFileError, "from a copy, or install the versions of its libraries"),
        (OSError("no model of this name"), DamagedFileError, "no model of this name; restore"),
    ],
)
def test_what_is_no_damage_of_a_description(
    error: Exception, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught, artefact.described_by(Path("a"), "encoder"):
        raise error
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


def test_weights_that_the_memory_cannot_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.safetensors"
    artefact.write_tensors(path, {"a": torch.ones(3)})
    size = path.stat().st_size
    monkeypatch.setattr(artefact, "memory", lambda: 2 * size)
    assert artefact.read_tensors(path)["a"].tolist() == [1, 1, 1]
    monkeypatch.setattr(artefact, "memory", lambda: 2 * size - 1)
    with pytest.raises(StorageError, match="more memory than this machine has") as caught:
        artefact.read_tensors(path)
    assert not isinstance(caught.value, DamagedFileError)


def test_a_file_that_goes_while_it_is_opened_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads an encoder looks again then: another may have been saved meanwhile."""
    path = tmp_path / "x.safetensors"
    artefact.write_tensors(path, {"a": torch.ones(2)})
    read = artefact.read_regular_file

    def late(path: Path, limit: int) -> bytes:
        path.unlink()
        return read(path, limit)

    monkeypatch.setattr(artefact, "read_regular_file", late)
    with pytest.raises(DamagedFileError, match=r"x\.safetensors is missing"):
        artefact.read_tensors(path)
