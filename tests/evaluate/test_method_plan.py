"""The method preset, read as it is: elsewhere in this room a fixture makes plans small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowhash.evaluate.reproduction.experiment_plan import make_plan
from flowhash.learn import Schedule, preset


@pytest.mark.parametrize("loss", ["triplet", "npairs"])
def test_the_method_is_the_papers_but_for_the_network_and_the_steps(loss: str) -> None:
    paper, plan = (make_plan("cifar100", loss, name) for name in ("paper", "method"))
    assert (plan.trunk, plan.mirrored, plan.copies) == (None, False, 0)
    assert plan.base is plan.hash
    assert plan.base is not None
    assert plan.base.base is not None
    assert plan.base.base.loss == plan.hash.hash.loss == loss
    assert plan.hash.backbone["name"] == "residual"
    assert (plan.hash.hash.start, plan.hash.hash.backbone_rate) == ("random", 0.1)
    assert plan.hash.penalty == {"triplet": 0.5, "npairs": 0.15}[loss]
    assert plan.hash.rank == "base"
    same = []
    for settings in (paper.hash, plan.hash):
        assert settings.base is not None
        short = {"steps": 1, "schedule": Schedule()}
        faster = {**short, "rate": 1e-3}  # which the words say
        base = short if loss == "triplet" else faster
        same.append(replace(
            settings, backbone={}, base=replace(settings.base, **base),
            hash=replace(settings.hash, **faster), validate_every=1, checkpoint_every=1,
        ))  # fmt: skip
    assert same[0] == same[1]
    assert f"{plan.base.base.steps:,} of stage 1 and {plan.hash.hash.steps:,}" in plan.words[0]
    assert str(plan.hash.backbone["width"]) in plan.words[0]
    faster = {"triplet": "stage 2 learns", "npairs": "both stages learn"}[loss]
    assert f"{faster} at up to 0.003, 3 times the paper's rate" in plan.words[0]
    ours, paper = (preset(f"{name}-cifar100-{loss}") for name in ("method", "paper"))
    assert ours.base is not None
    assert paper.base is not None
    times = (ours.base.rate / paper.base.rate, ours.hash.rate / paper.hash.rate)
    assert times == pytest.approx((1, 3) if loss == "triplet" else (3, 3))
