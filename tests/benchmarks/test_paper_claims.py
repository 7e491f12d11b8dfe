"""The verdicts of benchmarks/paper/claims.py follow from intervals."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper import claims
from tests.evaluate.test_tables import row


def rows(lead: tuple[float, float]) -> list[Any]:
    """Both tables, k = 1, FlowHash ahead of everybody by an interval."""
    names = ("exhaustive", "exhaustive-raw", "th", "vq", "vq-raw", "flowhash-free")
    ends = {name: list(lead) for name in ("suf", "pr1", "pr4", "pr16")}
    found = []
    for table in ("train", "test"):
        found += [row("exhaustive", table, None), row("exhaustive-raw", table, None)]
        found += [row("flowhash-free", table, nmi=1.0)]
        found += [row(name, table) for name in ("th", "vq", "vq-raw", "classifier")]
        ours = row("flowhash", table, suf=99.0, nmi=70.0, expected=256.0)
        found.append(dataclasses.replace(ours, leads={name: dict(ends) for name in names}))
    return found


@pytest.mark.parametrize(
    ("lead", "expected"),
    [((0.1, 1.0), "shown"), ((-0.1, 1.0), "not shown"), ((-2.0, -0.1), "contradicted")],
)
def test_verdicts_follow_from_the_intervals(
    tmp_path: Path, lead: tuple[float, float], expected: str
) -> None:
    gaps = {"shown": (9.0, 3.0), "not shown": (9.0, 12.0), "contradicted": (3.0, 9.0)}[expected]
    lines = ["training,step,bound_gap,class_objective,item_objective"]
    # One k falls; the other as the case has it.
    lines += [f'"k = 1",{step},{gaps[step > 5]},0.0,-9.0' for step in range(1, 11)]
    other = (9.0, 3.0) if expected != "contradicted" else gaps
    lines += [f'"k = 2",{step},{other[step > 5]},0.0,-9.0' for step in range(1, 11)]
    (tmp_path / "cifar100-triplet-method-objective.csv").write_text("\n".join(lines))
    found = claims.claims({"triplet": rows(lead)}, tmp_path)
    verdicts = {claim.says: claim.verdict for claim in found}
    for words in ("more precise than exhaustive", "a larger SUF than Th", "a larger Pr@1 than Th",
                  "spread over the buckets", "M(θ) falls"):  # fmt: skip
        (says,) = [says for says in verdicts if words in says]
        assert verdicts[says] == expected, says
    # Values without intervals say so: 99 is above the paper's 97.7, and far from Eq. 9's 256.
    bases = {claim.says: (claim.verdict, claim.basis) for claim in found}
    (says,) = [says for says in bases if "at least the speed-up factor" in says]
    assert bases[says] == ("shown", "values")
    (says,) = [says for says in bases if "follows Eq. 9" in says]
    assert bases[says] == ("contradicted", "values")
    (says,) = [says for says in bases if "a higher NMI" in says]
    assert bases[says] == ("shown", "values")
    text = claims.page(found, ["triplet"], 1)
    assert text.count("\n| ") == len(found) + 1
    assert "one seed" in text


def test_one_rival_of_the_other_length_is_enough_to_refuse(tmp_path: Path) -> None:
    found = []
    for each in rows((0.1, 1.0)):
        if each.method == "flowhash":
            each.leads["exhaustive-raw"] = {name: [-3.0, -2.0] for name in each.leads["vq"]}
        if each.method == "vq-raw":
            each = dataclasses.replace(each, nmi=99.0)
        found.append(each)
    head = "training,step,bound_gap,class_objective,item_objective\n"
    (tmp_path / "cifar100-triplet-method-objective.csv").write_text(head)
    verdicts = {claim.says: claim.verdict for claim in claims.claims({"triplet": found}, tmp_path)}
    for words, expected in (
        ("more precise than exhaustive", "not shown"),
        ("a higher NMI", "contradicted"),
        ("M(θ) falls", "not shown"),  # nothing was written
    ):
        (says,) = [says for says in verdicts if words in says]
        assert verdicts[says] == expected, says
