"""Backbones by name: what a preset, a command and a stored encoder use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from flowhash.errors import InputError, reason


def _nin(**options: Any) -> nn.Module:
    from flowhash.networks.convolutional_backbones import NIN

    return NIN(**options)


def _residual(**options: Any) -> nn.Module:
    from flowhash.networks.convolutional_backbones import Residual

    if "blocks" in options:
        options["blocks"] = tuple(options["blocks"])
    return Residual(**options)


def _linear(**options: Any) -> nn.Module:
    from flowhash.networks.vector_backbones import PlainVectors

    return PlainVectors(**options)


def _mlp(**options: Any) -> nn.Module:
    from flowhash.networks.vector_backbones import Dense

    if "hidden" in options:
        options["hidden"] = tuple(options["hidden"])
    return Dense(**options)


def _transformers(**options: Any) -> nn.Module:
    from flowhash.networks.pretrained_backbones import Transformers

    return Transformers(**options)


def _timm(**options: Any) -> nn.Module:
    from flowhash.networks.pretrained_backbones import Timm

    return Timm(**options)


def _mirrored(backbone: Mapping[str, Any], hub: bool = True) -> nn.Module:
    from flowhash.networks.embedding_network import MirroredBackbone

    return MirroredBackbone(build_backbone(backbone, hub))


BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "nin": _nin,
    "residual": _residual,
    "linear": _linear,
    "mlp": _mlp,
    "transformers": _transformers,
    "timm": _timm,
    "mirrored": _mirrored,
}
# These take vectors and want to know how long they are.
VECTOR_BACKBONES = ("linear", "mlp")
# These, and what is made of them, may ask a hub of models for what their description leaves out.
HUB_BACKBONES = ("transformers", "timm", "mirrored")


def build_backbone(spec: Mapping[str, Any], hub: bool = True) -> nn.Module:
    """The backbone that ``spec`` describes: ``{"name": "nin", "width": 0.5}``.

    Args:
        spec: its name and options.
        hub: whether a hub of models may be asked for configurations and weights.

    Raises:
        InputError: no such name, or options it does not take.
    """
    options = dict(spec)
    name = options.pop("name", None)
    if name == "custom":
        raise InputError(
            "this network is a module of your own, which is not stored; pass the same kind of "
            "module again, as backbone="
        )
    if not isinstance(name, str) or name not in BACKBONES:
        raise InputError(
            f"the backbone's name is {reason(repr(name)):.60}; choose one of "
            f"{', '.join(map(repr, BACKBONES))}, or pass a torch module of your own"
        )
    asked = {"hub": hub} if name in HUB_BACKBONES else {}
    try:
        return BACKBONES[name](**options, **asked)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        given = reason(options)
        raise InputError(f"the backbone {name!r} cannot take {given}: {reason(error)}") from error


def custom_backbone(module: nn.Module, features: int) -> nn.Module:
    """Make any module a backbone: it must return features [n, features].

    The module is marked in place and returned. An encoder stores its weights but not its code, so
    that loading asks for the module again.
    """
    module.features = features  # type: ignore[assignment]
    module.spec = {"name": "custom", "class": type(module).__qualname__, "features": features}  # type: ignore[assignment]
    return module
