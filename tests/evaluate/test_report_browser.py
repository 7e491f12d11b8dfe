from __future__ import annotations

import base64
import re
import shutil
import subprocess

import pytest

from flowhash.evaluate.output.report_page import render_report
from tests.evaluate import report_pages as pages


@pytest.fixture(scope="module")
def text() -> str:
    return render_report(pages.full_report(seeds=2))


PROBE = """<!DOCTYPE html><title>-</title>
<iframe id="frame" style="width:%dpx;height:900px;border:0"></iframe><script>
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement;
  page.querySelectorAll("details").forEach(each => each.open = true);
  const small = [...page.querySelectorAll("svg")].map(each =>
    10 * each.clientWidth / each.viewBox.baseVal.width);
  document.title = [root.clientWidth, root.scrollWidth, Math.min(...small)].join(" ");
};
frame.srcdoc = new TextDecoder().decode(Uint8Array.from(atob("%s"), c => c.charCodeAt(0)));
</script>"""


def look(text: str, width: int, folder) -> tuple[float, float, float]:
    """Width of the window, width of the page in it, and the smallest writing in a chart."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on the PATH")
    probe = folder / "probe.html"
    probe.write_text(PROBE % (width, base64.b64encode(text.encode()).decode()))
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--hide-scrollbars", "--virtual-time-budget=20000", "--window-size=1400,1000",
         f"--user-data-dir={folder / 'profile'}", "--dump-dom", probe.as_uri()],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = re.search(r"<title>([\d.]+) ([\d.]+) ([\d.]+)</title>", done.stdout)
    assert found is not None, done.stderr[-2000:]
    window, wide, small = map(float, found.groups())
    return window, wide, small


@pytest.mark.parametrize("width", [390, 1280])
def test_page_fits_its_window(tmp_path, text: str, width: int) -> None:
    window, wide, small = look(text, width, tmp_path)
    assert window == width
    assert wide <= width
    assert small >= 10


def test_probe_notices_what_does_not_fit(tmp_path, text: str) -> None:
    broken = text.replace("<footer>", '<div style="width:600px">x</div><footer>')
    assert look(broken, 390, tmp_path)[1] >= 600
