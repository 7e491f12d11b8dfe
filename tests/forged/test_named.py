"""Files made on purpose, each kind that was seen or thought of by its name."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import socket
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from flowhash.data import arrays, image_folder, open_collection
from flowhash.data.files import array_files as data_files
from flowhash.data.files.archives import cached_pickle, read_folder, read_tar, uncompressed
from flowhash.data.files.array_files import read_npy
from flowhash.data.files.image_files import read_image
from flowhash.data.files.pickles import read_pickle, whole_numbers
from flowhash.durable_files import open_regular_file, read_regular_file
from flowhash.encoder import Encoder, encoder_files
from flowhash.errors import DamagedFileError, InputError, StorageError, reason
from flowhash.learn.training.checkpoints import Checkpoints
from flowhash.model_files import read_json, read_sealed, read_tensors, write_sealed
from flowhash.settings_file import read_settings
from tests.encoder.encoders import items_of, make
from tests.forged.forgeries import deep, mirrored, npy_bytes, npy_head

Opener = Callable[[Path], Any]
OPENERS: dict[str, Opener] = {
    "file.json": read_json,
    "sealed.json": read_sealed,
    "file.safetensors": read_tensors,
    "file.npy": read_npy,
    "file.npz": lambda path: uncompressed(path, "data", None),
    "file.parquet": open_collection,
    "file.png": lambda path: read_image(path, (8, 8)),
    "collection.npy": open_collection,
    "train": lambda path: read_folder(path.parent, {"train": 100}),
    "file.tar.gz": lambda path: read_tar(path, "folder", {"train": 100}),
    "train_data_batch_1": lambda path: cached_pickle(path, None),
    "last.json": lambda path: Checkpoints(path.parent).load("last"),
}


@pytest.mark.parametrize("name", OPENERS)
def test_pipes_devices_and_sockets_are_refused_and_nothing_waits(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    for make_other in (None, lambda: path.symlink_to("/dev/zero"), lambda: path.mkdir()):
        if make_other is not None:
            path.unlink()
            make_other()
        with pytest.raises((StorageError, InputError), match=name) as caught:
            OPENERS[name](path)
        assert "\n" not in str(caught.value)
    path.rmdir()
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)  # addresses are short
        server.bind(name)
        with pytest.raises((StorageError, InputError), match=name):
            OPENERS[name](path)


def test_a_pipe_among_images_is_named(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / folder / "0.png")
        os.mkfifo(tmp_path / folder / "1.png")
    with pytest.raises(StorageError, match=r"1\.png is a pipe; expected a file"):
        image_folder(tmp_path, validation=0.0)


def test_regular_files_have_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular_file(path, 5) == b"12345"
    with open_regular_file(path) as file:
        assert file.read(2) == b"12"
    with pytest.raises(DamagedFileError, match="has 5 bytes; expected at most 4"):
        read_regular_file(path, 4)
    with path.open("wb") as file:
        file.truncate(1 << 42)  # 4 TiB, none of them on the disk
    for read in (read_json, read_sealed):
        with pytest.raises(DamagedFileError, match="has 4398046511104 bytes"):
            read(path)
    with pytest.raises(StorageError, match="has 4398046511104 bytes, and needs more memory"):
        read_tensors(path)


def test_what_others_say_is_one_line_of_ours() -> None:
    assert reason(ValueError("a\n\n  b\x1b[31m\u202ec\td")) == "a b[31mc d"
    assert reason(KeyError()) == "KeyError"
    assert len(reason("word " * 10_000)) == 300


def forged(folder: Path, kind: str, **changes: Any) -> Path:
    """An encoder whose record has other entries, under a right checksum."""
    make(kind).save(folder)
    record = read_sealed(folder / "encoder.json")
    for way, value in changes.items():
        *keys, last = way.split("__")
        part = record
        for key in keys:
            part = part[key]
        part[last] = value
    write_sealed(folder / "encoder.json", record)
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hash__outputs": 10**12}, r"hash\.outputs has the number 1000000000000"),
        ({"hash__backbone__hidden": [1 << 24, 1 << 24]}, "far larger than the weights"),
        ({"hash__backbone__hidden": [1 << 20] * 50}, "far larger than the weights"),
        ({"hash__backbone__hidden": [7] * 100_000}, "far larger than the weights"),
        ({"hash__backbone__hidden": [8]}, "is stored as"),
        ({"hash__backbone__hidden": 5}, "'mlp' cannot take"),
        ({"hash__backbone__dropout": 2}, "dropout probability has to be between"),
        ({"hash__backbone__hub": True}, "'mlp' cannot take"),
        ({"hash__backbone": mirrored(300)}, "mirrored already"),
        ({"hash__backbone": [1]}, r"hash\.backbone is a list; expected an object"),
        ({"hash": 5}, "hash is a whole number, 5; expected an object"),
        ({"base__unit": 1}, r"base\.unit is a whole number, 1; expected true or false"),
        ({"active": True}, "active is true or false, True; expected a whole number"),
        ({"active": 0}, "active is 0"),
        ({"format": "9" * 5000}, r"has format '9{39}; this FlowHash reads 1"),
        ({"class_names": [1]}, "class_names are not all texts"),
        ({"class_names": "abc"}, "class_names is a text"),
        ({"weights": "../encoder.json"}, "names no weights of ours"),
        ({"weights": 7}, "weights is a whole number"),
        ({"preprocessing": []}, "preprocessing is a list"),
        ({"preprocessing__size": [1 << 20, 1 << 20]}, "size"),
        ({"preprocessing__scale": "x"}, r"preprocessing\.scale is a text"),
        ({"shared_backbone": "yes"}, "shared_backbone is not"),
        ({"fingerprint": "a\nb"}, "names the fingerprint a b, but"),
    ],
)
def test_forged_encoders(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    forged(tmp_path, "mlp", **changes)
    with pytest.raises((DamagedFileError, InputError), match=words) as caught:
        Encoder.load(tmp_path)
    assert str(tmp_path / "encoder.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "vit", "num_hidden_layers": 1 << 23},
        {"model_type": "vit", "hidden_size": 1 << 24, "num_attention_heads": 1},
        {"model_type": "vit", "image_size": 1 << 23, "patch_size": 1},
        {"model_type": "vit", "image_size": 30_000, "patch_size": 1},  # a few gigabytes
        {"model_type": "convnext", "depths": [1 << 22], "hidden_sizes": [8], "num_stages": 1},
        {"model_type": []},
        {"model_type": "no such model"},
        {
            "model_type": "timm_wrapper",
            "architecture": "hf-hub:o/n",
            "model_args": {"checkpoint_path": "/etc/passwd"},
        },
        {"model_type": "vit", "list": [{"backbone": "some/body"}]},
        5,
    ],
)
def test_forged_models_of_transformers(tmp_path: Path, config: Any) -> None:
    pytest.importorskip("transformers")
    forged(tmp_path, "vit", hash__backbone={"name": "transformers", "config": config})
    with pytest.raises((DamagedFileError, InputError), match=r"encoder\.json") as caught:
        Encoder.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_deep_json_is_refused_however_deep(tmp_path: Path) -> None:
    path = tmp_path / "encoder.json"
    for levels in (300, 480, 900, 990, 3000, 60_000):
        inner = "[" * levels + "]" * levels
        path.write_text('{\n  "format": 1,\n  "hash": ' + inner + "\n}\n")
        with pytest.raises(DamagedFileError, match=r"encoder\.json"):
            Encoder.load(tmp_path)
    forged(tmp_path, "mlp", hash__backbone={"name": "linear", "inputs": deep(200)})
    with pytest.raises((DamagedFileError, InputError), match=r"encoder\.json"):
        Encoder.load(tmp_path)


def test_counting_modules_leaves_other_threads_alone(tmp_path: Path) -> None:
    with encoder_files._Bounded({}) as bounds:
        bounds.parts = 0
        other = threading.Thread(target=lambda: made.append(make("mlp")))
        made: list[Encoder] = []
        other.start()
        other.join()
    assert made


def test_items_that_a_network_cannot_take_are_told(tmp_path: Path) -> None:
    # Of the right form for the preprocessing, but the network was made for another length.
    encoder = make("mlp", preprocessing=make("mlp").preprocessing.__class__("vectors"))
    encoder.hash.spec["backbone"]["inputs"] = None
    encoder.networks.hash.backbone.spec = {"name": "mlp"}
    with pytest.raises(InputError, match=r"cannot take items of shape \[4\]: mat1 and mat2"):
        encoder.encode(items_of("mlp", 2)[:, :4])


@pytest.mark.parametrize(
    "head",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 64), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 64), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 0), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (0, 4611686018427387904), }",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000000,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3, 4), }",
        "[" * 5000,
        "x" * 20_000,
    ],
)
def test_forged_npy_and_npz(tmp_path: Path, head: str) -> None:
    content = npy_head(head, 2) + bytes(256)
    npy, stored, packed = (tmp_path / f"X.{end}" for end in ("npy", "stored.npz", "packed.npz"))
    npy.write_bytes(content)
    for path, method in ((stored, zipfile.ZIP_STORED), (packed, zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("X.npy", content)
    for path in (npy, stored, packed):
        with pytest.raises((DamagedFileError, InputError), match=path.name) as caught:
            open_collection(path)
        assert "\n" not in str(caught.value)


def packed_npz(path: Path, array: Any, **entry: int) -> None:
    """An ``.npz`` file of one array whose central directory may tell something else."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", npy_bytes(array))
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02")
    fields = {"flags": (8, "<H"), "method": (10, "<H"), "size": (24, "<I")}
    for name, value in entry.items():
        offset, width = fields[name]
        struct.pack_into(width, content, place + offset, value)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"flags": 1}, "encrypted"),
        ({"method": 97}, "method"),
        ({"method": zipfile.ZIP_LZMA}, "method"),
        ({"size": 200}, "size that its header tells|Bad CRC-32"),
        ({"size": 0xFFFFFFFE}, r"unpack to|size that its header tells"),
    ],
)
def test_forged_members_of_npz_files(tmp_path: Path, entry: dict[str, int], words: str) -> None:
    path = tmp_path / "file.npz"
    packed_npz(path, np.arange(100.0).reshape(10, 10), **entry)
    with pytest.raises(DamagedFileError, match=rf"file\.npz.*({words})"):
        open_collection(path)
    with pytest.raises(DamagedFileError, match=rf"file\.npz.*({words})"):
        uncompressed(path, "X", tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.npz"]


def test_files_that_unpack_to_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "UNPACKED", 1 << 20)  # a small bomb, and a small limit
    dense, empty = np.random.default_rng(0).normal(size=(600, 500)), np.zeros((600, 500))
    npz, parquet = tmp_path / "file.npz", tmp_path / "file.parquet"
    for array, opens in ((dense, True), (empty, False)):
        packed_npz(npz, array)
        pyarrow.parquet.write_table(pyarrow.table({"X": list(array)}), parquet)
        for path in (npz, parquet):
            if opens:
                assert len(open_collection(path)) == 600
                continue
            with pytest.raises(DamagedFileError, match=r"file\..*unpack to \d+; .*numpy\.savez"):
                open_collection(path)
        if not opens:
            with pytest.raises(DamagedFileError, match="unpack to"):
                uncompressed(npz, "X", None)
    np.savez(npz, X=empty)  # as the message says
    assert len(open_collection(npz)) == 600


def test_names_in_files_do_not_break_the_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "file.npz", **{"a\nb\x1b[2J": np.ones(3)})
    table = pyarrow.table({"a\nb\x1b[2J": [1.0]})
    pyarrow.parquet.write_table(table, tmp_path / "file.parquet")
    for name in ("file.npz", "file.parquet"):
        with pytest.raises(InputError, match=r"has a b\[2J; looked for items") as caught:
            arrays(tmp_path / name)
        assert str(caught.value).isprintable()


def pickled(program: bytes) -> bytes:
    return b"\x80\x02" + program + b"."


@pytest.mark.parametrize(
    "content",
    [
        pickled(b"}" + b")" + b"\x85" * 1_000_000 + b"K\x01s"),  # a key of tuples in each other
        pickled(b"}r\xff\xff\xff\x7f"),  # the memory's place 2^31
        pickled(b"}p99999999999\n"),
        pickled(b"}U\x01acnumpy\ndtype\nT\x00\x00\x10\x00" + b"A" * (1 << 20) + b"\x85Rs"),
        pickled(b"}U\x01acos\x1b[2J\nsystem\x07\ns"),
        pickled(b"}K\x07K\x01s"),
        pickled(b"}\x8a\xff" + b"\x01" * 255 + b"K\x01s"),  # a number of 600 digits as key
    ],
    ids=["tuples", "place", "place in words", "type", "escapes", "number", "long"],
)  # fmt: skip
def test_pickles_that_would_end_the_process_or_print_themselves(content: bytes) -> None:
    with pytest.raises(DamagedFileError, match=r"^the-file ") as caught:
        read_pickle(content, "the-file")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_a_pickle_cannot_make_more_bytes_than_it_has() -> None:
    text = b"X" + struct.pack("<I", 10_000) + b"x" * 10_000 + b"q\x01"
    again = b"c_codecs\nencode\nh\x01U\x06latin1\x86R"
    content = pickled(b"}U\x01a](" + text + again * 100 + b"es")
    with pytest.raises(DamagedFileError, match="more bytes than it has itself"):
        read_pickle(content, "the-file")


def test_labels_of_a_pickle_are_a_flat_list() -> None:
    again: Any = [1]
    for _ in range(40):
        again = [again, again]  # numpy would make an array of 2^40 numbers
    loaded = read_pickle(pickle.dumps({"labels": again, "fine": [3, 1], "big": [1 << 70]}), "file")
    assert whole_numbers(loaded["labels"]) is None
    assert whole_numbers(loaded["big"]) is None
    np.testing.assert_array_equal(whole_numbers(loaded["fine"]), [3, 1])


def tar_of(*members: tuple[str, int, bytes]) -> bytes:
    """A tar file of members with a name, a type, and zeros whose number the header tells."""
    content = io.BytesIO()
    for name, size, kind in members:
        entry = tarfile.TarInfo(name)
        entry.size, entry.type = size, kind
        content.write(entry.tobuf(tarfile.GNU_FORMAT) + bytes(size + -size % 512))
    return content.getvalue() + bytes(1024)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_archives_are_unpacked_up_to_a_limit(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "file.tar.gz"
    small = ("folder/train", 10, tarfile.REGTYPE)
    path.write_bytes(gzip.compress(tar_of(small)))
    assert read_tar(path, "folder", {"train": 10})["train"].content == bytes(10)
    path.write_bytes(gzip.compress(tar_of(("other", 1 << 26, kind), small), 1))
    with pytest.raises(DamagedFileError, match=r"file\.tar\.gz.*unpacks to more than"):
        read_tar(path, "folder", {"train": 10})


def test_archives_of_very_many_members(tmp_path: Path) -> None:
    path = tmp_path / "file.tar.gz"
    path.write_bytes(gzip.compress(tar_of(("other", 0, tarfile.REGTYPE))[:512] * 12_000, 1))
    with pytest.raises(DamagedFileError, match=r"file\.tar\.gz.*more than 10000 members"):
        read_tar(path, "folder", {"train": 10})


def test_a_header_of_another_version_is_refused(tmp_path: Path) -> None:
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"
    for version in range(1, 5):
        (tmp_path / "file.npy").write_bytes(npy_head(head, version) + bytes(48))
        if version < 4:
            assert read_npy(tmp_path / "file.npy").shape == (3, 4)
            continue
        with pytest.raises(DamagedFileError, match=r"file\.npy.*version \(4, 0\)"):
            read_npy(tmp_path / "file.npy")


def test_options_in_pipes_and_deep_brackets(tmp_path: Path) -> None:
    path = tmp_path / "options.toml"
    path.write_text("a = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(InputError, match=r"options\.toml is not TOML"):
        read_settings(path, "fit")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"options\.toml is a pipe"):
        read_settings(path, "fit")
