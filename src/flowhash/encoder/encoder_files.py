"""An encoder in its folder: ``encoder.json`` beside one safetensors file that it names."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.overrides import TorchFunctionMode

from flowhash.errors import DamagedFileError, InputError, reason
from flowhash.model_files import (
    check_entries,
    described_by,
    read_sealed,
    read_tensors,
    write_sealed,
    write_tensors,
)
from flowhash.networks import BaseEmbeddings, BucketOrder, EmbeddingNetwork, build_backbone

if TYPE_CHECKING:
    from flowhash.encoder.encoder import Encoder

FORMAT = 4
# Older versions read what they know: encoders whose hash network takes embeddings without classes
# behind them, those whose does not take embeddings, and those whose buckets have no order of their
# own either.
BEFORE_CLASSES = 3
BEFORE_EMBEDDINGS = 2
BEFORE_ORDER = 1
RECORD = "encoder.json"
WEIGHTS = "encoder-{}.safetensors"
LARGEST_NUMBER = 1 << 24  # of a network's description: sizes, layers, words of a vocabulary
DEPTHS = re.compile("depth|layer|block|stage")  # in names of numbers of layers
DEEPEST = 1 << 16
# Some models are built whole and used in part: of CLIP's two towers one is stored.
SPARE_FACTOR = 20
SPARE_BYTES = 1 << 30
SPARE_PARTS = 2000  # modules and tensors
ENTRIES: dict[str, tuple[type, ...]] = {
    "base": (dict, type(None)), "hash": (dict,), "preprocessing": (dict,), "active": (int,),
    "class_names": (list,), "fingerprint": (str,), "weights": (str,), "weights_sha256": (str,),
}  # fmt: skip
NETWORK: dict[str, tuple[type, ...]] = {
    "backbone": (dict,), "outputs": (int, type(None)), "unit": (bool,),
}  # fmt: skip
ORDER: dict[str, tuple[type, ...]] = {"classes": (int,), "weight": (int, float)}
PREPROCESSING: dict[str, tuple[type, ...]] = {
    "kind": (str,), "size": (list, type(None)), "scale": (int, float),
}  # fmt: skip


def fingerprint_of(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """What tells two encoders apart: a hash of settings and weights, 32 hexadecimal digits."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name].cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def described(encoder: Encoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and weights of an encoder: all that it is."""
    base, hashing = encoder.base, encoder.hash
    settings = {
        "format": _format(encoder),
        "base": None if base is None else base.spec,
        "hash": hashing.spec,
        "preprocessing": encoder.preprocessing.to_json(),
        "active": encoder.active,
        "class_names": list(encoder.class_names),
    }
    tensors = {f"hash.{name}": value for name, value in hashing.state_dict().items()}
    if base is not None:
        tensors |= {f"base.{name}": value for name, value in base.state_dict().items()}
    for name, array in encoder.preprocessing.arrays().items():
        tensors[f"preprocessing.{name}"] = torch.from_numpy(np.array(array))
    # As JSON gives it back, which turns numbers that are keys into strings.
    return json.loads(json.dumps(settings)), tensors


def _format(encoder: Encoder) -> int:
    """The lowest, which the most versions read."""
    backbone = encoder.hash.backbone
    if isinstance(backbone, BaseEmbeddings):
        return FORMAT if backbone.classes else BEFORE_CLASSES
    return BEFORE_ORDER if encoder.hash.order is None else BEFORE_EMBEDDINGS


def write_encoder(folder: Path, encoder: Encoder) -> None:
    """Write the files in an order that survives a crash.

    The weights get a name that no other encoder's have; then the record that names them replaces
    the old one in one step; only then the old weights go.
    """
    settings, tensors = described(encoder)
    shared = encoder.networks.shared
    if shared:  # once is enough
        tensors = {name: tensors[name] for name in tensors if name[:14] != "base.backbone."}
    file = WEIGHTS.format(encoder.fingerprint)
    checksum = write_tensors(folder / file, tensors)
    record = {
        **settings,
        "shared_backbone": shared,
        "fingerprint": encoder.fingerprint,
        "weights": file,
        "weights_sha256": checksum,
    }
    write_sealed(folder / RECORD, record)
    for old in folder.glob(WEIGHTS.format("*") + "*"):
        if old.name != file:
            old.unlink(missing_ok=True)


def read_encoder(
    folder: Path, damaged: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The record and the weights; ``damaged`` is a record whose weights could not be read.

    Raises:
        InputError: there is no encoder, or its format is newer than this FlowHash.
        DamagedFileError: a file is damaged or missing; the message names it.
    """
    record = _read_record(folder)
    try:
        return record, read_tensors(folder / record["weights"], record["weights_sha256"])
    except DamagedFileError:
        if record == damaged:
            raise
        # Somebody may have saved another encoder meanwhile: then the record names its weights now.
        return read_encoder(folder, record)


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    if not path.is_file():
        inside = folder / "encoder"
        advice = "give the folder that Encoder.save wrote"
        if (inside / RECORD).is_file():
            advice = f"it is a training's folder, whose encoder is {inside}"
        raise InputError(f"{folder} holds no encoder: there is no {RECORD} in it; {advice}")
    record = read_sealed(path)
    if record.get("format") not in range(BEFORE_ORDER, FORMAT + 1):
        raise InputError(
            f"{path} has format {reason(repr(record.get('format'))):.40}; this FlowHash reads "
            f"{BEFORE_ORDER} to {FORMAT}. Install the version that wrote it, or a newer one"
        )
    with described_by(path, "encoder"):
        _check_record(path, record)
    return record


def _check_record(path: Path, record: dict[str, Any]) -> None:
    """Refuse what ``write_encoder`` would not have written, before anything is built of it."""
    check_entries(path, record, ENTRIES)
    for network in ("base", "hash"):
        if record[network] is not None:
            check_entries(path, record[network], NETWORK, network)
            described = record[network]["backbone"]
            check_entries(path, described, {"name": (str,)}, f"{network}.backbone")
            _check_numbers(path, f"{network}.outputs", record[network]["outputs"])
            if record[network].get("order") is not None:
                check_entries(path, record[network]["order"], ORDER, f"{network}.order")
                _check_numbers(path, f"{network}.order", record[network]["order"])
            _check_numbers(path, f"{network}.backbone", described)
    check_entries(path, record["preprocessing"], PREPROCESSING, "preprocessing")
    if not all(isinstance(name, str) for name in record["class_names"]):
        raise DamagedFileError(f"{path}: class_names are not all texts; restore it from a copy")
    if not isinstance(record.get("shared_backbone", False), bool):
        raise DamagedFileError(f"{path}: shared_backbone is not true or false; restore it from a "
                               "copy")  # fmt: skip
    # Never a file outside the folder.
    if not re.fullmatch(r"encoder-[0-9a-f]{32}\.safetensors", record["weights"]):
        raise DamagedFileError(f"{path} names no weights of ours; restore it from a copy")


def _check_numbers(path: Path, where: str, value: Any, largest: int = LARGEST_NUMBER) -> None:
    """Refuse numbers of layers and sizes that no network has: some fill lists, not tensors."""
    if isinstance(value, dict):
        for name, inner in value.items():
            deep = DEPTHS.search(name) is not None
            _check_numbers(path, where, inner, DEEPEST if deep else LARGEST_NUMBER)
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(path, where, inner, largest)
    elif isinstance(value, int) and abs(value) > largest:
        raise DamagedFileError(
            f"{path}: {where} has the number {reason(value):.40}; expected at most {largest}. "
            "Restore it from a copy"
        )


def rebuild_networks(
    record: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    backbone: nn.Module | None,
    hub: bool,
) -> tuple[EmbeddingNetwork | None, EmbeddingNetwork]:
    """The base network, if there is one, and the hash network, with their weights.

    ``backbone`` is a module of the user's own to put weights into, for networks that are custom.
    """
    with torch.random.fork_rng(devices=[]), _Bounded(tensors):  # leaves the caller's seeds alone
        hashing = _rebuild("hash", record["hash"], tensors, backbone, hub)
        if record["base"] is None:
            return None, hashing
        shared = hashing.backbone if record.get("shared_backbone") else None
        return _rebuild("base", record["base"], tensors, backbone, hub, shared), hashing


class _Bounded(TorchFunctionMode):
    """Refuse to build networks that are far larger than the weights which are stored for them.

    What a description asks for is measured before it is allocated, and layers are counted: a few
    bytes of JSON can ask for a network of terabytes, or of a million layers.
    """

    MAKERS = frozenset({
        torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye,
        torch.arange, torch.linspace, torch.empty_strided,
    })  # fmt: skip

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        stored = sum(value.nbytes for value in tensors.values())
        self.bytes = SPARE_FACTOR * stored + SPARE_BYTES
        self.parts = SPARE_FACTOR * len(tensors) + SPARE_PARTS
        self.thread = threading.get_ident()

    # First weights are not drawn where that is easily left out: stored ones take their place. The
    # methods of tensors are left alone, since some functions draw until they like the outcome.
    DRAWS = frozenset({nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.DRAWS:
            return args[0] if args else kwargs["tensor"]
        if func in self.MAKERS and "out" not in kwargs:
            like = {**kwargs, "device": "meta", "generator": None}
            self.bytes -= func(
                *args, **{key: like[key] for key in like if like[key] is not None}
            ).nbytes
            self.parts -= 1
            self._check()
        return func(*args, **kwargs)

    def __enter__(self) -> _Bounded:
        self.hook = register_module_module_registration_hook(self._count)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.hook.remove()

    def _count(self, *_: Any) -> None:
        if threading.get_ident() == self.thread:  # the hook sees the modules of all threads
            self.parts -= 1
            self._check()

    def _check(self) -> None:
        if self.bytes < 0 or self.parts < 0:
            raise OverflowError("its networks are far larger than the weights beside it")


def _rebuild(
    name: str,
    spec: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    backbone: nn.Module | None,
    hub: bool,
    shared: nn.Module | None = None,
) -> EmbeddingNetwork:
    described = spec["backbone"]
    custom = described["name"] == "custom"
    if shared is not None:
        module = shared
    elif custom and backbone is not None:
        module = copy.deepcopy(backbone)
        module.features = described["features"]
    elif described["name"] == BaseEmbeddings.name:
        module = BaseEmbeddings(
            described["features"], described.get("classes", 0), described.get("unit", False)
        )
    else:
        module = build_backbone(described, hub=hub)
    # As it was stored: a library that writes its configuration differently today changes nothing.
    module.spec = described
    network = EmbeddingNetwork(module, spec["outputs"], spec["unit"], _empty_order(spec))
    start = name + "."
    weights = {key[len(start) :]: tensors[key] for key in tensors if key.startswith(start)}
    if shared is not None:
        weights |= {f"backbone.{key}": value for key, value in shared.state_dict().items()}
    difference = _difference(network, weights)
    if difference is not None:
        if custom:
            what = (
                f"backbone= is a {type(module).__name__}, which does not take the weights of the "
                f"{described.get('class')} that the {name} network was trained with; pass its like"
            )
        else:
            what = (
                f"the {name} network {described['name']!r} takes other weights than it did when "
                "the encoder was saved; install the versions of its libraries that were used then"
            )
        raise InputError(f"{what}: {difference}")
    network.load_state_dict(weights)
    return network


def _empty_order(spec: Mapping[str, Any]) -> BucketOrder | None:
    order = spec.get("order")
    if order is None:
        return None
    return BucketOrder(torch.zeros(order["classes"], spec["outputs"]), float(order["weight"]))


def _difference(network: nn.Module, weights: Mapping[str, Tensor]) -> str | None:
    """The first thing in which stored weights are not those of a network, or None."""
    own = network.state_dict()
    for name, value in own.items():
        if name not in weights:
            return f"{name} is not stored"
        if value.shape != weights[name].shape:
            return f"{name} is stored as {list(weights[name].shape)}, not {list(value.shape)}"
    return next((f"{reason(name)} is stored, too" for name in weights if name not in own), None)
