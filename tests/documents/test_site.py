"""The site builds without a warning and asks no other host for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.documents.blocks import ROOT
from tests.documents.running import environment

LOADED = {  # attributes whose address a browser fetches without being asked
    "audio": ("src",), "embed": ("src",), "iframe": ("src",), "img": ("src", "srcset"),
    "image": ("href", "xlink:href"), "input": ("src",), "link": ("href",), "object": ("data",),
    "script": ("src",), "source": ("src", "srcset"), "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}  # fmt: skip
OUTSIDE = re.compile(r"^\s*(?:\w+:)?//")
STYLE = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^'\")\s]+)")


class Loads(HTMLParser):
    """Collects what a page loads, and its equations."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.equations = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.equations += tag == "math"
        for name, value in attributes:
            if name in LOADED.get(tag, ()) and value:
                self.addresses.append(value)
            elif name == "style" and value:
                self.addresses.extend(STYLE.findall(value))

    handle_startendtag = handle_starttag


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**environment(), "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return folder


def loads(page: Path) -> Loads:
    found = Loads()
    found.feed(page.read_text("utf-8"))
    return found


def test_pages_load_nothing_from_another_host(site: Path) -> None:
    pages = list(site.glob("**/*.html"))
    assert len(pages) > 25
    for page in pages:
        outside = [address for address in loads(page).addresses if OUTSIDE.match(address)]
        assert not outside, f"{page.relative_to(site)} loads {outside}"


def test_styles_load_nothing_from_another_host(site: Path) -> None:
    sheets = list(site.glob("**/*.css"))
    assert sheets
    for sheet in sheets:
        assert not STYLE.findall(sheet.read_text("utf-8")), sheet.name


def test_what_pages_load_is_there(site: Path) -> None:
    for page in site.glob("**/*.html"):
        if page.name == "404.html":  # is shown at any address, so it names its files from the root
            continue
        for address in loads(page).addresses:
            if not address.startswith("data:"):
                target = page.parent / address.split("?")[0].split("#")[0]
                assert target.exists(), f"{page.relative_to(site)} loads {address}"


def test_equations_are_mathml(site: Path) -> None:
    page = site / "how-it-works.html"
    assert loads(page).equations >= 10
    assert "arithmatex" not in page.read_text("utf-8")


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import flowhash

    text = "".join(page.read_text("utf-8") for page in site.glob("reference/*.html"))
    for name in flowhash.__all__:
        if not name.startswith("__"):
            assert re.search(rf'id="flowhash\.[\w.]*\b{name}"', text), name


def test_the_check_of_addresses_can_fail() -> None:
    found = Loads()
    found.feed(
        '<script src="https://example.org/a.js"></script><a href="https://example.org">x</a>'
    )
    found.feed('<img srcset="//example.org/b.png 2x"/><p style="background: url(//example.org/c)">')
    assert found.addresses == [
        "https://example.org/a.js", "//example.org/b.png 2x", "//example.org/c",
    ]  # fmt: skip
    assert all(OUTSIDE.match(address) for address in found.addresses)
