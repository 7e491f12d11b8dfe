"""Models of transformers from a local folder, without a network; timm, where it is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowhash.errors import InputError, MissingExtraError
from flowhash.networks import build_backbone
from flowhash.networks.pretrained_backbones import Timm, Transformers, pretrained_preprocessing

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
transformers: Any = pytest.importorskip("transformers")

PIXELS = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def tiny(kind: str) -> Any:
    """A model of the kind, as small as it gets, with weights of chance."""
    torch.manual_seed(0)
    layer = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16,
    }  # fmt: skip
    sight = {**layer, "image_size": 16, "patch_size": 8}
    if kind == "vit":
        return transformers.ViTModel(transformers.ViTConfig(**sight))
    if kind == "dinov2":
        return transformers.Dinov2Model(transformers.Dinov2Config(**sight, mlp_ratio=1))
    if kind == "clip":
        text = {**layer, "vocab_size": 32, "max_position_embeddings": 8}
        config = transformers.CLIPConfig(text_config=text, vision_config=sight)
        return transformers.CLIPModel(config)
    config = transformers.ConvNextConfig(hidden_sizes=[8, 12], depths=[1, 1], num_stages=2)
    return transformers.ConvNextModel(config)


@pytest.mark.parametrize("kind", ["vit", "dinov2", "clip", "convnext"])
def test_a_model_from_a_folder(kind: str, tmp_path: Path) -> None:
    model = tiny(kind)
    model.save_pretrained(tmp_path)
    backbone = build_backbone({"name": "transformers", "model": str(tmp_path)}).eval()
    found = backbone(PIXELS)
    tower = getattr(model, "vision_model", model).eval()
    expected = tower(pixel_values=PIXELS).pooler_output
    torch.testing.assert_close(found, expected.flatten(1))
    assert backbone.features == found.shape[1] == (12 if kind == "convnext" else 16)


@pytest.mark.parametrize("kind", ["vit", "dinov2", "clip", "convnext"])
def test_is_built_again_from_its_description_alone(kind: str, tmp_path: Path) -> None:
    import json

    folder = tmp_path / "model"
    tiny(kind).save_pretrained(folder)
    backbone = Transformers(str(folder), pool="mean").eval()
    spec = json.loads(json.dumps(backbone.spec))  # an encoder stores it as JSON
    for file in folder.iterdir():
        file.unlink()
    again = build_backbone(spec).eval()
    again.load_state_dict(backbone.state_dict())
    assert torch.equal(again(PIXELS), backbone(PIXELS))
    assert again.features == backbone.features
    assert json.loads(json.dumps(again.spec)) == spec


@pytest.mark.parametrize("pool", ["auto", "pooler", "first", "mean"])
def test_pools(pool: str, tmp_path: Path) -> None:
    model = tiny("vit")
    model.save_pretrained(tmp_path)
    out = model.eval()(pixel_values=PIXELS)
    last = out.last_hidden_state
    expected = {
        "auto": out.pooler_output,
        "pooler": out.pooler_output,
        "first": last[:, 0],
        "mean": sum(last[:, place] for place in range(last.shape[1])) / last.shape[1],
    }[pool]
    torch.testing.assert_close(Transformers(str(tmp_path), pool).eval()(PIXELS), expected)


def test_pools_of_a_model_without_a_pooler(tmp_path: Path) -> None:
    config = transformers.ViTMSNConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        image_size=16, patch_size=8,
    )  # fmt: skip
    model = transformers.ViTMSNModel(config).eval()
    model.save_pretrained(tmp_path)
    first = model(pixel_values=PIXELS).last_hidden_state[:, 0]
    torch.testing.assert_close(Transformers(str(tmp_path)).eval()(PIXELS), first)
    with pytest.raises(InputError, match="no pooled output"):
        Transformers(str(tmp_path), "pooler").eval()(PIXELS)


def test_gradients_reach_the_model(tmp_path: Path) -> None:
    tiny("vit").save_pretrained(tmp_path)
    backbone = Transformers(str(tmp_path))
    backbone(PIXELS).sum().backward()
    assert any(value.grad is not None and bool(value.grad.any()) for value in backbone.parameters())


def test_refuses(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"cannot load the model '{tmp_path}'.*save_pretrained"):
        Transformers(str(tmp_path))
    with pytest.raises(InputError, match="a name on the hub"):
        Transformers(str(tmp_path / "nothing" / "here" / "at-all"))
    tiny("vit").save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match="pool is 'max'"):
        Transformers(str(tmp_path / "model"), "max")
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="cannot load the model"):
        Transformers(str(tmp_path / "model"))


def test_a_model_of_text_is_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        vocab_size=32,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="images"):
        Transformers(str(tmp_path))(PIXELS)


def without(monkeypatch: Any, name: str, folder: Path, content: str | None) -> None:
    """Put a package in the place of another one: one that fails, or none at all."""
    import sys

    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    if content is None:
        monkeypatch.setitem(sys.modules, name, None)
        return
    (folder / f"{name}.py").write_text(content)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    "content",
    [
        None,
        "import torchvision_that_is_not_there",
        "raise RuntimeError('operator torchvision::nms does not exist')",
    ],
    ids=["absent", "without torchvision", "with a broken torchvision"],
)
def test_without_timm_the_message_names_the_extra(
    content: str | None, monkeypatch: Any, tmp_path: Path
) -> None:
    without(monkeypatch, "timm", tmp_path, content)
    with pytest.raises(MissingExtraError, match=r"flowhash\[timm\]"):
        Timm("resnet18")


def test_timm_is_asked_for_features_without_a_classifier(monkeypatch: Any, tmp_path: Path) -> None:
    without(
        monkeypatch, "timm", tmp_path,
        "import torch\n"
        "def create_model(name, pretrained, num_classes):\n"
        "    assert num_classes == 0\n"
        "    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 9))\n"
        "    model.num_features, model.asked = 9, (name, pretrained)\n"
        "    return model\n",
    )  # fmt: skip
    backbone = Timm("resnet18")
    assert backbone.network.asked == ("resnet18", True)
    assert tuple(backbone(PIXELS).shape) == (2, backbone.features) == (2, 9)
    again = build_backbone(backbone.spec)  # an encoder brings its weights itself
    assert again.network.asked == ("resnet18", False)  # type: ignore[union-attr]
    again.load_state_dict(backbone.state_dict())
    assert torch.equal(again(PIXELS), backbone(PIXELS))


def test_without_transformers_the_message_names_the_extra(monkeypatch: Any, tmp_path: Path) -> None:
    without(monkeypatch, "transformers", tmp_path, None)
    with pytest.raises(MissingExtraError, match=r"flowhash\[transformers\]"):
        Transformers("google/vit-base-patch16-224")


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"size": {"height": 20, "width": 24}}, (20, 24)),
        ({"size": {"shortest_edge": 30}, "do_center_crop": True, "crop_size": 16}, (16, 16)),
        ({"size": {"shortest_edge": 30}, "do_center_crop": False, "crop_size": 16}, (30, 30)),
    ],
)
def test_images_are_prepared_as_the_model_was_trained(
    settings: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    record = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.25, 0.125], **settings}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(record))
    made = pretrained_preprocessing(str(tmp_path))
    assert made.size == size
    images = np.full((1, *size, 3), 51, np.uint8)
    expected = (51 / 255 - np.array([0.1, 0.2, 0.3])) / np.array([0.5, 0.25, 0.125])
    np.testing.assert_allclose(made(images)[0, :, 0, 0], expected, atol=1e-6)


def test_a_model_that_does_not_say_how_its_images_are_prepared(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="preprocessor_config"):
        pretrained_preprocessing(str(tmp_path))
    (tmp_path / "preprocessor_config.json").write_text('{"size": 16}')
    with pytest.raises(InputError, match="image_mean"):
        pretrained_preprocessing(str(tmp_path))


TIMM = """
import torch
asked = []
class models:
    @staticmethod
    def load_model_config_from_hf(name):
        asked.append(name)
        return {}, "small", {"depth": 3, "num_classes": 7}
def create_model(name, pretrained, num_classes, depth=1):
    assert num_classes == 0
    if name.startswith("hf-hub:") or pretrained:
        asked.append(name)
        depth = 3
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, depth))
    model.num_features = depth
    return model
"""


def test_a_timm_model_of_the_hub_is_built_again_without_it(
    monkeypatch: Any, tmp_path: Path
) -> None:
    without(monkeypatch, "timm", tmp_path, TIMM)
    backbone = Timm("hf-hub:somebody/something")
    assert backbone.spec == {
        "name": "timm", "model": "small", "pretrained": False, "arguments": {"depth": 3},
    }  # fmt: skip
    import timm

    timm.asked.clear()
    again = build_backbone(json.loads(json.dumps(backbone.spec)), hub=False)
    again.load_state_dict(backbone.state_dict())
    assert torch.equal(again(PIXELS), backbone(PIXELS))
    for spec in (
        {"model": "hf-hub:somebody/something", "pretrained": False},
        {"model": "hf_hub:somebody/something", "pretrained": False},
        {"model": "small", "pretrained": True},
        {"model": "small"},
    ):
        with pytest.raises(InputError, match=r"fetched from a hub.*hub=True.* FLOWHASH_HUB=1"):
            build_backbone({"name": "timm", **spec}, hub=False)
    for argument in ("checkpoint_path", "pretrained_cfg", "cache_dir"):
        spec = {"model": "small", "pretrained": False, "arguments": {argument: "somewhere"}}
        with pytest.raises(InputError, match=f"have {argument}, which reads other files"):
            build_backbone({"name": "timm", **spec}, hub=False)
    assert not timm.asked


def test_a_network_is_mirrored_once() -> None:
    once = {"name": "mirrored", "backbone": {"name": "residual", "width": 4, "blocks": [1]}}
    with pytest.raises(InputError, match="mirrored already"):
        build_backbone({"name": "mirrored", "backbone": once})


def test_arguments_of_a_timm_model_of_the_hub_are_kept(monkeypatch: Any, tmp_path: Path) -> None:
    content = TIMM.replace("depth=1):", "depth=1, width=1):")
    without(monkeypatch, "timm", tmp_path, content)
    backbone = Timm("hf-hub:somebody/something", arguments={"width": 5})
    assert backbone.spec["arguments"] == {"depth": 3, "width": 5}
    backbone = Timm("hf-hub:somebody/something", arguments={"depth": 4})
    assert backbone.spec["arguments"] == {"depth": 4}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "timm_wrapper", "architecture": "hf-hub:o/n"}, "fetched from a hub"),
        ({"model_type": "timm_backbone", "backbone": "hf-hub:o/n"}, "fetched from a hub"),
        (
            {"model_type": "timm_backbone", "backbone": "hf-hub:o/n", "backbone_config": {}},
            "fetched from a hub",
        ),
        (
            {"model_type": "timm_wrapper", "model_args": {"checkpoint_path": "/etc/passwd"}},
            "have checkpoint_path, which reads other files",
        ),
        ({"model_type": "x", "vision_config": {"architecture": "hf-hub:o/n"}}, "from a hub"),
        ({"model_type": "x", "list": [{"backbone": "some/body"}]}, "names 'some/body'"),
        ({"model_type": "x", "list": [[{"backbone": "some/body"}]]}, "names 'some/body'"),
        ({"model_type": "x", "list": [{"attn_implementation": "o/n"}]}, "names 'o/n'"),
        ({"model_type": "timm_wrapper", "list": [{"backbone": "some/body"}]}, "names 'some/body'"),
    ],
)
def test_configurations_that_a_hub_would_complete(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Transformers(config=config, hub=False)
