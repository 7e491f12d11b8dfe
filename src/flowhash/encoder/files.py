"""An encoder in its folder: ``encoder.json`` beside one safetensors file that it names."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from flowhash.artefact import read_sealed, read_tensors, write_sealed, write_tensors
from flowhash.errors import DamagedFileError, InputError
from flowhash.networks import EmbeddingNetwork, build_backbone

if TYPE_CHECKING:
    from flowhash.encoder.encoder import Encoder

FORMAT = 1
RECORD = "encoder.json"
WEIGHTS = "encoder-{}.safetensors"


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
        "format": FORMAT,
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
    """The record and the weights.

    Args:
        folder: where they are.
        damaged: a record whose weights could not be read.

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
    if record.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {record.get('format')!r}; this FlowHash reads {FORMAT}. Install "
            "the version that wrote it, or a newer one"
        )
    expected = ("base", "hash", "preprocessing", "active", "class_names", "fingerprint")
    missing = [name for name in (*expected, "weights", "weights_sha256") if name not in record]
    if missing:
        raise DamagedFileError(f"{path} lacks {', '.join(missing)}; restore it from a copy")
    record["weights"] = Path(record["weights"]).name  # never a file outside the folder
    return record


def rebuild_networks(
    record: Mapping[str, Any], tensors: Mapping[str, Tensor], backbone: nn.Module | None
) -> tuple[EmbeddingNetwork | None, EmbeddingNetwork]:
    """The base network, if there is one, and the hash network, with their weights.

    Args:
        record: as ``write_encoder`` was given it.
        tensors: by network and name; without the base's backbone where it is the hash network's.
        backbone: a module of the user's own to put weights into, for networks that are custom.
    """
    with torch.random.fork_rng(devices=[]):  # drawing weights must not disturb the caller's seeds
        hashing = _rebuild("hash", record["hash"], tensors, backbone)
        if record["base"] is None:
            return None, hashing
        if not record.get("shared_backbone"):
            return _rebuild("base", record["base"], tensors, backbone), hashing
        head = {name: value for name, value in tensors.items() if not name.startswith("hash.")}
        features = hashing.backbone.state_dict().items()
        head |= {f"base.backbone.{name}": value for name, value in features}
        return _rebuild("base", record["base"], head, None, hashing.backbone), hashing


def _rebuild(
    name: str,
    spec: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    backbone: nn.Module | None,
    shared: nn.Module | None = None,
) -> EmbeddingNetwork:
    described = spec["backbone"]
    custom = described.get("name") == "custom"
    if shared is not None:
        module = shared
    elif custom and backbone is not None:
        module = copy.deepcopy(backbone)
        module.features = described["features"]
    else:
        module = build_backbone(described)
    # As it was stored: a library that writes its configuration differently today changes nothing.
    module.spec = described
    network = EmbeddingNetwork(module, spec["outputs"], spec["unit"])
    start = name + "."
    weights = {key[len(start) :]: tensors[key] for key in tensors if key.startswith(start)}
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
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
        raise InputError(f"{what}: {error}") from error
    return network
