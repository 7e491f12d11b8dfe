"""Tables as Markdown, LaTeX and CSV: the numbers shown, seeds, bold, and markup that holds."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.errors import InputError
from flowhash.evaluate.output.result_grid import SPACE, terminal_grid
from flowhash.evaluate.output.result_tables import (
    SPECIAL,
    UNSEEN,
    escape_latex,
    result_tables as markdown,
)
from flowhash.evaluate.paper_numbers import paper_rows
from flowhash.evaluate.results import (
    Row,
    read_rows,
    rival_name,
    rivals,
    rows_as_csv,
    write_rows,
)

Table = dict[tuple[str, str], dict[str, str]]
latex = partial(markdown, form="latex")
unseen = partial(markdown, names=UNSEEN)


def row(method: str, table: str = "test", k: int | None = 1, **changes: Any) -> Row:
    """A row with plain numbers."""
    values: dict[str, Any] = {"seed": 0, "suf": 10.0, "pr1": 50.0, "pr4": 40.0, "pr16": 30.0}
    values |= {"nmi": 60.0 if k == 1 and method != "exhaustive" else None, "scanned": 100.0}
    values |= {"seconds": 4e-6, "flat": 1e-4} | changes
    return Row(method=method, table=table, k=k, **values)


def experiment(seeds: int = 1, tables: tuple[str, ...] = ("train", "test")) -> list[Row]:
    """All methods, k = 1 and 2, with random numbers."""
    rng = np.random.default_rng(0)
    keys: list[tuple[str, int | None]] = [("exhaustive", None)]
    keys += [(m, k) for k in (1, 2) for m in ("th", "vq", "vq-train", "ivf", "classifier")]
    keys += [("flowhash", k) for k in (1, 2)]
    rows = []
    for table in tables:
        for method, k in keys:
            for seed in range(seeds):
                pr1, pr4, pr16 = rng.uniform(20, 70, 3)
                numbers = {"suf": rng.uniform(1, 99), "pr1": pr1, "pr4": pr4, "pr16": pr16}
                rows.append(row(method, table, k, seed=seed, **numbers))
    return rows


def with_intervals(rows: list[Row], lead: float = 1.0) -> list[Row]:
    """The same rows, with intervals: FlowHash is ``lead`` ahead of everybody, or a bit more."""
    quantities = ("suf", "pr1", "pr4", "pr16")
    ends = {f"pr{top}_{end}": value for top in (1, 4, 16)
            for end, value in (("low", -0.25 * top), ("high", 0.5 * top))}  # fmt: skip
    return [
        dataclasses.replace(
            one,
            leads={
                rival_name(rival, one): {name: [lead, lead + 1] for name in quantities}
                for rival in rivals(one, rows)
            },
            **ends,
        )
        for one in rows
    ]


def parse(text: str) -> list[Table]:
    """Cells of each Markdown table, by k and method, then by the head of the column."""
    tables: list[Table] = []
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    for block in blocks:
        lines = [line.strip("|").split("|") for line in block.splitlines()]
        cells = [[cell.strip() for cell in line] for line in lines]
        assert len({len(line) for line in cells}) == 1
        heads, table, k = cells[0], {}, ""
        for line in cells[2:]:
            k = line[0] or k
            table[k, line[1]] = dict(zip(heads[2:], line[2:], strict=True))
        tables.append(table)
    return tables


def plain(cell: str) -> str:
    return re.sub(r" ?<sub>.*</sub>", "", cell).replace("**", "")


def test_measured_numbers_stand_where_they_belong() -> None:
    rows = experiment()
    main, train, test, nmi = parse(markdown(rows))
    names = {"th": "Th", "vq": "VQ", "vq-train": "VQ, fitted on train", "flowhash": "FlowHash"}
    for one in rows:
        key = (str(one.k or ""), names.get(one.method, one.method))
        if one.method == "ivf":
            key = (str(one.k), "FAISS IVF, same scan")
        wide = {"train": train, "test": test}[one.table][key]
        shown = {"SUF": one.suf, "Pr@1": one.pr1, "Pr@4": one.pr4, "Pr@16": one.pr16}
        for head, value in shown.items():
            assert plain(main[key][f"{one.table} {head}"]) == f"{value:.2f}"
            assert plain(wide[head]) == f"{value:.2f}"
        assert plain(wide["NMI"]) == ("" if one.nmi is None else "60.00")
        assert (wide["items scanned"], wide["µs per query"]) == ("100.0", "4.0")
        assert (wide["× FAISS Flat"], wide["forward passes"]) == ("25.0", "1")
    assert len(main) == 13 + 1  # the classifier at k = 1 stands beside k = 2 too
    assert main["2", "classifier, k = 1"] == main["1", "classifier"]
    assert {key[0] for key in nmi} == {"1"}
    assert len(nmi) == 6


def test_groups_and_methods_keep_the_papers_order() -> None:
    (main, *_) = parse(markdown(experiment()[::-1]))
    methods = [method for _, method in main]
    assert [k for k, _ in main] == [""] + ["1"] * 6 + ["2"] * 7
    assert methods[0] == "exhaustive"
    assert methods[1:3] == ["Th", "VQ"]
    assert methods[6] == methods[13] == "FlowHash"
    assert methods[11:13] == ["classifier", "classifier, k = 1"]


def test_the_papers_numbers_stand_beside_ours() -> None:
    paper = paper_rows("cifar100", "triplet")
    main, train, _, nmi = parse(markdown(experiment(), paper))
    for one in paper:
        name = {"exhaustive": "exhaustive", "th": "Th", "vq": "VQ", "flowhash": "FlowHash"}
        if one.k in (None, 1, 2):
            cells = main[str(one.k or ""), name[one.method]]
            for head, value in (("SUF", one.suf), ("Pr@1", one.pr1), ("Pr@16", one.pr16)):
                assert cells[f"{one.table} {head}"].endswith(f" <sub>{value:.2f}</sub>")
        if one.nmi is not None:
            shown = nmi["1", name[one.method]][f"{one.table} NMI"]
            assert shown.endswith(f" <sub>{one.nmi:.2f}</sub>")
    for method in ("classifier", "FAISS IVF, same scan", "VQ, fitted on train"):
        assert "<sub>" not in "".join(main["1", method].values())
    assert "<sub>" not in "".join(train["1", "FlowHash"].values())
    assert "The small number is the paper's" in markdown(experiment(), paper)
    assert "the paper's" not in markdown(experiment())


def test_several_seeds_give_mean_and_sample_deviation() -> None:
    rows = experiment(seeds=3)
    text = markdown(rows)
    main, train, *_ = parse(text)
    chosen = [one for one in rows if (one.method, one.table, one.k) == ("vq", "train", 2)]
    values = np.array([one.pr4 for one in chosen])
    shown = f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"
    assert main["2", "VQ"]["train Pr@4"] == train["2", "VQ"]["Pr@4"] == shown
    assert train["2", "VQ"]["forward passes"] == "1"
    assert "over 3 seeds" in text
    pieces = f"{values.mean():.2f}{{\\tiny$\\pm${values.std(ddof=1):.2f}}}"
    assert pieces in latex(rows)
    assert "±" not in markdown(experiment(seeds=1))


def test_the_terminal_has_the_same_lines() -> None:
    rows = experiment()
    grid = terminal_grid(rows, "test")
    assert [column.title for column in grid.columns] == ["Pr@1", "Pr@4", "Pr@16", "SUF", "NMI"]
    _, _, wide, _ = parse(markdown(rows))
    found = {
        (str(group.k or ""), line.label): line for group in grid.groups for line in group.lines
    }
    assert list(found) == list(wide)
    for one in rows:
        if one.table == "test" and one.method == "flowhash":
            shown = [cell.text for cell in found[str(one.k), "FlowHash"].cells]
            nmi = "" if one.nmi is None else "60.0"
            assert shown == [*(f"{n:.1f}" for n in (one.pr1, one.pr4, one.pr16, one.suf)), nmi]


def test_what_is_infinite_is_written_so() -> None:
    (main, *_) = parse(markdown([row("vq", suf=float("inf"))]))
    assert main["1", "VQ"]["SUF"] == "∞"
    assert r"$\infty$" in latex([row("vq", suf=float("inf"))])


def test_times_flat_is_the_mean_of_ratios() -> None:
    rows = [row("th", seed=0, seconds=1e-6), row("th", seed=1, seconds=4e-6)]
    (_, wide, _) = parse(markdown(rows))
    assert wide["1", "Th"]["× FAISS Flat"].startswith("62.5 ± ")
    (_, wide, _) = parse(markdown([row("th", flat=None)]))
    assert wide["1", "Th"]["× FAISS Flat"] == ""


EVERYBODY = ("exhaustive", "th", "vq", "vq-train", "ivf", "classifier", "start")


@pytest.mark.parametrize("behind", [None, *EVERYBODY, "classifier, k = 1"])
def test_bold_is_to_lead_everybody_by_more_than_chance(behind: str | None) -> None:
    """One interval that touches zero is enough for plain figures."""
    rows = [row(name, k=None if name == "exhaustive" else 2) for name in EVERYBODY]
    rows += [row("classifier", k=1), row("flowhash", k=2, pr1=52.0)]
    rows += [row("flowhash-own", k=2, pr1=99.0)]  # itself: the same buckets
    rows += [row("th", k=1), row("vq", "train", k=2)]  # other groups do not matter
    rows = with_intervals(rows)
    (ours,) = (one for one in rows if one.method == "flowhash")
    assert set(ours.leads) == {*EVERYBODY, "classifier, k = 1"}
    if behind is not None:
        ours.leads[behind]["pr1"] = [0.0, 3.0]
    main, *_ = parse(markdown(rows, paper_rows("cifar100", "triplet")))
    shown = "**52.00**" if behind is None else "52.00"
    assert main["2", "FlowHash"]["test Pr@1"] == f"{shown} <sub>57.30</sub>"
    assert main["2", "FlowHash"]["test Pr@4"].startswith("**40.00**")
    bold = [cell for line in main.values() for cell in line.values() if "**" in cell]
    assert len(bold) == 3 + (behind is None)
    assert (r"\textbf{52.00}" in latex(rows)) == (behind is None)


def test_every_seed_has_to_lead() -> None:
    rows = with_intervals([row(name, seed=seed) for name in ("vq", "flowhash") for seed in (0, 1)])
    main, *_ = parse(markdown(rows))
    assert main["1", "FlowHash"]["Pr@1"] == "**50.00 ± 0.00**"
    rows[-1].leads["vq"]["pr1"] = [-0.1, 3.0]
    main, *_ = parse(markdown(rows))
    assert main["1", "FlowHash"]["Pr@1"] == "50.00 ± 0.00"
    assert "in every seed" in markdown(rows)


def test_rows_without_intervals_make_no_claim() -> None:
    """Files of an older FlowHash have none: nothing is bold, and the caption says why."""
    rows = [row("th"), row("vq"), row("exhaustive", k=None), row("flowhash", pr1=99.0)]
    for text in (markdown(rows), latex(rows)):
        assert "**" not in text
        assert r"\textbf" not in text
        assert "nothing is bold: a lead may be chance" in text
    assert len(parse(markdown(rows))) == 3
    assert "above zero" in markdown(with_intervals(rows))


def test_rows_come_back_from_a_file_old_or_new(tmp_path: Path) -> None:
    rows = with_intervals([row("vq"), row("flowhash")])
    write_rows(tmp_path / "new.json", rows)
    assert read_rows(tmp_path / "new.json") == rows
    added = {"leads"} | {f"pr{top}_{end}" for top in (1, 4, 16) for end in ("low", "high")}
    values = json.loads((tmp_path / "new.json").read_text())
    old = [{name: value for name, value in one.items() if name not in added} for one in values]
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert read_rows(tmp_path / "old.json") == [row("vq"), row("flowhash")]


def test_differences_stand_with_their_intervals() -> None:
    rows = with_intervals([
        row("exhaustive", k=None), row("vq", pr1=48.0), row("classifier", pr1=51.5),
        row("flowhash", pr1=53.0), row("flowhash", k=2, pr1=50.5),
    ])  # fmt: skip
    _, differences, leads, *_ = parse(markdown(rows))
    assert differences["1", "VQ"]["Pr@1"] == f"−2.00 (−0.25{SPACE}to{SPACE}+0.50)"
    assert differences["1", "FlowHash"]["Pr@16"] == f"+0.00 (−4.00{SPACE}to{SPACE}+8.00)"
    assert "exhaustive" not in {method for _, method in differences}
    assert leads["1", "against VQ"]["Pr@1"] == f"+5.00 (+1.00{SPACE}to{SPACE}+2.00)"
    assert leads["2", "against classifier, k = 1"]["Pr@1"] == f"−1.00 (+1.00{SPACE}to{SPACE}+2.00)"
    assert leads["2", "against exhaustive"]["SUF"] == f"+0.00 (+1.00{SPACE}to{SPACE}+2.00)"
    assert set(leads) == {
        ("1", "against exhaustive"), ("1", "against VQ"), ("1", "against classifier"),
        ("2", "against exhaustive"), ("2", "against classifier, k = 1"),
    }  # fmt: skip
    assert r"$-$2.00 ($-$0.25~to~+0.50)" in latex(rows)


def test_costs_are_never_bold() -> None:
    rows = [row("th"), row("vq"), row("flowhash", scanned=900.0, seconds=9.0, passes=2)]
    (*_, wide, nmi) = parse(markdown(with_intervals(rows)))
    cells = wide["1", "FlowHash"]
    bold = {head for head, cell in cells.items() if "**" in cell}
    assert bold == {"SUF", "Pr@1", "Pr@4", "Pr@16"}
    assert "**" not in nmi["1", "FlowHash"]["NMI"]
    assert (cells["items scanned"], cells["forward passes"]) == ("900.0", "2")


def test_names_and_number_of_the_papers_table() -> None:
    text = markdown(
        [row("vq"), row("th", "train")], title="ImageNet32", names={"test": "val"}, number=3
    )
    assert "searching val" in text
    assert "train" not in text
    assert "Th |" not in text
    assert text.startswith("ImageNet32: SUF and precision in % (the paper's Table 3). One seed.")
    assert "(the paper's Table 5)" in text


def test_unseen_shows_its_table_only() -> None:
    rows = [*experiment(), row("flowhash", "unseen", suf=77.77), row("vq", "unseen", suf=7.0)]
    text = unseen(rows, title="80 and 20 classes")
    main, wide, nmi = parse(text)
    assert main["1", "FlowHash"]["SUF"] == wide["1", "FlowHash"]["SUF"] == "77.77"
    assert set(main) == set(nmi) == {("1", "VQ"), ("1", "FlowHash")}
    assert "77.77" not in markdown(rows)
    assert "77.77" in unseen(rows, form="latex")
    with pytest.raises(InputError, match="form is 'word'"):
        unseen(rows, form="word")


def test_notes_are_shown_once() -> None:
    rows = [row("vq", k=k, note="fitted on 100 % of a_table") for k in (1, 2)]
    assert markdown(rows).count("- VQ (test k = 1, test k = 2): fitted on 100 % of a_table") == 1
    assert (
        latex(rows).count(r"\item VQ (test k = 1, test k = 2): fitted on 100 \% of a\_table") == 1
    )


def test_rows_that_cannot_be_one_table() -> None:
    with pytest.raises(InputError, match="vq on test with k = 1 and seed 0; expected one"):
        markdown([row("vq"), row("vq", suf=3.0)])
    with pytest.raises(InputError, match="method is 'magic'"):
        latex([row("magic")])
    with pytest.raises(InputError, match="no row is of the table 'train' or 'test'"):
        markdown([row("vq", "unseen")])


def test_csv_gives_every_field_back() -> None:
    rows = [*experiment(2), row("vq", pr1=1 / 3, note='a "note", with\na line'), row("th", k=None)]
    lines = list(csv.DictReader(io.StringIO(rows_as_csv(rows))))
    assert len(lines) == len(rows)
    for one, line in zip(rows, lines, strict=True):
        inner = ("leads", "over_seeds")
        fields = [field.name for field in dataclasses.fields(Row) if field.name not in inner]
        assert list(line) == fields
        for name, value in one.to_json().items():
            if name in inner:
                continue
            back = "" if value is None else type(value)(line[name])
            assert back == ("" if value is None else value), name


def test_latex_braces_and_columns_are_balanced() -> None:
    rows = with_intervals(experiment(2))
    text = latex(rows, paper_rows("cifar100", "npairs"), title="50 % of {this} & that_one")
    bare = re.sub(r"\\[{}\\]", "", re.sub(r"(?<!\\)%.*", "", text))
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0
    assert depth == 0
    tabulars = re.findall(r"\\begin\{tabular\}\{(\w+)\}\n(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert [len(columns) for columns, _ in tabulars] == [10, 5, 6, 5, 6, 11, 11, 4]
    for columns, body in tabulars:
        for line in re.findall(r"^.*\\\\$", body, re.MULTILINE):
            spans = [int(span) - 1 for span in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            assert len(re.findall(r"(?<!\\)&", line)) + sum(spans) + 1 == len(columns), line
    assert text.count(r"\begin{table*}") == text.count(r"\end{table*}") == 8
    assert r"\textcolor{gray}{\scriptsize 54.85}" in text
    assert text.startswith(r"% Needs \usepackage{booktabs,xcolor}")


def test_latex_specials_are_escaped() -> None:
    assert escape_latex("a_b & 5 % {x} #1 $ ~ ^ \\") == (
        r"a\_b \& 5 \% \{x\} \#1 \$ \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
    assert escape_latex("".join(SPECIAL)).isascii()


@pytest.mark.parametrize("packages", ["booktabs,xcolor", "booktabs,xcolor,graphicx"])
@pytest.mark.parametrize("seeds", [1, 3])
def test_latex_compiles(tmp_path: Path, packages: str, seeds: int) -> None:
    engine = shutil.which("pdflatex") or shutil.which("tectonic")
    if engine is None:
        pytest.skip("neither pdflatex nor tectonic is installed")
    noted = [row("vq", k=3, seed=s, note="".join(SPECIAL)) for s in range(seeds)]
    rows = with_intervals([*experiment(seeds), *noted])
    body = latex(rows, paper_rows("cifar100", "triplet"), title="".join(SPECIAL))
    document = tmp_path / "page.tex"
    document.write_text(
        f"\\documentclass{{article}}\n\\usepackage{{{packages}}}\n\\begin{{document}}\n{body}"
        "\\end{document}\n"
    )
    options = ["-interaction=nonstopmode", "-halt-on-error"] if "pdflatex" in engine else []
    done = subprocess.run(
        [engine, *options, document.name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert document.with_suffix(".pdf").stat().st_size > 0
    assert "graphicx" not in packages or "Overfull \\hbox" not in done.stdout
