from __future__ import annotations

import re
from collections import Counter
from urllib.parse import urlsplit

import numpy as np
import pytest

from flowhash.encoder import Encoder
from flowhash.errors import OldCalibrationWarning
from flowhash.table import HashTable
from tests.encoder.encoders import items_of
from tests.serve import browser

playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("starlette")
if browser.CHROMIUM is None:
    pytest.skip("no chromium on the PATH", allow_module_level=True)

QUERY = browser.pictures(4, seed=7)[0][1]
VIEWS = ("#search", "#search?id=4", "#buckets?bucket=3", "#add")


@pytest.fixture(scope="session")
def sites(tmp_path_factory):
    images = browser.image_table(tmp_path_factory.mktemp("images"))
    vectors = browser.vector_table(tmp_path_factory.mktemp("vectors"))
    own = browser.own_table(tmp_path_factory.mktemp("own"))
    wanted = [
        (*images, {}),
        (*vectors, {"api_key": browser.KEY}),
        (images[0], None, {"read_only": True}),
        (*own, {"read_only": True}),
    ]
    with browser.serving(wanted) as found:
        yield dict(zip(("images", "vectors", "reader", "own"), found, strict=True))


@pytest.fixture(scope="session")
def chromium():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser.CHROMIUM, args=browser.ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def opened(chromium, sites):
    """Opens watched pages; whatever a test does, no error and no other host comes up."""
    pages = []

    def open_page(name="images", fragment="", **options):
        options = {"viewport": {"width": 1200, "height": 900}} | options
        context = chromium.new_context(**options)
        context.set_default_timeout(1000 * browser.PATIENCE)
        watched = browser.Watched(context.new_page(), sites[name])
        pages.append(watched)
        watched.open(fragment)
        return watched

    yield open_page
    for watched in pages:
        host = urlsplit(watched.site.url).netloc
        foreign = [url for url in watched.requests if urlsplit(url).netloc not in (host, "")]
        watched.page.context.close()
        assert watched.errors == []
        assert foreign == []


@pytest.fixture(scope="session")
def encoder(sites):
    return Encoder.load(sites["images"].encoder)


@pytest.fixture
def table(sites):
    with HashTable.open(sites["images"].table) as found:
        yield found


def nearest(table, embedding, without=None) -> list[str]:
    """All ids by distance, by brute force."""
    ids = [item for item in table if item != without]
    far = [float(((table[item].embedding - embedding) ** 2).sum()) for item in ids]
    return [str(ids[place]) for place in np.argsort(far, kind="stable")]


def text(watched, selector: str) -> str:
    return " ".join(watched.page.inner_text(selector).split())


def check_answer(watched, table, encoder, image, probe=None) -> None:
    """What the page shows of a search by image, against the encoder and brute force."""
    found = encoder.search(table, image[None], top=16, probe=probe)
    hits = watched.hits()
    assert hits == [str(item) for item in found.ids[0, : found.counts[0]]]
    shown = watched.page.eval_on_selector_all(
        "#hits .distance", "all => all.map(each => each.lastChild.textContent)"
    )
    np.testing.assert_allclose(
        [float(each) for each in shown], found.distances[0, : len(shown)], rtol=0.01, atol=1e-4
    )
    scanned = int(found.scanned[0])
    figures = text(watched, "#figures")
    assert f"Scanned {scanned} of {len(table)} items ({len(table) / scanned:.3g} times" in figures
    assert re.search(r"Time [\d.]+ ms exhaustive [\d.]+ ms", figures)
    made = encoder.encode(image[None])
    best = nearest(table, made.embeddings[0])[:16]
    assert f"Same hits {len({*best} & {*hits})} of 16" in figures
    buckets = made.ordered_buckets(probe or encoder.active)[0].tolist()
    chips = watched.page.locator("#opened .chip").all_inner_texts()
    assert [int(each) for each in chips] == buckets


def test_dropped_image_is_searched(opened, table, encoder) -> None:
    watched = opened()
    watched.drop(browser.png(QUERY), "query.png", "image/png", "#drop")
    check_answer(watched, table, encoder, QUERY)
    image = watched.page.locator("#query-picture img")
    assert image.get_attribute("alt") == "the query: query.png"
    assert image.evaluate("each => [each.naturalWidth, each.naturalHeight]") == [14, 16]
    for hit in watched.page.locator("#hits li").all():
        item = table[int(hit.get_attribute("data-id"))]
        label = (item.payload or {}).get("label")
        assert hit.locator("img").count() == (label is not None)
        assert label is None or label in hit.inner_text()
    assert watched.page.locator("#hits .mark").count() == 0  # the class of a file is not known


def test_image_may_be_dropped_anywhere_picked_or_pasted(opened, table, encoder) -> None:
    watched = opened()
    page = watched.page
    page.set_input_files(
        "#file", {"name": "a.png", "mimeType": "image/png", "buffer": browser.png(QUERY)}
    )
    check_answer(watched, table, encoder, QUERY)
    other = browser.pictures(4, seed=8)[0][2]
    watched.drop(browser.png(other), "other.png", "image/png", "footer")
    watched.until("document.title.startsWith('other.png')")
    check_answer(watched, table, encoder, other)
    page.evaluate(
        """async (source) => {
          const transfer = new DataTransfer();
          const bytes = Uint8Array.from(source);
          transfer.items.add(new File([bytes], "pasted.png", { type: "image/png" }));
          document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer }));
        }""",
        list(browser.png(QUERY)),
    )
    watched.until("document.title.startsWith('pasted.png')")
    check_answer(watched, table, encoder, QUERY)
    page.go_back()
    watched.until("document.title.startsWith('other.png')")
    check_answer(watched, table, encoder, other)


def test_more_buckets_are_opened_when_told(opened, table, encoder) -> None:
    watched = opened()
    watched.drop(browser.png(QUERY), "query.png", "image/png")
    watched.hits()
    watched.page.fill("#probe", "7")
    watched.page.press("#probe", "Enter")
    watched.until("document.querySelectorAll('#opened .chip').length === 7")
    check_answer(watched, table, encoder, QUERY, probe=7)
    assert watched.page.evaluate("document.activeElement.id") == "probe"
    watched.page.fill("#top", "3")
    watched.page.press("#top", "Tab")
    watched.until("document.querySelectorAll('#hits > li').length === 3")
    watched.page.uncheck("#compare")
    watched.until("!document.getElementById('figures').innerText.includes('exhaustive')")
    assert "probe=7&top=3&compare=no" in watched.page.url.replace("top=3&probe=7", "probe=7&top=3")


def test_a_recall_is_asked_for(opened, table, encoder) -> None:
    watched = opened()
    page = watched.page
    shown = [option.strip() for option in page.locator("#recall option").all_inner_texts()]
    assert shown == ["not asked for", "80 %", "90 %", "95 %"]  # 96 queries promise no 99 %
    assert page.locator("#recall").is_enabled()
    assert page.locator("#recall-hint").is_hidden()
    watched.drop(browser.png(QUERY), "query.png", "image/png")
    watched.hits()
    # By keys alone, as on any form.
    page.focus("#probe")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "recall"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    watched.until("location.hash.includes('recall=0.9')")
    watched.until("document.getElementById('opened').textContent.includes('recall of 90')")
    made = encoder.encode(QUERY[None])
    found = table.search(made.activations, made.embeddings, 16, recall=0.9)
    assert watched.hits() == [str(item) for item in found.ids[0, : found.counts[0]]]
    assert f"Scanned {found.scanned[0]} of {len(table)}" in text(watched, "#figures")
    assert page.locator("#opened .chip").count() == min(24, int(found.opened[0]))
    share, opens = table.calibration.expected(0.9, 16)
    hint = text(watched, "#recall-hint")
    assert f"opens {opens:.3g} of {table.buckets} buckets" in hint
    assert f"scans {100 * share:.3g} %" in hint
    assert page.locator("#probe").is_disabled()  # the recall decides it
    assert page.evaluate("document.activeElement.id") == "recall"
    page.select_option("#recall", "")
    watched.until("!location.hash.includes('recall')")
    check_answer(watched, table, encoder, QUERY)
    assert page.locator("#probe").is_enabled()
    page.select_option("#recall", "0.95")
    watched.until("location.hash.includes('recall=0.95')")
    page.fill("#top", "20")  # more than were calibrated
    page.press("#top", "Enter")
    watched.until("!location.hash.includes('recall')")
    watched.until("document.querySelectorAll('#hits > li').length > 0")
    assert "up to 16 hits" in text(watched, "#recall-hint")
    assert page.locator("#recall").is_disabled()


def test_a_stored_item_asks_for_a_recall_where_the_encoder_takes_it(opened, sites) -> None:
    site = sites["own"]
    with HashTable.open(site.table) as table:
        made = Encoder.load(site.encoder).encode_stored(table[5].embedding[None])
        with pytest.warns(OldCalibrationWarning):
            expected = table.search(made.activations, made.embeddings, 16, recall=0.97)
    watched = opened("own", "#search?id=5&recall=.970")  # a link may name any
    assert watched.page.input_value("#recall") == "0.97"
    hits = watched.hits()
    assert hits[:15] == [str(each) for each in expected.ids[0].tolist() if each != 5][:15]
    assert "changed much since it was calibrated" in text(watched, "#recall-hint")
    assert watched.page.locator("#probe-hint").is_hidden()
    watched.page.locator("#hits li").first.click()
    watched.until(f"location.hash.includes('id={hits[0]}')")
    assert "recall=0.97" in watched.page.url  # as the other links keep how to search


def test_links_of_stored_items_follow_the_recall_that_is_chosen(opened) -> None:
    watched = opened("own")
    page = watched.page
    watched.until("document.querySelectorAll('#sample > li').length > 0")
    links = "[...document.querySelectorAll('#sample > li > a')].map(each => each.hash)"
    before = page.evaluate(links)
    assert before
    assert not any("recall" in link for link in before)
    page.select_option("#recall", "0.9")
    watched.until("location.hash.includes('recall=0.9')")
    page.evaluate("window.drawn = document.querySelector('#sample > li')")
    assert all("recall=0.9" in link for link in page.evaluate(links))
    page.select_option("#recall", "")
    watched.until("!location.hash.includes('recall')")
    assert page.evaluate(links) == before
    assert page.evaluate("window.drawn === document.querySelector('#sample > li')")  # not anew


@pytest.mark.parametrize(
    ("name", "fragment", "reason"),
    [
        ("vectors", "#search", "never calibrated"),
        ("reader", "#search", "no encoder"),
        ("images", "#search?id=4", "needs the item itself"),
    ],
)
def test_why_no_recall_can_be_asked_for(opened, name: str, fragment: str, reason: str) -> None:
    watched = opened(name, fragment)
    assert watched.page.locator("#recall").is_disabled()
    assert reason in text(watched, "#recall-hint")


def test_stored_item_is_searched_by_a_click(opened, table) -> None:
    watched = opened()
    page = watched.page
    first = page.locator("#sample li").first
    item = int(first.get_attribute("data-id"))
    first.click()
    hits = watched.hits()
    stored = table[item]
    mates = {int(each) for bucket in stored.code for each in table.bucket(int(bucket))} - {item}
    expected = [each for each in nearest(table, stored.embedding, item) if int(each) in mates]
    assert hits == expected[:16]
    label = stored.payload["label"]
    for hit in page.locator("#hits li").all():
        other = (table[int(hit.get_attribute("data-id"))].payload or {}).get("label")
        assert (hit.locator(".mark").count() == 1) == (other == label)
    same = sum((table[int(each)].payload or {}).get("label") == label for each in hits)
    assert 0 < same < len(hits)  # or the marks would prove nothing
    assert f"Same class {same} of {len(hits)} hits are {label}" in text(watched, "#figures")
    best = nearest(table, stored.embedding, item)[:16]
    assert f"Same hits {len({*best} & {*hits})} of 16" in text(watched, "#figures")

    page.locator("#hits li").first.click()
    watched.until(f"location.hash.includes('id={hits[0]}')")
    watched.until(f"document.getElementById('id').value === '{hits[0]}'")
    watched.settle()
    assert hits[0] not in watched.hits()
    page.go_back()
    watched.settle()
    assert watched.hits() == hits
    link = page.url
    again = opened(fragment=link[link.index("#") :])
    assert again.hits() == hits
    assert again.page.locator("#probe").get_attribute("max") == str(table.active)


def test_other_stored_items_are_shown(opened, table) -> None:
    watched = opened()
    shown = "#sample > li"
    before = watched.page.eval_on_selector_all(shown, "all => all.map(each => each.dataset.id)")
    assert len({*before}) == 24
    watched.page.click("#others")
    watched.settle()
    after = watched.page.eval_on_selector_all(shown, "all => all.map(each => each.dataset.id)")
    assert {*before} != {*after}
    assert all(int(item) in table for item in after)


def test_large_id_without_picture_keeps_every_digit(opened, table) -> None:
    watched = opened(fragment=f"#search?id={browser.LARGE}")
    assert watched.hits()
    assert f"id {browser.LARGE}" in text(watched, "#query-about")
    assert watched.page.locator("#query-picture img").count() == 0
    assert watched.page.locator("#query-picture .tile").is_visible()
    watched.page.click("#query-more summary")
    assert '"size"' in watched.page.inner_text("#query-more pre")
    bucket = int(table[browser.LARGE].code[0])
    watched.page.locator("#query-more .chip").first.click()
    watched.page.wait_for_selector("#bucket:not([hidden])")
    assert text(watched, "#bucket-title") == f"Bucket {bucket}"


def test_buckets_have_the_numbers_of_the_table(opened, table) -> None:
    watched = opened(fragment="#buckets")
    page = watched.page
    loads = [len(table.bucket(bucket)) for bucket in range(table.buckets)]
    bars = page.locator("#chart .all").get_attribute("d")
    assert [int(each) for each in re.findall(r"v-?(\d+)h", bars)] == loads
    assert f"{max(loads)} in the fullest, {loads.count(0)} empty" in text(watched, "#loads-about")
    for bucket in range(table.buckets):
        page.fill("#bucket-number", str(bucket))
        page.press("#bucket-number", "Enter")
        watched.until(f"document.getElementById('bucket-title').textContent === 'Bucket {bucket}'")
        watched.settle()
        ids = table.bucket(bucket).tolist()
        labels = [(table[item].payload or {}).get("label") for item in ids]
        classes = Counter(label for label in labels if label is not None)
        figures = text(watched, "#bucket-figures")
        assert f"Load {len(ids)} item" in figures
        lines = [" ".join(line.split()) for line in page.locator("#classes li").all_inner_texts()]
        if classes:
            purity = 100 * max(classes.values()) / classes.total()
            assert float(re.search(r"Purity ([\d.]+) %", figures)[1]) == pytest.approx(purity, 0.01)
            assert sorted(lines) == sorted(f"{name} {count}" for name, count in classes.items())
        else:
            assert "Purity –" in figures
        members = page.eval_on_selector_all(
            "#members > li", "all => all.map(each => each.dataset.id)"
        )
        assert len(members) == min(24, len(ids))
        assert {int(item) for item in members} <= {*ids}


def test_bucket_is_picked_by_pointer_and_keys(opened, table) -> None:
    watched = opened(fragment="#buckets?bucket=3")
    page = watched.page
    chart = page.locator("#chart")
    box = chart.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 7.5 / table.buckets, box["y"] + box["height"] - 5)
    shown = "document.getElementById('bucket-title').textContent"
    watched.until(f"{shown} === 'Bucket 7'")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    watched.until(f"{shown} === 'Bucket 5'")
    load = len(table.bucket(5))
    assert chart.get_attribute("aria-valuetext") == f"bucket 5, {load} item{'s' * (load != 1)}"
    assert page.evaluate("document.activeElement.id") == "chart"
    page.keyboard.press("End")
    watched.until(f"{shown} === 'Bucket {table.buckets - 1}'")
    page.click("#next")
    watched.until(f"{shown} === 'Bucket 0'")
    page.click("#previous")
    watched.until(f"{shown} === 'Bucket {table.buckets - 1}'")
    page.select_option("#bucket-order", "load")
    chart.focus()
    page.keyboard.press("Home")
    loads = [len(table.bucket(bucket)) for bucket in range(table.buckets)]
    watched.until(f"{shown} === 'Bucket {int(np.argmax(loads))}'")
    page.locator("#members li").first.click()
    assert watched.hits()


def test_item_is_added_and_deleted(opened, table) -> None:
    watched = opened(fragment="#add")
    page = watched.page
    image = browser.pictures(4, seed=99)[0][3]
    watched.drop(browser.png(image), "new.png", "image/png")
    page.fill("#add-label", "zebra")
    page.click("#add-button")
    page.wait_for_selector("#added-items li")
    assert page.evaluate("document.activeElement.id") == "added-title"
    item = int(page.locator("#added-items li").get_attribute("data-id"))
    assert f"Items {len(table) + 1}" in text(watched, "#stats")
    table.refresh()
    assert table[item].payload["label"] == "zebra"
    assert table[item].payload["name"] == "new.png"

    page.locator("#added-items a").click()
    watched.hits()
    page.click("text=Delete this item")
    assert text(watched, "#confirm-title") == f"Delete zebra, new.png (id {item})?"
    assert page.evaluate("document.activeElement.id") == "keep"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent") == "Delete this item…"
    page.keyboard.press("Enter")
    page.click("#really")
    page.wait_for_selector("#results", state="hidden")
    assert page.evaluate("document.activeElement.id") == "stored-title"
    watched.until("document.getElementById('status').textContent.includes('Deleted zebra')")
    watched.settle()
    table.refresh()
    assert item not in table
    assert f"Items {len(table)} " in text(watched, "#stats")
    assert page.locator(f"[data-id='{item}']:visible").count() == 0
    page.goto(f"{watched.site.url}#search?id={item}")
    page.wait_for_selector("#alert .problem")
    assert str(item) in text(watched, "#alert")


def test_wrong_file_is_refused_in_words(opened) -> None:
    watched = opened()
    page = watched.page
    watched.drop(b"this is no picture", "notes.txt", "text/plain")
    page.wait_for_selector("#alert .problem")
    message = text(watched, "#alert")
    assert "image" in message
    assert "Traceback" not in message
    assert page.locator("#results").is_hidden()
    page.click("#alert button")
    assert page.locator("#alert .problem").count() == 0
    watched.drop(b"still none", "notes.txt", "text/plain")
    page.wait_for_selector("#alert .problem")
    watched.drop(browser.png(QUERY), "query.png", "image/png")
    assert watched.hits()
    assert page.locator("#alert .problem").count() == 0
    watched.drop(b"", "large.png", "image/png", zeros=11 << 20)
    page.wait_for_selector("#alert .problem")
    assert "large.png has 11,534,336 bytes" in text(watched, "#alert")


def test_what_cannot_be_shown_is_said(opened) -> None:
    watched = opened(fragment="#search?image=5")
    assert "not part of its link" in text(watched, "#alert")
    page = watched.page
    page.goto(f"{watched.site.url}#buckets?bucket=1234")
    watched.until("document.getElementById('alert').textContent.includes('1234')")
    for fragment, word in (
        ("search?id=3&top=1e9", "“top” in the link is “1e9”"),
        ("search?id=3&probe=x", "“probe” in the link is “x”"),
        ("search?id=3&recall=2", "“recall” in the link is “2”"),
        ("search?id=3&recall=0.9", "only the embedding is kept"),
        ("search?vector=1,x", "“x” is not a number"),
        ("buckets?bucket=1.5", "no bucket 1.5"),
        ("buckets?bucket=", "no bucket"),
    ):
        page.goto(f"{watched.site.url}#{fragment}")
        watched.until(f"document.getElementById('alert').textContent.includes('{word}')")
    for name in ("toString", "constructor", "__proto__"):
        page.goto(f"{watched.site.url}#{name}")
        watched.until("document.title.startsWith('Search')")
        assert page.locator("#search").is_visible()
        page.goto(f"{watched.site.url}#add")
        page.wait_for_selector("#add:not([hidden])")
    page.context.set_offline(True)
    page.goto(f"{watched.site.url}#search?id=3")
    watched.until("document.getElementById('alert').textContent.includes('not answer')")
    page.context.set_offline(False)


def test_vector_is_searched(opened, sites) -> None:
    site = sites["vectors"]
    vector = items_of("mlp", 3, seed=5)[2]
    with HashTable.open(site.table) as table:
        found = Encoder.load(site.encoder).search(table, vector[None], top=16)
    expected = found.ids[0, : found.counts[0]].tolist()
    watched = opened("vectors")
    page = watched.page
    assert page.locator("#drop").is_hidden()
    for written in (str(vector.tolist()), " ".join(f"{value:.9g}" for value in vector)):
        page.fill("#vector", written)
        page.click("text=Search by vector")
        watched.settle()
        assert watched.hits() == expected
    page.fill("#vector", "1, 2, three")
    page.click("text=Search by vector")
    assert "“three” is not a number" in text(watched, "#alert")
    page.fill("#vector", "1, 2")
    page.click("text=Search by vector")
    watched.until("/expected 5/.test(document.getElementById('alert').textContent)")


def test_markup_stays_text_and_ids_may_be_paths(opened) -> None:
    item = "some folder/ä 2?#.txt"
    watched = opened("vectors")
    page = watched.page
    page.fill("#id", item)
    page.press("#id", "Enter")
    assert watched.hits()
    heading = f"Hits for {browser.MARKUP}, {browser.MARKUP}"
    assert page.text_content("#results-title") == heading
    page.click("text=Delete this item")
    assert browser.MARKUP in page.text_content("#confirm-title")
    page.click("#keep")
    page.locator("#query-more .chip").first.click()
    page.wait_for_selector("#classes li")
    watched.settle()
    assert browser.MARKUP in page.locator("#classes .bar-name").all_text_contents()
    assert page.locator("main img").count() == 0
    assert "broken" not in page.title().split(" · ")


def test_changes_ask_for_the_key(opened, sites) -> None:
    watched = opened("vectors", "#add")
    page = watched.page
    page.fill("#add-vector", "1, 2, 3, 4, 5")
    page.fill("#add-id", "new/one")
    page.fill("#add-label", "fresh")
    page.click("#add-button")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    watched.until("/not the right one/.test(document.getElementById('key-about').textContent)")
    page.fill("#key", browser.KEY)
    page.click("text=Use this key")
    page.wait_for_selector("#added-items li")
    assert page.evaluate("Object.values(sessionStorage)") == [browser.KEY]
    assert page.evaluate("localStorage.length") == 0
    assert browser.KEY not in page.url
    assert page.evaluate("document.cookie") == ""
    page.locator("#added-items a").click()
    watched.hits()
    page.click("text=Delete this item")
    page.click("#really")
    page.wait_for_selector("#results", state="hidden")
    with HashTable.open(sites["vectors"].table) as table:
        assert "new/one" not in table
        assert len(table) == 40

    other = opened("vectors", "#add")
    other.page.fill("#add-vector", "1, 2, 3, 4, 5")
    other.page.click("#add-button")
    other.page.click("#no-key")
    other.page.wait_for_selector("#alert .problem")
    assert "key" in text(other, "#alert")
    assert other.page.locator("#add-button").is_enabled()


def test_reader_without_encoder_says_what_it_cannot(opened, table) -> None:
    watched = opened("reader", "#add")
    page = watched.page
    assert page.locator("#add-form").is_hidden()
    assert "only reads its table" in text(watched, "#read-only")
    page.goto(f"{watched.site.url}#search?id=3")
    watched.hits()
    assert "only reads its table" in text(watched, "#query-more")
    assert page.locator("text=Delete this item").count() == 0
    embedding = table[5].embedding
    page.fill("#vector", ", ".join(f"{value:.9g}" for value in embedding))
    page.fill("#order", "8, 2, 5")
    page.click("text=Search by vector")
    watched.until("document.querySelectorAll('#opened .chip').length === 3")
    found = table.search([[8, 2, 5]], [embedding], probe=3)
    assert watched.hits() == [str(item) for item in found.ids[0, : found.counts[0]]]
    watched.drop(browser.png(QUERY), "query.png", "image/png")
    assert "cannot be searched by image" in text(watched, "#alert")


FOCUS = """() => {
  const found = document.activeElement, style = getComputedStyle(found);
  const seen = found.id === "file" ? getComputedStyle(found.nextElementSibling) : style;
  const box = found.getBoundingClientRect();
  return {
    name: found.id || found.textContent.trim(), tag: found.tagName,
    visible: seen.outlineStyle !== "none" && parseFloat(seen.outlineWidth) >= 2,
    inside: box.bottom > 0 && box.top < innerHeight,
  };
}"""
REACHABLE = """() => [
  ...document.querySelectorAll("a, button, input, select, textarea, [tabindex='0']")
].filter(each => each.checkVisibility() && !each.disabled).length"""


def test_keyboard_alone_is_enough(opened, table) -> None:
    watched = opened()
    page = watched.page
    reachable = page.evaluate(REACHABLE)
    names = []
    for _ in range(reachable):
        page.keyboard.press("Tab")
        focus = page.evaluate(FOCUS)
        names.append(focus["name"])
        assert focus["visible"], focus
        assert focus["inside"], focus
    assert len({*names}) >= reachable - 3  # every control once; some items share their words
    assert names[0] == "skip"
    assert {"file", "id", "top", "probe", "compare", "others"} <= {*names}

    page.evaluate("document.activeElement.blur()")
    page.reload()
    watched.settle()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    while page.evaluate("document.activeElement.closest('#sample') === null"):
        page.keyboard.press("Tab")
    item = int(page.evaluate("document.activeElement.parentElement.dataset.id"))
    page.keyboard.press("Enter")
    assert watched.hits()
    assert f"id {item}" in text(watched, "#query-about")
    assert page.evaluate("document.activeElement.id") == "results-title"
    while page.evaluate("document.activeElement.closest('#opened') === null"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#bucket:not([hidden])")
    watched.settle()
    assert page.evaluate("document.activeElement.id") == "bucket-title"
    assert text(watched, "#bucket-title") == f"Bucket {int(table[item].code[0])}"


@pytest.mark.parametrize("width", [320, 390])
@pytest.mark.parametrize("name", ["images", "vectors"])
def test_page_fits_a_phone(opened, width: int, name: str) -> None:
    item = "4" if name == "images" else "some%20folder/%C3%A4%202%3F%23.txt"
    watched = opened(name, viewport={"width": width, "height": 800})
    asked = f"#search?id={item}&recall=0.9"
    for view in ("#search", f"#search?id={item}", "#buckets?bucket=3", "#add", asked):
        watched.open(view)
        wide, window = watched.page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
        assert window == width
        assert wide <= width, view


CONTRAST = """() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const over = (ink, back) =>
    [0, 1, 2].map(place => back[place] + (ink[place] - back[place]) * (ink[3] ?? 1));
  const ground = each => {
    const own = numbers(getComputedStyle(each).backgroundColor);
    if ((own[3] ?? 1) === 1) return own;
    return over(own, each.parentElement ? ground(each.parentElement) : [255, 255, 255]);
  };
  const light = colour => colour.slice(0, 3).map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const found = [];
  for (const each of document.body.querySelectorAll("*")) {
    const own = [...each.childNodes].filter(node => node.nodeType === 3 && node.data.trim());
    const field = each.matches("input:not([type=file]):not(.unseen), select, textarea");
    if (!(own.length || field) || !each.checkVisibility() || each.disabled) continue;
    const back = ground(each), ink = over(numbers(getComputedStyle(each).color), back);
    const [low, high] = [light(back), light(ink)].sort((left, right) => left - right);
    found.push([(high + 0.05) / (low + 0.05), each.id || each.className || own[0].data]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_writing_can_be_read(opened, scheme: str) -> None:
    watched = opened(color_scheme=scheme)
    for view in (*VIEWS, "#search?id=-9"):
        watched.open(view)
        found = watched.page.evaluate(CONTRAST)
        assert len(found) > 20
        assert min(found) >= [4.5], min(found)
        ground = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
        level = sum(map(int, re.findall(r"\d+", ground)[:3])) / 3
        assert level < 50 if scheme == "dark" else level > 200
    assert watched.page.locator("#alert .problem").count() == 1  # the last view has the message


UNLABELLED = """() => [
  ...document.querySelectorAll("input, select, textarea, button, a, img, [role]")
].filter(each => each.checkVisibility())
  .filter(each => !(each.labels?.length || each.ariaLabel || each.textContent.trim() || each.alt
    || each.matches("img[alt=''], [role=alert], [role=status]")))
  .map(each => each.outerHTML)"""
REPEATED = """() => [...document.querySelectorAll("[id]")].map(each => each.id)
  .filter((id, place, all) => all.indexOf(id) !== place)"""
UNKNOWN = """() => ["for", "aria-labelledby", "aria-describedby", "list"].flatMap(name =>
  [...document.querySelectorAll(`[${name}]`)].map(each => each.getAttribute(name)))
  .filter(id => document.getElementById(id) === null)"""


def test_everything_has_a_name(opened) -> None:
    watched = opened()
    page = watched.page
    for view in VIEWS:
        watched.open(view)
        assert page.evaluate(UNLABELLED) == []
        assert page.evaluate(REPEATED) == []
        assert page.evaluate(UNKNOWN) == []
        assert page.locator("h1:visible").count() == 1
        assert page.locator("nav a[aria-current=page]").count() == 1
        for landmark in ("header", "nav", "main", "footer"):
            assert page.locator(f"{landmark}:visible").count() == 1
    assert page.evaluate("document.documentElement.lang") == "en"


def test_still_page_for_those_who_want_it(opened) -> None:
    moving = "getComputedStyle(document.getElementById('progress'), '::before').animationName"
    assert opened().page.evaluate(moving) == "pass"
    assert opened(reduced_motion="reduce").page.evaluate(moving) == "none"


def test_policy_forbids_what_the_page_does_not_need(opened, sites) -> None:
    watched = opened()
    answer = watched.page.request.get(sites["images"].url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    ran = watched.page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          return window.ran === true;
        }"""
    )
    assert ran is False
    assert any("Content Security Policy" in error for error in watched.errors)
    watched.errors.clear()  # they were wanted
