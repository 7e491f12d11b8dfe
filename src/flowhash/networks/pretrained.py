"""Backbones from Hugging Face transformers and from timm, by name or local folder."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from flowhash.data.preprocess import Preprocessing
from flowhash.errors import InputError, MissingExtraError
from flowhash.extras import require


class Transformers(nn.Module):
    """A vision model of Hugging Face transformers: pixels [n, 3, h, w] -> features [n, hidden].

    Features are the model's pooled output where it has one that is trained with it, else the class
    token or the mean over positions of the last layer.

    Args:
        model: name on the hub, or a local folder made by ``save_pretrained``.
        pool: "auto", "pooler", "first" (class token) or "mean".
        config: the model's configuration, as an encoder stores it: the network is then built
            without weights and without looking at ``model``.
    """

    def __init__(
        self, model: str = "", pool: str = "auto", config: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        transformers = require("transformers", "transformers")
        if config is not None:
            described = transformers.AutoConfig.for_model(**config)
            network = transformers.AutoModel.from_config(described)
        else:
            try:
                network = transformers.AutoModel.from_pretrained(model)
            except (OSError, ValueError) as error:
                raise InputError(
                    f"transformers cannot load the model {model!r}: {error}. Expected a name on "
                    "the hub (with a connection to it) or a folder made by save_pretrained"
                ) from error
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


def _hidden_size(config: Any) -> int:
    if hasattr(config, "hidden_sizes"):
        return int(config.hidden_sizes[-1])
    return int(config.hidden_size)


class Timm(nn.Module):
    """A model of timm without its classifier. Needs torchvision, which timm imports.

    Args:
        model: timm's name of it.
        pretrained: load its weights; an encoder that is read from its folder does not.
    """

    def __init__(self, model: str, pretrained: bool = True) -> None:
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
        self.network = timm.create_model(model, pretrained=pretrained, num_classes=0)
        self.features = int(self.network.num_features)
        self.spec: dict[str, Any] = {"name": "timm", "model": model, "pretrained": False}

    def forward(self, pixels: Tensor) -> Tensor:
        """Features [n, features] of pixels [n, 3, height, width]."""
        return self.network(pixels)  # type: ignore[no-any-return]


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
