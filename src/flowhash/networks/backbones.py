"""Backbones by name, as a preset, a command and a stored encoder have them; and the small ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flowhash.errors import InputError, reason
from flowhash.networks.convolutional_backbones import NIN, Residual
from flowhash.networks.pretrained_backbones import Timm, Transformers


class PlainVectors(nn.Module):
    """Vectors as they are: [n, inputs] -> [n, inputs]. With a head it is a linear map."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.spec: dict[str, Any] = {"name": "linear", "inputs": inputs}
        self.features = inputs

    def forward(self, vectors: Tensor) -> Tensor:
        """The vectors."""
        return vectors


class BaseEmbeddings(nn.Module):
    """The base network's embeddings: what a hash network on top of that one takes.

    Without classes they stay as they are. With classes the square root of each one's probability,
    times a factor, stands behind them: two of these are near each other where the embeddings are
    near and the same classes are likely. Of items of classes that nobody knows the probabilities
    say which known ones they look like.

    Not among ``BACKBONES``: it takes no items, so that only an encoder can run it.

    Args:
        takes: numbers in an embedding.
        classes: how many there are whose probabilities count; 0 for none.
        unit: whether embeddings are brought to length one first; with classes only.
    """

    name = "embeddings"
    class_weights: Tensor
    class_biases: Tensor
    factor: Tensor

    def __init__(self, takes: int, classes: int = 0, unit: bool = False) -> None:
        super().__init__()
        self.spec: dict[str, Any] = {"name": self.name, "features": takes}
        self.takes, self.classes, self.unit = takes, classes, unit
        self.features = takes + classes
        if classes:
            self.spec |= {"classes": classes, "unit": unit}
            self.register_buffer("class_weights", torch.zeros(classes, takes))
            self.register_buffer("class_biases", torch.zeros(classes))
            self.register_buffer("factor", torch.zeros(1))

    def forward(self, embeddings: Tensor) -> Tensor:
        """The embeddings, and what is behind them [n, features]."""
        if not self.classes:
            return embeddings
        if self.unit:
            lengths = embeddings.norm(dim=1, keepdim=True)
            embeddings = torch.where(lengths > 0, embeddings / lengths, embeddings)
        scores = embeddings @ self.class_weights.t() + self.class_biases
        likely = nn.functional.log_softmax(scores, 1)
        return torch.cat((embeddings, self.factor * (likely / 2).exp()), 1)


class Dense(nn.Module):
    """Dense layers with ReLUs: [n, inputs] -> [n, hidden[-1]].

    Args:
        inputs: numbers in a vector.
        hidden: outputs of each layer.
        dropout: the probability of dropping a value after each layer.
    """

    def __init__(self, inputs: int, hidden: Sequence[int] = (256,), dropout: float = 0.0) -> None:
        super().__init__()
        hidden = tuple(hidden)
        if not hidden or min(hidden) < 1:
            raise InputError(f"hidden is {hidden}; expected the sizes of one or more layers")
        self.spec: dict[str, Any] = {
            "name": "mlp", "inputs": inputs, "hidden": list(hidden), "dropout": dropout,
        }  # fmt: skip
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(inputs, size), nn.ReLU(inplace=True)]
            if dropout:
                layers.append(nn.Dropout(dropout))
            inputs = size
        self.features = inputs
        self.layers = nn.Sequential(*layers)

    def forward(self, vectors: Tensor) -> Tensor:
        """Features [n, features] of vectors [n, inputs]."""
        return self.layers(vectors)  # type: ignore[no-any-return]


class MirroredBackbone(nn.Module):
    """The mean of a backbone's features of an image and of its mirror image, left to right.

    It is for searching, after a training that mirrored images at random: two forward passes for
    features that chance moves less.

    Args:
        backbone: takes images [n, 3, height, width].
    """

    passes = 2

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        if isinstance(backbone, MirroredBackbone):  # each more would double the work for nothing
            raise InputError("the backbone is mirrored already; mirror it once")
        self.inner = backbone
        self.features = backbone.features
        self.spec: dict[str, Any] = {"name": "mirrored", "backbone": backbone.spec}

    def forward(self, images: Tensor) -> Tensor:
        """Features [n, features]."""
        made: Tensor = (self.inner(images) + self.inner(images.flip(3))) / 2
        return made


def _mirrored(backbone: Mapping[str, Any], hub: bool = True) -> nn.Module:
    return MirroredBackbone(build_backbone(backbone, hub))


BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "nin": NIN,
    "residual": Residual,
    "linear": PlainVectors,
    "mlp": Dense,
    "transformers": Transformers,
    "timm": Timm,
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
