"""What benchmarks/paper/quotes.py puts into the README and docs/how-it-works.md."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measurement import ROOT, put
from benchmarks.paper import quotes
from flowhash.evaluate.output.result_grid import SPACE
from tests.evaluate.test_tables import row, with_intervals


def made() -> dict[str, Any]:
    rows = [row("exhaustive", k=None), row("vq", pr1=48.0), row("vq-train"), row("classifier")]
    rows += [row("classifier", k=2, suf=2.0), row("start", suf=8.0), row("start", k=2, suf=7.0)]
    rows += [row("flowhash", pr1=52.0), row("flowhash", k=2, suf=9.0, pr1=51.0)]
    rows += [row("flowhash", "train", pr1=99.0)]
    return {loss: with_intervals(rows) for loss in quotes.LOSSES}


def test_the_pages_say_what_was_measured(tmp_path: Path) -> None:
    """They cannot drift from docs/results/*.json: python -m benchmarks.paper.quotes writes them."""
    (tmp_path / "docs").mkdir()
    pages = ("README.md", "docs/index.md", "docs/how-it-works.md")
    for name in pages:
        shutil.copy(ROOT / name, tmp_path / name)
    quotes.write(tmp_path)
    for name in pages:
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), name


def test_a_row_names_only_the_loss_that_it_saw() -> None:
    text = quotes.results(made())
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[0].startswith("| d | search | Pr@1 |")
    assert len(lines) == 2 + 2 * 6
    assert "| 256 | VQ, fitted on train | 50.00 |" in text
    assert "| 256 | start, zero steps (triplet) | 50.00 |" in text
    for line in lines[2:]:
        learned = "FlowHash" in line or "start" in line
        assert ("(triplet)" in line or "(npairs)" in line) == learned
    for words in ("cross-entropy", "frozen", "at that classifier", "masked product",
                  "mirror image", "100 classes in a batch", "One seed."):  # fmt: skip
        assert words in text


def test_bold_and_intervals() -> None:
    read = made()
    ours = "| 256 | FlowHash (triplet) | **52.00** | **40.00** | **30.00** | **10.00** | 60.00 |"
    assert f"{ours} +2.00 (−0.25{SPACE}to{SPACE}+0.50) |" in quotes.results(read)
    for one in read["triplet"]:
        if (one.method, one.table) == ("flowhash", "test"):
            one.leads["classifier"] = {name: [-0.1, 4.0] for name in one.leads["classifier"]}
    text = quotes.results(read)
    assert "| 256 | FlowHash (triplet) | 52.00 | 40.00 | 30.00 | 10.00 | 60.00 |" in text
    assert "interval above zero" in " ".join(text.split())
    bare = {loss: [row("exhaustive", k=None), row("flowhash")] for loss in quotes.LOSSES}
    assert "Nothing is bold" in quotes.results(bare)
    assert "95 %" not in quotes.results(bare)


def test_the_start_stands_beside_what_was_learned() -> None:
    text = quotes.speed_ups(made()["triplet"], 256)
    assert "| independent, even codes: SUF | 256.0 | 64.1 |" in text
    assert "| start, zero steps: SUF | 8.0 | 7.0 |" in text
    assert "| FlowHash: SUF | 10.0 | 9.0 |" in text
    assert "| classifier: SUF | 10.0 | 2.0 |" in text
    assert quotes.speed_ups([row("flowhash")], 256) is None


def by_method(seeds: int = 1, lead: tuple[float, float] = (0.5, 1.5)) -> list[Any]:
    """Rows of the paper's method at k = 1 and 2, of FlowHash with several seeds on one base.

    FlowHash's Pr@1 and SUF grow with the seed; rivals that are trained have seed 0 only.
    """
    ends = {name: list(lead) for name in ("suf", "pr1", "pr4", "pr16")}
    leads = {"exhaustive": ends, "flowhash-free": ends}
    leads["classifier"] = {"pr1": [-4.0, -1.0], "suf": [-12.0, -10.0]}
    found = []
    for table in ("train", "test"):
        for k, suf in ((1, 98.0), (2, 20.0)):
            found += [row("classifier", table, k, pr1=54.0, suf=110.0)]
            found += [row("flowhash-free", table, k, pr1=49.0, suf=5.0)]
            found += [row("vq", table, k, pr1=48.0, suf=150.0), row("ivf", table, k, suf=90.0)]
            for seed in range(seeds):
                ours = row("flowhash", table, k, seed=seed, pr1=51.0 + seed, suf=suf + seed)
                known = {"leads": leads} if seeds == 1 else {"over_seeds": leads}
                found.append(dataclasses.replace(ours, **known))
        found += [row("exhaustive", table, None, seed=seed, suf=1.0) for seed in range(seeds)]
    return found


def test_the_papers_method_in_words() -> None:
    text = " ".join(quotes.method({"triplet": by_method()}).split()).replace(SPACE, " ")
    assert "three times its rate in stage 2 and in npairs' stage 1" in text
    assert (
        "- triplet, d = 256, one seed ([all rows](docs/results/cifar100-triplet-method.md))" in text
    )
    assert "Pr@1 at SUF: FlowHash 51.0 at 98.0, searching everything 50.0 at 1.0, k-means " in text
    assert "on the table 48.0 at 150.0, as many of its lists as come nearest" in text
    assert "FlowHash's scan 50.0 at 90.0, a classifier" in text
    assert (
        "steps 54.0 at 110.0, FlowHash with λ = 0 49.0 at 5.0; the paper's FlowHash 57.6 at" in text
    )
    assert "is +1.00 (+0.50 to +1.50) on train and +1.00 (+0.50 to +1.50) on test." in text
    assert "is shown at every k, a SUF of at least the paper's at k = 1 only (contradicted" in text
    assert "(contradicted at k = 2), that the" in text
    none = " ".join(quotes.method({"triplet": by_method(lead=(-0.5, 1.5))}).split())
    assert "is shown at no k, a SUF" in none
    assert none.endswith("that the flow adds to SUF at no k.")


def test_several_seeds_give_their_mean_and_say_so() -> None:
    read = {"triplet": by_method(), "npairs": by_method(3)}
    first, second = quotes.method(read).split("\n- ")[1:]
    assert first.startswith("triplet, d = 256, one seed (")
    assert second.startswith("npairs, d = 64, mean of 3 seeds of FlowHash on one base (")
    assert "FlowHash 52.0 at 99.0" in second
    assert "the paper's FlowHash 58.2 at 54.9" in " ".join(second.split())
    assert quotes.method_speed_up(read) == "20.0"
    exhaustive = quotes.method_exhaustive(read).replace(SPACE, " ")
    assert exhaustive.endswith(
        "+2.00 (+0.50 to +1.50) on test (npairs, mean of 3 seeds of FlowHash on one base)"
    )
    classifier = quotes.method_classifier(read).replace(SPACE, " ")
    assert classifier == (
        "+3.00 (+1.00 to +4.00) in Pr@1 and +12.00 (+10.00 to +12.00) in SUF (triplet, one seed); "
        "+2.00 (+1.00 to +4.00) in Pr@1 and +11.00 (+10.00 to +12.00) in SUF "
        "(npairs, mean of 3 seeds of FlowHash on one base)"
    )


def test_a_page_without_its_mark_is_not_passed_over(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a <!-- x: written by somebody -->old<!-- /x --> b")
    put(page, "x", r"\1 new")
    assert page.read_text() == "a <!-- x: written by somebody -->\n\\1 new\n<!-- /x --> b"
    put(page, "x", "within", inline=True)
    assert page.read_text() == "a <!-- x: written by somebody -->within<!-- /x --> b"
    with pytest.raises(SystemExit, match="has no"):
        put(page, "y", "new")
