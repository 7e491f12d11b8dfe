"""Backbones from Hugging Face transformers and from timm, by name or local folder."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor, nn

from flowhash.data import Preprocessing
from flowhash.errors import InputError, MissingExtraError, reason
from flowhash.extras import require

_LOCK = threading.Lock()
PERMIT = (
    "loading does not ask a hub. If you trust the encoder, permit it with "
    "Encoder.load(folder, hub=True) or FLOWHASH_HUB=1 in the environment, and save it anew"
)


@contextlib.contextmanager
def _without_hub(hub: bool) -> Iterator[None]:
    """Keep a library that builds a network from calling out, unless ``hub`` permits it."""
    if hub:
        yield
        return
    try:
        constants: Any = importlib.import_module("huggingface_hub.constants")
    except ImportError:  # then there is nothing that could call
        yield
        return
    with _LOCK:
        before = constants.HF_HUB_OFFLINE
        constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before


class Transformers(nn.Module):
    """A vision model of Hugging Face transformers: pixels [n, 3, h, w] -> features [n, hidden].

    Features are the model's pooled output where it has one that is trained with it, else the class
    token or the mean over positions of the last layer.

    Args:
        model: name on the hub, or a local folder made by ``save_pretrained``.
        pool: "auto", "pooler", "first" (class token) or "mean".
        config: the model's configuration, as an encoder stores it: the network is then built
            without weights and without looking at ``model``.
        hub: whether the hub, or the folder ``model``, may be asked for what ``config`` leaves out.
    """

    def __init__(
        self,
        model: str = "",
        pool: str = "auto",
        config: dict[str, Any] | None = None,
        hub: bool = True,
    ) -> None:
        super().__init__()
        transformers = require("transformers", "transformers")
        if not hub:
            _check_config(model, config)
        with _without_hub(hub):
            network = _built(transformers, model, config)
        if pool not in ("auto", "pooler", "first", "mean"):
            raise InputError(f'pool is {pool!r}; expected "auto", "pooler", "first" or "mean"')
        # A CLIP-like model has two towers; images go through the vision one.
        self.network = getattr(network, "vision_model", network)
        if getattr(self.network, "main_input_name", "pixel_values") != "pixel_values":
            raise InputError(
                f"the model {model!r} takes {self.network.main_input_name}, not images; choose a "
                "vision model"
            )
        self.pool = pool
        self.features = _hidden_size(self.network.config)
        self.spec: dict[str, Any] = {
            "name": "transformers", "model": str(model), "pool": pool,
            "config": network.config.to_diff_dict() | {"model_type": network.config.model_type},
        }  # fmt: skip

    def forward(self, pixels: Tensor) -> Tensor:
        """Features [n, features] of pixels [n, 3, height, width]."""
        out = self.network(pixel_values=pixels)
        pooled = getattr(out, "pooler_output", None)
        if self.pool == "pooler" or (self.pool == "auto" and pooled is not None):
            if pooled is None:
                raise InputError('this model has no pooled output; choose pool="mean" or "first"')
            return pooled.flatten(1)  # type: ignore[no-any-return]
        last = out.last_hidden_state
        if last.ndim == 4:  # a convolutional model: [n, channels, h, w]
            return last.mean((2, 3))  # type: ignore[no-any-return]
        return last.mean(1) if self.pool == "mean" else last[:, 0]  # type: ignore[no-any-return]


def _built(transformers: Any, model: str, config: dict[str, Any] | None) -> Any:
    # Code that comes with a model is never run, and nobody is asked at a prompt whether it may.
    if config is not None:
        described = transformers.AutoConfig.for_model(**config)
        return transformers.AutoModel.from_config(described, trust_remote_code=False)
    try:
        return transformers.AutoModel.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"transformers cannot load the model {model!r}: {error}. Expected a name on the hub "
            "(with a connection to it) or a folder made by save_pretrained"
        ) from error


def _check_config(model: str, config: Any) -> None:
    """Refuse a description whose network a hub would have to complete."""
    if not isinstance(config, dict):
        raise InputError(
            f"the network is the model {reason(repr(model)):.80} of transformers, without its "
            f"configuration; {PERMIT}"
        )
    waiting: list[Any] = [config]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        if not isinstance(part, dict):
            continue
        waiting += part.values()
        is_timm = str(part.get("model_type")).startswith("timm_")
        if is_timm or "architecture" in part or "model_args" in part:  # built by timm
            for name in ("architecture", "backbone"):
                _check_timm(part.get(name, ""), False, part.get("model_args"))
        foreign = None
        if not is_timm and part.get("backbone_config") is None:
            foreign = part.get("backbone")
        for name, value in part.items():
            if "_implementation" in name and "/" in str(value):
                foreign = value
        if foreign is not None:
            raise InputError(
                f"the network's configuration names {reason(repr(foreign)):.80}, which is not in "
                f"the encoder; {PERMIT}"
            )


def _hidden_size(config: Any) -> int:
    if hasattr(config, "hidden_sizes"):
        return int(config.hidden_sizes[-1])
    return int(config.hidden_size)


class Timm(nn.Module):
    """A model of timm without its classifier. Needs torchvision, which timm imports.

    Args:
        model: timm's name of it; "hf-hub:OWNER/NAME" for one on the hub.
        pretrained: load its weights; an encoder that is read from its folder does not.
        arguments: of the model, as an encoder stores them for one on the hub.
        hub: whether a hub may be asked for what the others leave out.
    """

    def __init__(
        self,
        model: str,
        pretrained: bool = True,
        arguments: dict[str, Any] | None = None,
        hub: bool = True,
    ) -> None:
        super().__init__()
        try:
            timm = require("timm", "timm")
        except MissingExtraError:
            raise
        except Exception as error:  # torchvision missing, or built for another torch
            raise MissingExtraError(
                f"timm cannot be imported here: {error}. It needs a torchvision that matches this "
                "torch: pip install 'flowhash[timm]' beside it"
            ) from error
        if not hub:
            _check_timm(model, pretrained, arguments)
        options = arguments or {}
        with _without_hub(hub):
            self.network = timm.create_model(model, pretrained=pretrained, num_classes=0, **options)
        if model.startswith(("hf-hub:", "hf_hub:")):  # what builds it again without the hub
            address = model.partition(":")[2]
            _, model, from_hub = timm.models.load_model_config_from_hf(address)
            options = {**from_hub, **options}
        self.features = int(self.network.num_features)
        self.spec: dict[str, Any] = {"name": "timm", "model": model, "pretrained": False}
        kept = {name: value for name, value in options.items() if name != "num_classes"}
        if kept:
            self.spec["arguments"] = kept

    def forward(self, pixels: Tensor) -> Tensor:
        """Features [n, features] of pixels [n, 3, height, width]."""
        return self.network(pixels)  # type: ignore[no-any-return]


def _check_timm(model: str, pretrained: bool, arguments: Any) -> None:
    """Refuse a description that would fetch something, or read another file."""
    if ":" in str(model) or pretrained is not False:
        raise InputError(
            f"the network is the model {reason(repr(model)):.80} of timm, which is fetched from a "
            f"hub; {PERMIT}"
        )
    if not isinstance(arguments, dict | None):
        raise InputError(f"arguments are {reason(repr(arguments)):.80}; expected an object")
    for name in arguments or {}:
        if name.startswith(("pretrained", "checkpoint", "cache")):
            raise InputError(
                f"arguments of the timm model have {reason(name):.40}, which reads other files"
            )


def pretrained_preprocessing(model: str) -> Preprocessing:
    """What a model of transformers was trained on: size, scale, mean and spread of its images.

    Open a folder of images with its ``size`` and put it in place of the one fitted there::

        fitting = pretrained_preprocessing("facebook/dinov2-small")
        splits = replace(image_folder("photos", size=fitting.size), preprocessing=fitting)

    Args:
        model: name on the hub, or a local folder with its ``preprocessor_config.json``.

    Raises:
        InputError: there is no such file, or it does not say enough.
    """
    base = require("transformers.image_processing_base", "transformers")
    try:
        settings, _ = base.ImageProcessingMixin.get_image_processor_dict(model)
        size = settings.get("crop_size") if settings.get("do_center_crop") else None
        height, width = _pixels(size or settings["size"])
        scale = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
        mean, std = (0.0, 1.0)
        if settings.get("do_normalize", True):
            mean, std = settings["image_mean"], settings["image_std"]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{model!r} does not say how its images are prepared: {error!r}. Expected a "
            "preprocessor_config.json with size, image_mean and image_std"
        ) from error
    return Preprocessing(
        "images",
        (height, width),
        float(scale),
        np.array(mean, np.float32),
        np.array(std, np.float32),
    )


def _pixels(size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    edge = size.get("shortest_edge")
    return (int(edge), int(edge)) if edge else (int(size["height"]), int(size["width"]))
