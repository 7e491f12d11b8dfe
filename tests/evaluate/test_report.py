from __future__ import annotations

import base64
import dataclasses
import io
import re
import sys

import numpy as np
import pytest
from PIL import Image

from flowhash.errors import MissingExtraError
from flowhash.evaluate.output.report_page import (
    picture,
    render_report,
    summarise,
    write_report,
)
from flowhash.evaluate.output.result_grid import SPACE
from flowhash.evaluate.results import METHODS, Buckets, Example, Report
from tests.evaluate import report_pages as pages
from tests.evaluate.test_tables import row as table_row, with_intervals

HOSTILE = '<script>alert("x")</script>&_$y$"\'>-->'


@pytest.fixture(scope="module")
def text() -> str:
    return pages.full_page()


@pytest.fixture(scope="module")
def page(text: str) -> pages.Element:
    return pages.read(text)


def measured(cell: pages.Element) -> str:
    """A cell without what the paper has."""
    kept = [part for part in cell.children if isinstance(part, str)]
    kept += [part.text for part in cell.all("span", class_="deviation")]
    return " ".join("".join(kept).split())


MAIN = {"SUF": "suf", "Pr@1": "pr1", "Pr@4": "pr4", "Pr@16": "pr16", "NMI": "nmi"}
REST = {"AMI": "ami", "purity": "purity", "recall@1": "recall1", "recall@4": "recall4",
        "recall@16": "recall16", "mAP@R": "map_r", "SUF@1": "suf1", "SUF@4": "suf4",
        "SUF@16": "suf16", "expected": "expected"}  # fmt: skip


@pytest.mark.parametrize(("head", "table"), [("Train table", "train"), ("Test table", "test")])
def test_every_number_stands_in_its_cell(page: pages.Element, head: str, table: str) -> None:
    main, rest = [pages.cells(each) for each in pages.section(page, head).all("table")]
    rows = [row for row in pages.full_report().rows if row.table == table]
    assert len(rows) == 1 + 4 * (len(METHODS) - 1)
    shown_at = [
        (row, "all items" if row.k is None else f"k = {row.k}", METHODS[row.method]) for row in rows
    ]
    # The classifier at k = 1 stands beside every k.
    [classifier] = [row for row in rows if (row.method, row.k) == ("classifier", 1)]
    shown_at += [(classifier, f"k = {k}", "classifier, k = 1") for k in (2, 3, 4)]
    assert len(main) == len(rest) == len(shown_at)
    for row, *place_words in shown_at:
        place = tuple(place_words)
        for names, found in ((MAIN, main[place]), (REST, rest[place])):
            for column, name in names.items():
                value = getattr(row, name)
                shown = "–" if value is None else f"{value:.2f}"
                assert measured(found[column]) == shown, (place, column)
        number = f"{row.scanned:,.1f}" if row.scanned < 1000 else f"{row.scanned:,.0f}"
        assert measured(main[place]["scanned"]) == number
        assert abs(float(measured(main[place]["µs"])) - 1e6 * row.seconds) <= 0.05
        faster = float(measured(main[place]["vs Flat"]).removesuffix("×"))
        assert abs(faster - row.flat / row.seconds) <= 0.05
        assert measured(main[place]["passes"]) == str(row.passes)


def test_bold_and_intervals_are_those_of_the_rows() -> None:
    """Bold where FlowHash leads everybody; a difference to exhaustive search as low to high."""
    rows = with_intervals([
        table_row("exhaustive", k=None), table_row("vq"), table_row("flowhash"),
        table_row("flowhash", k=2),
    ])  # fmt: skip
    rows[3].leads["exhaustive"]["pr4"] = [-0.5, 3.0]
    text = render_report(Report("t", rows))
    main, rest = [pages.cells(each) for each in pages.read(text).all("table")]
    bold = {
        (*place, head)
        for place, cells in main.items()
        for head, cell in cells.items()
        if cell.attributes.get("class") == "lead"
    }
    ours = [("k = 1", "FlowHash", head) for head in ("SUF", "Pr@1", "Pr@4", "Pr@16")]
    ours += [("k = 2", "FlowHash", head) for head in ("SUF", "Pr@1", "Pr@16")]
    assert bold == set(ours)
    assert rest["k = 1", "VQ"]["Pr@4 − exhaustive"].words == "−1.00 to +2.00"
    assert "Bold: FlowHash leads all other methods" in text
    plain = render_report(Report("t", [table_row("vq"), table_row("flowhash", pr1=99.0)]))
    assert 'class="lead"' not in plain
    assert "nothing is bold" in plain


def test_nothing_is_summarised_of_no_rows() -> None:
    assert summarise([]) is None


def test_the_summary_names_who_is_level() -> None:
    rows = with_intervals([table_row("vq", pr1=30.0), table_row("classifier", pr1=49.9),
                           table_row("flowhash"), table_row("exhaustive", k=None)])  # fmt: skip
    text = render_report(Report("t", rows))
    assert (
        f"(a difference of −0.25{SPACE}to{SPACE}+0.50 points); no other method has a higher Pr@1"
        in text
    )
    rows[2].leads["classifier"]["pr1"] = [-0.3, 0.5]
    text = render_report(Report("t", rows)).replace("\N{NO-BREAK SPACE}", " ")
    assert "level, as far as these queries can tell: classifier (49.9 % at 10.0×)." in text


def test_tables_are_in_order_and_flowhash_stands_out(page: pages.Element) -> None:
    assert [head.words for head in page.all("h2")] == [
        "Train table", "Test table", "Recall against items scanned", "Queries and answers",
        "Buckets", "Training", "Notes"
    ]  # fmt: skip
    table = pages.section(page, "Test table").all("table")[0]
    buckets = [name for method, name in METHODS.items() if method != "exhaustive"]
    expected = [("all items", "exhaustive")]
    for k in (1, 2, 3, 4):
        expected += [(f"k = {k}", name) for name in buckets]
        if k > 1:
            expected.insert(
                expected.index((f"k = {k}", "classifier")) + 1, (f"k = {k}", "classifier, k = 1")
            )
    assert list(pages.cells(table)) == expected
    emphasised = {line.all("th")[0].words for line in table.all("tr", class_="ours")}
    assert emphasised == {name for name in METHODS.values() if name.startswith("FlowHash")}
    assert "1,234 queries among 9,999 items" in table.all("caption")[0].words
    marked = [line for line in table.all("tr") if line.all("sup")]
    assert {line.all("th")[0].words for line in marked} == {"VQ1"}
    assert pages.section(page, "Test table").all("ol")[0].words == "fitted on the table"


def test_numbers_of_the_paper_stand_beside(page: pages.Element) -> None:
    found = pages.cells(pages.section(page, "Test table").all("table")[0])
    for row in pages.full_report().paper:
        for column, name in MAIN.items():
            [beside] = found["k = 1", METHODS[row.method]][column].all("span", class_="paper")
            assert beside.words == f"{getattr(row, name):.2f}"
    everywhere = [part.words for part in page.all("span", class_="paper") if part.words != "paper"]
    assert len([word for word in everywhere if word]) == 10  # and nowhere else


def test_summary_says_what_the_rows_say() -> None:
    rng = np.random.default_rng(0)
    rows = [
        dataclasses.replace(pages.row(method, "test", k, 0, rng), suf=suf, pr1=precision)
        for method, k, suf, precision in (
            ("exhaustive", None, 1.0, 55.61), ("flowhash", 1, 98.04, 59.45),
            ("flowhash", 2, 60.0, 59.9), ("th", 1, 40.0, 50.0), ("classifier", 1, 99.78, 60.3),
        )
    ]  # fmt: skip
    [said] = pages.read(render_report(Report("x", rows))).all("p", class_="summary")
    assert said.words == (
        "Among test items, FlowHash with k = 1 scans 98.0× fewer items at Pr@1 59.5 %, exhaustive "
        "search has 55.6 %; a higher Pr@1 at this k: classifier (60.3 % at 99.8×)."
    )
    [said] = pages.read(render_report(Report("x", rows[:4]))).all("p", class_="summary")
    assert said.words.endswith("; no other method has a higher Pr@1 at this k.")


def test_seeds_become_mean_and_deviation() -> None:
    report = pages.full_report(seeds=3)
    page = pages.read(render_report(dataclasses.replace(report, buckets=(), curves={})))
    table = pages.section(page, "Test table").all("table")[0]
    found = pages.cells(table)
    for method, k in (("flowhash", 1), ("vq", 4)):
        rows = [row for row in report.rows if (row.method, row.table, row.k) == (method, "test", k)]
        assert len(rows) == 3
        values = np.array([[row.suf, row.pr1, row.pr16] for row in rows])
        for column, mean, deviation in zip(
            ("SUF", "Pr@1", "Pr@16"), values.mean(axis=0), values.std(axis=0, ddof=1), strict=True
        ):
            shown = measured(found[f"k = {k}", METHODS[method]][column])
            assert shown == f"{mean:.2f} ± {deviation:.2f}"
        speeds = np.array([row.flat / row.seconds for row in rows])
        shown = measured(found[f"k = {k}", METHODS[method]]["vs Flat"])
        mean, deviation = map(float, shown.replace("×", "").split(" ± "))
        assert abs(mean - speeds.mean()) <= 0.05
        assert abs(deviation - speeds.std(ddof=1)) <= 0.05
    assert "over 3 seeds" in table.all("caption")[0].words


def test_nothing_is_fetched(text: str, page: pages.Element) -> None:
    for element in page.all(""):
        for name in ("src", "href", "xlink:href", "data", "srcset", "action"):
            value = element.attributes.get(name, "#")
            assert value.startswith(("#", "data:image/png;base64,")), value[:80]
    assert re.findall(r"url\((?!#)", text) == []
    assert "@import" not in text
    assert "http://" not in text
    assert "https://" not in text
    assert {"script", "link", "iframe"}.isdisjoint(element.tag for element in page.all(""))


def test_page_is_well_formed(page: pages.Element) -> None:
    names = [element.attributes["id"] for element in page.all("") if "id" in element.attributes]
    assert len(names) == len(set(names)) > 100
    used = {match for each in page.all("") for value in each.attributes.values()
            for match in re.findall(r"^#(.+)|url\(#([^)]+)\)", value)}  # fmt: skip
    assert {first or second for first, second in used} <= set(names)
    assert page.all("html")[0].attributes["lang"] == "en"
    assert page.all("meta", name="viewport")
    assert len(page.all("h1")) == 1
    assert all(image.attributes["alt"] for image in page.all("img"))
    charts = page.all("svg")
    assert len(charts) == 2 * 5 + 2 + 2 * 2 + 2 + 3
    assert all(each.attributes["aria-label"] and each.attributes["role"] for each in charts)
    assert all(each.parent is not None and each.parent.tag == "figure" for each in charts)
    assert len(page.all("figcaption")) == len(charts)


def test_answers_are_framed_right_and_wrong(page: pages.Element) -> None:
    first, second = pages.section(page, "Queries and answers").all("article")
    assert len(first.all("li", class_="right")) == 3  # two of exhaustive search, one of FlowHash
    assert len(first.all("li", class_="wrong")) == 1
    for kind, sign in (("right", "✓"), ("wrong", "✗")):
        for answer in first.all("li", class_=kind) + second.all("li", class_=kind):
            [mark] = answer.all("span", class_="mark")
            assert (mark.words, mark.attributes["aria-label"]) == (sign, kind)
    wrong = first.all("li", class_="wrong")[0]
    assert wrong.all("span", class_="name")[0].words == "name_of_class_4"
    assert wrong.all("img")[0].attributes["title"] == "name_of_class_4"
    assert first.all("h3")[0].words == "name_of_class_3"
    assert first.all("img")[0].attributes["alt"] == "name_of_class_3, the query"
    chips = [chip.words for chip in second.all("span", class_="chip")]
    assert chips == ["name_of_class_5", "name_of_class_1"]
    assert [head.words for head in second.all("dt")] == ["FlowHash", "Th"]
    assert "nothing found" in second.words


def test_pictures_keep_every_pixel() -> None:
    def opened(source: str) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))))

    rng = np.random.default_rng(3)
    small, grey = pages.picture(rng), pages.picture(rng)[:, :, :1]
    np.testing.assert_array_equal(opened(picture(small)), small)
    np.testing.assert_array_equal(opened(picture(grey)), grey[:, :, 0])
    assert opened(picture(pages.picture(rng, 300))).shape == (64, 64, 3)


def test_hostile_names_stay_text() -> None:
    plain = pages.full_report()
    rows = [dataclasses.replace(row, note=HOSTILE) for row in plain.rows]
    rows.append(dataclasses.replace(rows[0], method=HOSTILE, table=HOSTILE))
    report = dataclasses.replace(
        plain, title=HOSTILE, rows=rows, facts=[(HOSTILE, HOSTILE)], notes=[HOSTILE],
        buckets=[Buckets(HOSTILE, plain.buckets[0].counts)], class_names=10 * [HOSTILE],
        recall_curves=[dataclasses.replace(pages.recall_curves(HOSTILE), words=(HOSTILE,))],
        curves={HOSTILE: [{**line, "stage": HOSTILE} for line in pages.journal(1)]},
        examples=[*plain.examples, Example(1, None, {HOSTILE: [(99, None)]})],
    )  # fmt: skip
    page = pages.read(render_report(report))
    assert page.all("script") == []
    for tag in ("title", "h1", "dt", "dd", "h3", "p", "li", "th"):
        assert any(HOSTILE in element.text for element in page.all(tag)), tag
    assert any(HOSTILE in image.attributes["alt"] for image in page.all("img"))
    drawn = next(svg for svg in page.all("svg") if "loss against" in svg.attributes["aria-label"])
    assert HOSTILE in drawn.attributes["aria-label"]
    assert any(HOSTILE in part.text for part in drawn.all("text"))
    assert "class 99" in page.text


@pytest.mark.parametrize(
    "part", [None, "rows", "paper", "examples", "buckets", "curves", "notes", "recall_curves"]
)
def test_parts_that_are_not_there_leave_no_trace(part: str | None) -> None:
    full = pages.full_report()
    values = {"rows": ()} | ({} if part is None else {part: getattr(full, part)})
    page = pages.read(render_report(Report("Only this", **values)))
    heads = [head.words for head in page.all("h2")]
    assert heads == {
        "rows": ["Train table", "Test table"], "examples": ["Queries and answers"],
        "buckets": ["Buckets"], "curves": ["Training"], "notes": ["Notes"],
        "recall_curves": ["Recall against items scanned"],
    }.get(part or "", [])  # fmt: skip
    assert page.all("span", class_="paper") == []
    assert page.all("dl", class_="facts") == []


def test_few_rows_are_enough() -> None:
    only = [row for row in pages.full_report().rows if row.method == "exhaustive"]
    bare = [dataclasses.replace(row, flat=None, nmi=None) for row in only]
    page = pages.read(render_report(Report("x", bare)))
    assert page.all("svg") == []
    heads = [head.words for head in page.all("table")[0].all("thead")[0].all("th")]
    assert "vs Flat" not in heads
    assert "NMI" not in heads
    assert "exhaustive search has Pr@1" in page.all("p", class_="summary")[0].words
    one = pages.read(render_report(Report("x", pages.rows(("unseen",), (1,)))))
    assert one.all("h2")[0].words == "Unseen classes"
    assert len(one.all("svg")) == 1  # time against SUF; with one k there is nothing against k
    nothing = Report("x", (), buckets=[Buckets("empty", np.zeros((3, 4), np.int64))])
    assert pages.read(render_report(nothing)).all("svg") == []


def test_file_is_replaced_and_the_same_twice(tmp_path) -> None:
    path = tmp_path / "new" / "report.html"
    assert write_report(Report("first", ()), str(path)) == path
    report = dataclasses.replace(pages.full_report(), rows=())
    write_report(report, path)
    assert path.read_text("utf-8") == render_report(report)
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("module", ["jinja2", "matplotlib"])
def test_missing_package_names_the_extra(monkeypatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{module} .*flowhash\[evaluate\]"):
        render_report(pages.full_report())
