"""The encoder: what it makes, how it is kept, what it refuses."""

from __future__ import annotations

import copy
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flowhash
from flowhash.data.item_sources import ArrayItems
from flowhash.data.labelled_data import LabelledItems
from flowhash.data.preprocess import Preprocessing
from flowhash.encoder import Encoded, Encoder
from flowhash.errors import DamagedFileError, InputError
from flowhash.model_files import read_sealed, write_sealed
from flowhash.networks import EmbeddingNetwork, build_backbone, custom_backbone
from flowhash.table import HashTable
from tests.encoder import encoders
from tests.encoder.encoders import DIM, KINDS, Own, items_of, make

SCRIPT = Path(encoders.__file__)


def assert_equal(one: Encoded, other: Encoded) -> None:
    np.testing.assert_array_equal(one.embeddings, other.embeddings)
    np.testing.assert_array_equal(one.activations, other.activations)
    assert (one.active, one.fingerprint) == (other.active, other.fingerprint)


def own(kind: str) -> nn.Module | None:
    return Own() if kind == "custom" else None


def environment_of_children() -> dict[str, str]:
    """With this FlowHash and these tests to import."""
    paths = [str(SCRIPT.parents[2]), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", [True, False])
def test_it_makes_what_the_networks_make(kind: str, base: bool) -> None:
    encoder = make(kind, base=base)
    items = items_of(kind, 5)
    ready = torch.from_numpy(encoder.preprocessing(items))
    made = encoder.encode(items, batch_size=2)
    with torch.inference_mode():
        activations = encoder.hash(ready)
        embeddings = activations if encoder.base is None else encoder.base(ready)
    np.testing.assert_allclose(made.embeddings, embeddings.numpy(), atol=1e-6)
    np.testing.assert_allclose(made.activations, activations.numpy(), atol=1e-6)
    assert made.embeddings.dtype == made.activations.dtype == np.float32
    assert (len(made), encoder.dim, encoder.buckets) == (5, 4 if base else 11, 11)
    np.testing.assert_array_equal(made.codes, flowhash.topk_codes(made.activations, 2))
    np.testing.assert_array_equal(
        made.ordered_buckets(3), flowhash.ordered_buckets(made.activations, 3)
    )
    assert made.ordered_buckets().shape == (5, 11)


def test_all_forms_of_items_give_the_same() -> None:
    encoder = make("nin")
    images = items_of("nin", 6)
    tensor = torch.from_numpy(images)
    labels = np.zeros(6, np.int64)
    forms: list[Any] = [
        images,
        tensor,
        tensor.permute(0, 3, 1, 2),
        LabelledItems(ArrayItems(images), labels, ("a",), "here"),
        DataLoader(TensorDataset(tensor, torch.from_numpy(labels)), batch_size=4),
        (image for image in images),
        (images[start : start + 4] for start in (0, 4)),
    ]
    expected = encoder.encode(images, batch_size=4)
    for form in forms:
        assert_equal(encoder.encode(form, batch_size=4), expected)


def test_nothing_gives_nothing() -> None:
    made = make("mlp").encode([])
    assert made.embeddings.shape == (0, 4)
    assert made.activations.shape == (0, 11)
    assert made.codes.shape == (0, 2)


def test_items_are_let_go_batch_by_batch() -> None:
    encoder = make("linear")
    asked: list[int] = []

    def endless() -> Iterator[NDArray[Any]]:
        while True:
            asked.append(1)
            yield items_of("linear", 3, len(asked))

    parts = encoder.stream(endless(), batch_size=3)
    assert asked == []
    for number in range(1, 5):
        part = next(parts)
        assert len(asked) == number
        assert_equal(part, encoder.encode(items_of("linear", 3, number)))


def test_errors_of_items_come_through() -> None:
    with pytest.raises(InputError, match="leave out ToTensor"):
        make("nin").encode(items_of("nin", 2) / 255)
    with pytest.raises(InputError, match=r"expected .*\[n, 16, 14, 3\]"):
        make("nin").encode(np.zeros((2, 14, 16, 3), np.uint8))
    plain = Preprocessing("vectors")  # does not know how long vectors are; the network does
    for encoder in (make("mlp"), make("mlp", preprocessing=plain)):
        with pytest.raises(InputError, match=r"expected vectors \[n, 5\]"):
            encoder.encode(np.zeros((2, 4)))
    with pytest.raises(InputError, match="item 1 holds nan"):
        make("mlp").encode(np.array([[0.0] * 5, [np.nan] * 5]))
    with pytest.raises(InputError, match="device is 'toaster'"):
        make("mlp").encode(np.zeros((2, 5)), device="toaster")
    with pytest.raises(InputError, match="active is 12; expected 1 to 11"):
        make("mlp", active=12)


def count_calls(module: nn.Module, calls: list[int]) -> None:
    module.register_forward_hook(lambda *_: calls.append(1))


@pytest.mark.parametrize("kind", ["nin", "residual", "mlp", "linear", "vit"])
def test_a_frozen_backbone_runs_once_and_is_stored_once(kind: str, tmp_path: Path) -> None:
    encoder, apart = make(kind, shared=True), make(kind)
    items = items_of(kind, 3)
    assert encoder.base is not None
    calls: list[int] = []
    count_calls(encoder.hash.backbone, calls)
    made = encoder.encode(items)
    assert len(calls) == 1
    ready = torch.from_numpy(encoder.preprocessing(items))
    np.testing.assert_allclose(made.embeddings, encoder.base(ready), atol=1e-6)
    np.testing.assert_allclose(made.activations, encoder.hash(ready), atol=1e-6)
    encoder.save(tmp_path / "shared")
    apart.save(tmp_path / "apart")
    loaded = Encoder.load(tmp_path / "shared")
    assert loaded.networks.shared
    assert_equal(loaded.encode(items), made)
    if kind != "linear":  # which has no weights
        assert not apart.networks.shared
        sizes = [
            sum(file.stat().st_size for file in (tmp_path / name).glob("*.safetensors"))
            for name in ("shared", "apart")
        ]
        assert sizes[0] < sizes[1]


def test_modules_of_ones_own_are_shared_only_if_they_are_one() -> None:
    # Equal weights do not say that two modules compute the same.
    one = custom_backbone(nn.Sequential(nn.Linear(5, 3), nn.ReLU()), features=3)
    other = custom_backbone(nn.Sequential(nn.Linear(5, 3), nn.Tanh()), features=3)
    other.load_state_dict(one.state_dict())
    preprocessing = encoders.preprocessing_of("mlp")
    items = items_of("mlp", 4)
    ready = torch.from_numpy(preprocessing(items))
    for second, shared in ((other, False), (one, True)):
        base, hashing = EmbeddingNetwork(one, 4), EmbeddingNetwork(second, 11)
        encoder = Encoder(base, hashing, preprocessing, 1)
        assert encoder.networks.shared is shared
        made = encoder.encode(items)
        with torch.inference_mode():
            np.testing.assert_allclose(made.embeddings, base(ready), atol=1e-6)
            np.testing.assert_allclose(made.activations, hashing(ready), atol=1e-6)


def test_training_on_does_not_change_the_encoder() -> None:
    base = EmbeddingNetwork(encoders.backbone("mlp"), 4)
    hashing = EmbeddingNetwork(encoders.backbone("mlp"), 11)
    encoder = Encoder(base, hashing, encoders.preprocessing_of("mlp"), 2)
    before = encoder.encode(items_of("mlp", 3))
    for network in (base, hashing):
        for value in network.parameters():
            assert value.requires_grad
            value.data += 1
    assert_equal(encoder.encode(items_of("mlp", 3)), before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", [True, False])
def test_it_comes_back_from_its_folder(kind: str, base: bool, tmp_path: Path) -> None:
    encoder = make(kind, base=base)
    items = items_of(kind, 4)
    made = encoder.encode(items)
    encoder.save(tmp_path / "new" / "folder")
    module = own(kind)
    state = torch.get_rng_state()
    loaded = Encoder.load(str(tmp_path / "new" / "folder"), module)
    assert torch.equal(torch.get_rng_state(), state)  # loading draws no random numbers
    assert loaded.fingerprint == encoder.fingerprint
    assert (loaded.active, loaded.class_names) == (2, encoders.CLASSES)
    assert loaded.preprocessing.to_json() == encoder.preprocessing.to_json()
    assert_equal(loaded.encode(items), made)
    loaded.save(tmp_path / "again")
    for file in (tmp_path / "new" / "folder").iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
    assert repr(loaded) == repr(encoder)


def test_the_fingerprint_is_the_same_in_another_process(tmp_path: Path) -> None:
    for kind in ("vit", "mlp"):
        make(kind).save(tmp_path / kind)
    program = (
        "import sys\nfrom flowhash.encoder import Encoder\n"
        "from tests.encoder.encoders import make\n"
        "for kind in ('vit', 'mlp'):\n"
        "    print(make(kind).fingerprint, Encoder.load(f'{sys.argv[1]}/{kind}').fingerprint)\n"
    )
    environment = {**environment_of_children(), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    expected = [make(kind).fingerprint for kind in ("vit", "vit", "mlp", "mlp")]
    assert printed.stdout.split() == expected


def test_the_fingerprint_changes_with_everything() -> None:
    encoder = make("residual")
    kept = encoder.preprocessing
    seen = {encoder.fingerprint}
    changes: list[dict[str, Any]] = [
        {"active": 3},
        {"class_names": ("ant", "bée", "cow ")},
        {"class_names": ("ant", "cow", "bée")},
        {"class_names": ()},
        {"preprocessing": Preprocessing("images", kept.size, 1 / 256, kept.mean, kept.std)},
        {"preprocessing": Preprocessing("images", kept.size, 1 / 255, kept.mean + 1e-6, kept.std)},
        {"preprocessing": Preprocessing("images", kept.size, 1 / 255, kept.mean, kept.std * 2)},
        {"base": False},
    ]
    for change in changes:
        seen.add(make("residual", **change).fingerprint)
    assert len(seen) == 1 + len(changes)
    assert encoder.base is not None
    count = len(seen)
    for network in ("base", "hash"):
        for name, value in getattr(encoder, network).state_dict().items():
            networks = {"base": copy.deepcopy(encoder.base), "hash": copy.deepcopy(encoder.hash)}
            changed = networks[network].state_dict()[name]
            if value.is_floating_point():
                bits = changed.view(torch.int32)
                bits[(0,) * bits.ndim] ^= 1  # the smallest change there is
            else:
                changed += 1
            other = Encoder(networks["base"], networks["hash"], kept, 2, encoder.class_names)
            seen.add(other.fingerprint)
            count += 1
    assert len(seen) == count
    unit = EmbeddingNetwork(encoder.hash.backbone, 11, unit=True)
    unit.load_state_dict(encoder.hash.state_dict())
    seen.add(Encoder(encoder.base, unit, kept, 2, encoder.class_names).fingerprint)
    assert len(seen) == count + 1


def test_a_network_of_ones_own_has_to_be_passed_again(tmp_path: Path) -> None:
    make("custom").save(tmp_path)
    with pytest.raises(InputError, match=r"module of your own.* pass .* as backbone="):
        Encoder.load(tmp_path)
    with pytest.raises(InputError, match="backbone= is a Own, which does not take the weights of"):
        Encoder.load(tmp_path, Own(channels=4))
    with pytest.raises(
        InputError, match=r"backbone= is a Linear, .* the Own that the hash network"
    ):
        Encoder.load(tmp_path, nn.Linear(2, 3))
    passed = Own()
    before = copy.deepcopy(passed.state_dict())
    Encoder.load(tmp_path, passed)
    assert all(torch.equal(before[name], value) for name, value in passed.state_dict().items())


def test_a_folder_without_an_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no encoder: there is no encoder\.json"):
        Encoder.load(tmp_path)
    make("mlp").save(tmp_path)
    record = read_sealed(tmp_path / "encoder.json")
    write_sealed(tmp_path / "encoder.json", {**record, "format": 5})
    with pytest.raises(InputError, match="has format 5; this FlowHash reads 1 to 4"):
        Encoder.load(tmp_path)
    write_sealed(tmp_path / "encoder.json", {**record, "fingerprint": "0" * 32})
    with pytest.raises(DamagedFileError, match=r"encoder\.json names the fingerprint 0000"):
        Encoder.load(tmp_path)
    record.pop("active")
    write_sealed(tmp_path / "encoder.json", record)
    with pytest.raises(DamagedFileError, match=r"encoder\.json lacks active"):
        Encoder.load(tmp_path)


def test_saving_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for seed in range(3):
        encoder = make("mlp", seed)
        encoder.save(tmp_path)
        (tmp_path / "encoder-0.safetensors.new").write_bytes(b"of one that was killed")
    encoder.save(tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"encoder.json", f"encoder-{encoder.fingerprint}.safetensors"}
    assert Encoder.load(tmp_path).fingerprint == encoder.fingerprint


def test_a_changed_byte_is_noticed_and_its_file_named(tmp_path: Path) -> None:
    make("linear").save(tmp_path)
    for file in list(tmp_path.iterdir()):
        content = file.read_bytes()
        for place in range(0, len(content), 7 if file.suffix == ".json" else 31):
            file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            with pytest.raises(DamagedFileError, match=file.name):
                Encoder.load(tmp_path)
        file.write_bytes(content[: len(content) // 2])
        with pytest.raises(DamagedFileError, match=file.name):
            Encoder.load(tmp_path)
        if file.suffix != ".json":
            file.unlink()
            with pytest.raises(DamagedFileError, match=f"{file.name} is missing"):
                Encoder.load(tmp_path)
        file.write_bytes(content)
    Encoder.load(tmp_path)


@pytest.mark.long
def test_killed_while_saving_it_leaves_one_encoder_whole(tmp_path: Path) -> None:
    expected = {make("mlp", seed).fingerprint for seed in (1, 2)}
    environment = {**environment_of_children(), "OMP_NUM_THREADS": "1"}
    random = np.random.default_rng(0)
    found = set()
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path)],
            stdout=subprocess.PIPE,
            env=environment,
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            for _ in range(6):
                # Stopped and killed look the same to a reader; stopping lets one child serve often.
                time.sleep(random.uniform(0.001, 0.02))
                child.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, child.pid, os.WSTOPPED)
                found.add(Encoder.load(tmp_path).fingerprint)
                child.send_signal(signal.SIGCONT)
                found.add(Encoder.load(tmp_path).fingerprint)  # while it is being replaced
            time.sleep(random.uniform(0.001, 0.02))
        finally:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()
        found.add(Encoder.load(tmp_path).fingerprint)
    assert found <= expected
    make("mlp", 1).save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2  # what the killed ones left is gone


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return make("mlp")


def test_a_table_is_filled_and_searched(encoder: Encoder, tmp_path: Path) -> None:
    items = items_of("mlp", 40)
    made = encoder.encode(items)
    with encoder.create_table(tmp_path / "table", metric="cosine", ids="string") as table:
        assert (table.buckets, table.dim, table.active, table.metric) == (11, 4, 2, "cosine")
        assert table.encoder == encoder.fingerprint
        names = [f"item {number}" for number in range(40)]
        payloads = [{"number": number} for number in range(40)]
        added = encoder.add(table, iter(items), names, payloads, batch_size=7)
        assert added.tolist() == names
        expected = table.search(made.ordered_buckets(), made.embeddings, 3, probe=4, payloads=True)
        hits = encoder.search(table, items, 3, probe=4, payloads=True, batch_size=9)
        assert hits.ids.tolist() == expected.ids.tolist()
        np.testing.assert_allclose(hits.distances, expected.distances, atol=1e-6)
        assert hits.ids[:, 0].tolist() == names
        assert hits.payloads is not None
        assert hits.payloads[5][0] == {"number": 5}
        np.testing.assert_array_equal(table.buckets_of("item 3"), made.codes[3])


def test_options_of_a_search_mean_what_they_mean_to_the_table(encoder: Encoder) -> None:
    table = encoder.create_table()
    assert table.metric == "euclidean"
    items = items_of("mlp", 30)
    made = encoder.encode(items)
    # In buckets drawn at random: an untrained network's items are all in the same few.
    random = np.random.default_rng(0)
    codes = np.argsort(random.random((30, 11)), axis=1)[:, :2]
    table.add(codes, made.embeddings, encoder=encoder.fingerprint)
    for options in ({}, {"probe": 1}, {"at_least": 25}, {"probe": 11}, {"where": [1, 2, 3]}):
        expected = table.search(made.ordered_buckets(), made.embeddings, 5, **options)
        hits = encoder.search(table, items, 5, **options)
        np.testing.assert_array_equal(hits.ids, expected.ids)
        np.testing.assert_array_equal(hits.scanned, expected.scanned)
    for wrong, message in ((12, "table has 11 buckets"), (0, "probe is 0"), ("a", "probe is 'a'")):
        with pytest.raises(InputError, match=message):
            encoder.search(table, items, probe=wrong)


def test_a_table_of_another_encoder_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    other = make("mlp", 1)
    items = items_of("mlp", 3)
    table = encoder.create_table(tmp_path)
    both = f"made with encoder '{encoder.fingerprint}', not '{other.fingerprint}'"
    made = other.encode(items)
    with pytest.raises(InputError, match=both):
        other.add(table, items)
    with pytest.raises(InputError, match=both):
        other.search(table, items)
    with pytest.raises(InputError, match=both):
        table.add(made.codes, made.embeddings, encoder=made.fingerprint)
    with pytest.raises(InputError, match=both):
        table.search(made.ordered_buckets(), made.embeddings, encoder=made.fingerprint)
    assert len(table) == 0
    table.close()
    with pytest.raises(InputError, match=both):
        HashTable.open(tmp_path, encoder=other.fingerprint)


def test_a_table_without_fingerprint_has_to_fit(encoder: Encoder) -> None:
    items = items_of("mlp", 3)
    table = HashTable.create(buckets=11, dim=4, active=2)
    encoder.add(table, items)
    assert encoder.search(table, items, 1).ids.tolist() == [[0], [1], [2]]
    for sizes in ((12, 4, 2), (11, 5, 2), (11, 4, 1)):
        buckets, dim, active = sizes
        table = HashTable.create(buckets=buckets, dim=dim, active=active)
        with pytest.raises(InputError, match=r"the table has .*, but this encoder makes"):
            encoder.add(table, items)
        with pytest.raises(InputError, match=r"the table has .*, but this encoder makes"):
            encoder.search(table, items)


def test_ids_and_payloads_are_one_an_item(encoder: Encoder) -> None:
    items = items_of("mlp", 5)
    wrong: list[dict[str, Any]] = [{"ids": [1, 2]}, {"payloads": [None] * 6}]
    for given in wrong:
        ((name, values),) = given.items()
        table = encoder.create_table()
        message = f"{name} has {len(values)} entries for 5 items"
        with pytest.raises(InputError, match=message + r".*nothing was added"):
            encoder.add(table, items, **given)
        assert len(table) == 0
    with pytest.raises(InputError, match=r"ids has 0 ids for 2 embeddings"):
        encoder.add(encoder.create_table(), iter(items), ids=[1, 2], batch_size=2)
    table = encoder.create_table()
    with pytest.raises(InputError, match=r"payloads has 6 entries for 5 items.*were added"):
        encoder.add(table, iter(items), payloads=[None] * 6)
    assert len(table) == 5
    with pytest.raises(InputError, match="ids is a generator; expected an array or a list"):
        encoder.add(table, items, ids=(number for number in range(5)))
    assert encoder.add(table, items, ids=np.arange(10, 15), batch_size=2).tolist() == [
        10, 11, 12, 13, 14,
    ]  # fmt: skip
    assert encoder.add(table, []).shape == (0,)


def test_each_batch_is_added_before_the_next_is_asked_for(encoder: Encoder) -> None:
    table = encoder.create_table()
    seen: list[int] = []

    def watching() -> Iterator[NDArray[Any]]:
        for number in range(4):
            seen.append(len(table))
            yield items_of("mlp", 3, number)

    encoder.add(table, watching(), batch_size=3)
    assert seen == [0, 3, 6, 9]


def test_an_unknown_backbone_is_named(tmp_path: Path) -> None:
    make("mlp").save(tmp_path)
    record = read_sealed(tmp_path / "encoder.json")
    record["hash"]["backbone"]["name"] = "of tomorrow"
    write_sealed(tmp_path / "encoder.json", record)
    with pytest.raises(InputError, match="of tomorrow"):
        Encoder.load(tmp_path)
    with pytest.raises(InputError, match="of tomorrow"):
        build_backbone({"name": "of tomorrow"})


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The addresses that anybody asks for while a test runs; nobody gets any."""
    asked: list[Any] = []

    def refuse(*arguments: Any, **_: Any) -> None:
        asked.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return asked


def described(folder: Path, backbone: dict[str, Any]) -> None:
    """Another backbone in an encoder's folder, under a right checksum."""
    make("vit").save(folder)
    record = read_sealed(folder / "encoder.json")
    record["hash"]["backbone"] = backbone
    write_sealed(folder / "encoder.json", record)


@pytest.mark.parametrize(
    "backbone",
    [
        {"name": "transformers", "model": "somebody/something"},
        {"name": "transformers", "model": "somebody/something", "config": None},
        {"name": "mirrored", "backbone": {"name": "transformers", "model": "somebody/something"}},
        {
            "name": "transformers",
            "config": {"model_type": "detr", "backbone": "some/body", "use_timm_backbone": False},
        },
        {
            "name": "transformers",
            "config": {"model_type": "vit", "attn_implementation": "some/kernel"},
        },
        {
            "name": "transformers",
            "config": {"model_type": "vit", "auto_map": {"AutoModel": "some/body--model.Evil"}},
        },
    ],
)
def test_loading_asks_no_hub(tmp_path: Path, backbone: dict[str, Any], calls: list[Any]) -> None:
    described(tmp_path, backbone)
    with pytest.raises((InputError, DamagedFileError), match=r"encoder\.json") as caught:
        Encoder.load(tmp_path)
    assert not calls
    if "auto_map" not in str(backbone):  # which needs no hub, since its code is never run
        assert "hub=True) or FLOWHASH_HUB=1" in str(caught.value)


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_hub_is_asked_where_the_user_says_so(
    how: str, tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    described(tmp_path, {"name": "transformers", "model": "somebody/something"})
    monkeypatch.setenv("FLOWHASH_HUB", "1" if how == "environment" else "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # before the hub is asked again
    with pytest.raises(InputError, match=r"cannot load the model 'somebody/something'"):
        Encoder.load(tmp_path, hub=True if how == "argument" else None)
    assert calls
    calls.clear()
    with pytest.raises(InputError, match="FLOWHASH_HUB"):
        Encoder.load(tmp_path, hub=False)
    assert not calls


def test_a_saved_encoder_is_loaded_without_a_call(tmp_path: Path, calls: list[Any]) -> None:
    encoder = make("vit")
    encoder.save(tmp_path)
    assert Encoder.load(tmp_path).fingerprint == encoder.fingerprint
    assert not calls


@pytest.mark.parametrize("metric", ["cosine", "inner"])
def test_angles_and_products_of_moved_vectors_are_refused(metric: str) -> None:
    hashing = make("mlp").hash
    plain = EmbeddingNetwork(build_backbone({"name": "linear", "inputs": DIM}), None)
    scaled = Preprocessing("vectors", std=np.arange(1, DIM + 1, dtype=np.float32))
    with pytest.raises(InputError, match="angles and products are other ones"):
        Encoder(plain, hashing, scaled, 2).create_table(metric=metric)
    moved, same = (
        Encoder(plain, hashing, Preprocessing("vectors", mean=np.float32([mean] * DIM)), 2)
        for mean in (3.0, 0.0)
    )
    with pytest.raises(InputError, match=r"subtracts a mean .* choose euclidean"):
        moved.create_table(metric=metric)
    assert same.create_table(metric=metric).metric == metric
    assert moved.create_table().metric == "euclidean"
    # A learned embedding has angles of its own.
    learned = Encoder(make("mlp").base, hashing, moved.preprocessing, 2)
    assert learned.create_table(metric=metric).metric == metric


FORKS = """
import os, sys
import numpy as np
import torch
from flowhash.encoder import Encoder

torch.set_num_threads(2)
encoder = Encoder.load(sys.argv[1])
items = np.ones((4000, encoder.input_dim), np.float32)
expected = encoder.encode(items).activations  # which wakes the threads
child = os.fork()
if child == 0:
    found = encoder.encode(items).activations
    os._exit(0 if np.allclose(found, expected, atol=1e-4) else 3)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_child_of_a_fork_encodes_too(tmp_path: Path) -> None:
    """Threads stay behind in a fork; torch would wait for them for ever."""
    wide = build_backbone({"name": "mlp", "inputs": 64, "hidden": [256, 256]})
    encoder = Encoder(None, EmbeddingNetwork(wide, 128), Preprocessing("vectors"), 2)
    encoder.save(tmp_path / "encoder")
    done = subprocess.run(  # the time is against hanging only
        [sys.executable, "-c", FORKS, str(tmp_path / "encoder")], timeout=300, check=False
    )
    assert done.returncode == 0
