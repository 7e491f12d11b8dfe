"""The verdicts of benchmarks/paper/claims.py follow from intervals and values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measurement import RESULTS
from benchmarks.paper import claims
from flowhash.evaluate import group_seeds, paper_rows
from tests.evaluate.test_tables import row

HEAD = "training,step,bound_gap,class_objective,item_objective\n"
OBJECTIVE = "cifar100-triplet-method-objective.csv"


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
        leads = {name: {field: list(pair) for field, pair in ends.items()} for name in names}
        found.append(dataclasses.replace(ours, leads=leads))
    return found


def one(found: Sequence[claims.Claim], words: str) -> claims.Claim:
    (claim,) = [claim for claim in found if words in claim.says]
    return claim


def objective(folder: Path, **gaps: tuple[float, float, float]) -> Path:
    """Of each k: M before, M after, and how many times larger g is after."""
    path = folder / OBJECTIVE
    lines = [
        f'"{name}",{step},{gap[step > 5]},0.0,{-9.0 * (gap[2] if step > 5 else 1)}\n'
        for name, gap in gaps.items()
        for step in range(1, 11)
    ]
    path.write_text(HEAD + "".join(lines))
    return path


@pytest.mark.parametrize(
    ("lead", "expected"),
    [((0.1, 1.0), "shown"), ((-0.1, 1.0), "not shown"), ((-2.0, -0.1), "contradicted")],
)
def test_verdicts_follow_from_the_intervals(
    tmp_path: Path, lead: tuple[float, float], expected: str
) -> None:
    objective(tmp_path, k=(9.0, 3.0, 1.0))
    found = claims.claims({"triplet": rows(lead)}, tmp_path)
    for words in ("more precise than exhaustive", "a larger SUF than Th",
                  "a larger Pr@1, 4 and 16 than Th", "spread over the buckets"):  # fmt: skip
        claim = one(found, words)
        assert (claim.verdict, claim.basis) == (expected, "intervals"), claim.says


def test_one_rival_of_the_other_length_is_enough_to_refuse(tmp_path: Path) -> None:
    found = rows((0.1, 1.0))
    for each in found:
        if each.method == "flowhash":
            each.leads["exhaustive-raw"] = {name: [-3.0, -2.0] for name in each.leads["vq"]}
            each.leads["vq-raw"]["pr16"] = [-3.0, -2.0]
    (tmp_path / OBJECTIVE).write_text(HEAD)
    made = claims.claims({"triplet": found}, tmp_path)
    assert one(made, "more precise than exhaustive").verdict == "not shown"
    assert one(made, "a larger SUF than Th").verdict == "shown"
    precise = one(made, "a larger Pr@1, 4 and 16 than Th")
    assert precise.verdict == "not shown"
    assert precise.figure.startswith("16 of 18 intervals are above zero, not: train Pr@16 − VQ, ")
    assert one(made, "M(θ) falls").verdict == "not shown"  # nothing was written


@pytest.mark.parametrize(
    ("change", "expected"),
    [({}, "shown"), ({("vq-raw", "test"): 70.0}, "not shown"),
     ({("vq-raw", "train"): 99.0, ("vq-raw", "test"): 99.0}, "not shown"),
     ({("th", "train"): 70.5, ("vq", "train"): 71.0, ("vq-raw", "train"): 99.0}, "not shown"),
     ({(name, table): 70.5 for name in ("th", "vq", "vq-raw") for table in claims.TABLES},
      "contradicted")],
)  # fmt: skip
def test_clusters_are_compared_rival_by_rival(
    change: dict[tuple[str, str], float], expected: str
) -> None:
    """FlowHash has an NMI of 70, and all others 60 but for the change."""
    found = [
        dataclasses.replace(each, nmi=change.get((each.method, each.table), each.nmi))
        for each in rows((0.1, 1.0))
    ]
    claim = claims.clusters_claim("triplet", group_seeds(found))
    assert (claim.verdict, claim.basis) == (expected, "values")


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [(97.77, 97.67, "shown"), (97.76, 97.67, "not shown"), (97.76, 97.66, "contradicted")],
)
def test_the_speed_up_is_compared_with_the_papers(train: float, test: float, expected: str) -> None:
    groups = group_seeds([row("flowhash", "train", suf=train), row("flowhash", suf=test)])
    claim = claims.speed_claim("triplet", groups, 1, claims.paper_speeds("triplet"))
    assert claim.verdict == expected


@pytest.mark.parametrize(
    ("ours", "threshold", "quantised", "expected"),
    [(0.80, 0.79, 1.26, "shown"), (0.80, 0.81, 1.26, "not shown"), (0.80, 0.79, 1.24, "not shown"),
     (0.80, 0.81, 1.24, "contradicted"), (1.26, 0.79, 0.78, "shown"),
     (0.80, 0.80, 0.80, "contradicted")],
)  # fmt: skip
def test_nearer_to_the_expected_speed_up(
    ours: float, threshold: float, quantised: float, expected: str
) -> None:
    """Half is as far as double: 0.80 of Eq. 9 is as far as 1.25."""
    ratios = {"flowhash": ours, "th": threshold, "vq": quantised}
    found = [row(name, suf=64 * each, expected=64.0) for name, each in ratios.items()]
    claim = claims.expected_claim("npairs", group_seeds(found))
    assert (claim.verdict, claim.basis) == (expected, "values")
    assert f"k = 1: FlowHash {ours:.2f}, Th {threshold:.2f}, VQ {quantised:.2f}" in claim.figure


def test_the_paper_itself_passes_for_what_it_claims_and_triplet_is_not_judged() -> None:
    """Figure 4 has npairs: 0.86 to 1.05 of Eq. 9."""
    claim = claims.expected_claim("npairs", group_seeds(paper_rows("cifar100", "npairs")))
    assert claim.verdict == "shown"
    for words in ("k = 1: FlowHash 0.86", "k = 2: FlowHash 1.00", "k = 4: FlowHash 1.05"):
        assert words in claim.figure
    triplet = claims.expected_claim("triplet", group_seeds(paper_rows("cifar100", "triplet")))
    assert triplet.verdict == "not claimed"
    assert "k = 1: FlowHash 0.38" in triplet.figure
    assert "k = 3: FlowHash 1.47" in triplet.figure


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ({"a": (10.0, 9.4, 1.0), "b": (10.0, 3.0, 1.0)}, "shown"),  # by 6 %
        ({"a": (10.0, 9.6, 1.0), "b": (10.0, 3.0, 1.0)}, "not shown"),  # by 4 %
        ({"a": (10.0, 9.6, 1.0), "b": (10.0, 10.0, 1.0)}, "contradicted"),
        ({"a": (10.0, 5.0, 0.5)}, "contradicted"),  # outputs got shorter: M over |g| is the same
        ({"a": (10.0, 5.0, 0.52)}, "contradicted"),  # over |g| by 4 %
        ({"a": (10.0, 5.0, 0.54)}, "shown"),  # over |g| by 7 %
        ({"a": (10.0, 11.0, 2.0)}, "contradicted"),  # M over |g| fell, M grew
    ],
)
def test_a_gap_falls_where_both_it_and_its_share_do(
    tmp_path: Path, gaps: dict[str, tuple[float, float, float]], expected: str
) -> None:
    groups = group_seeds(rows((0.1, 1.0)))
    claim = claims.gap_claim("triplet", groups, objective(tmp_path, **gaps))
    assert (claim.verdict, claim.basis) == (expected, "values")


def seeded(*precisions: float) -> dict[Any, Any]:
    """One seed for each precision of exhaustive search on train; on test it is the same."""
    found = []
    for seed, each in enumerate(precisions):
        found += [row("exhaustive", "train", None, seed=seed, pr1=each)]
        found += [row("exhaustive", k=None, seed=seed), row("flowhash", seed=seed, pr1=30.0 + seed)]
    return group_seeds(found)


@pytest.mark.parametrize(
    ("precisions", "options", "words"),
    [((40.0,), "--seeds 1", "one seed"),
     ((40.0, 40.0, 40.0), "--seeds 3 --one-base", "mean of 3 seeds of FlowHash on one base"),
     ((40.0, 41.0), "--seeds 2", "mean of 2 seeds")],
)  # fmt: skip
def test_the_command_has_the_seeds_of_the_rows(
    precisions: tuple[float, ...], options: str, words: str
) -> None:
    groups = seeded(*precisions)
    start = "`flowhash reproduce cifar100 --loss npairs --preset method"
    assert claims.command("npairs", groups) == f"{start} {options} --folder DATA --out RUNS`"
    assert claims.seeds_words(each for group in groups.values() for each in group) == words


def test_the_page_has_a_row_for_each_claim_and_each_loss_its_seeds(tmp_path: Path) -> None:
    objective(tmp_path, k=(9.0, 3.0, 1.0))
    read = {"triplet": rows((0.1, 1.0))}
    found = claims.claims(read, tmp_path)
    text = claims.page(found, read)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == len(found) + 1
    assert {line.replace(r"\|", "").count("|") for line in lines} == {6}
    assert r"over \|g\|" in text
    assert "[triplet](cifar100-triplet-method.md), one seed" in text
    words = " ".join(text.split())
    assert "three times the paper's rate in stage 2 and in npairs' stage 1" in words
    assert "both M and M over |g| end more than 5 % below" in words
    verdicts = {claim.verdict for claim in found}
    assert verdicts <= {"shown", "not shown", "contradicted", "not claimed"}


def test_what_was_not_run_is_said(tmp_path: Path) -> None:
    found = claims.claims({}, tmp_path)
    for words in ("478 times", "221 times", "ImageNet32, both losses: a higher NMI"):
        claim = one(found, words)
        assert (claim.verdict, claim.basis) == ("not shown", "nothing")
        assert "not run here" in claim.figure


def test_the_page_is_what_its_generator_makes() -> None:
    """It cannot drift from docs/results/*.json: python -m benchmarks.paper.claims writes it."""
    read = claims.measured()
    assert (RESULTS / "paper-claims.md").read_text() == claims.page(
        claims.claims(read, RESULTS), read
    )
