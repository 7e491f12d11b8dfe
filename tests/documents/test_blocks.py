"""The runner of the documents notices what is wrong with a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.blocks import Block, PageError, blocks_of
from tests.documents.reading import commands, parse_flowhash, read
from tests.documents.running import run_page


def story(*lines: str) -> list[Block]:
    return blocks_of("page.md", "\n".join(lines))


def test_blocks_come_in_order_with_their_lines_and_marks() -> None:
    found = story(
        "# Title",
        "<!-- run-first python",
        "hidden = 1",
        "-->",
        "```python",
        "shown = 2",
        "```",
        "<!-- not run: it takes hours -->",
        "",
        "```sh",
        "make bench",
        "```",
        "    ```sh",
        "    echo inside",
        "    ```",
        "<!-- background -->",
        "```sh",
        "flowhash serve x.table",
        "```",
    )
    assert [(block.line, block.language) for block in found] == [
        (3, "python"), (6, "python"), (11, "sh"), (14, "sh"), (18, "sh"),
    ]  # fmt: skip
    assert [block.reason for block in found] == [None, None, "it takes hours", None, None]
    assert [block.background for block in found] == [False] * 4 + [True]
    assert found[3].text == "echo inside\n"


@pytest.mark.parametrize(
    "lines",
    [
        ["```", "what is this", "```"],
        ["```ruby", "puts 1", "```"],
        ["```python", "never_ends = 1"],
        ["<!-- not run: why -->", "words", "```python", "```"],
        ["```python", "```", "<!-- background -->"],
        ["<!-- not-run: why -->", "```python", "```"],
        ["<!-- run-first python", "a = 1"],
    ],
)
def test_a_page_that_breaks_the_rules_is_refused(lines: list[str]) -> None:
    with pytest.raises(PageError, match=r"page\.md:\d"):
        story(*lines)


def block(language: str, text: str, reason: str | None = "here") -> Block:
    return Block("page.md", 1, language, text, reason)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "def broken(:"),
        ("python", "from flowhash import NoSuchName"),
        ("python", "from flowhash.nowhere import anything"),
        ("python", "import flowhash\nflowhash.no_such_function(1)"),
        ("python", "import flowhash\nflowhash.HashTable.no_such_method()"),
        ("python", "import flowhash\nflowhash.topk_codes(1, aktive=2)"),
        ("python", "from flowhash import HashTable\nHashTable.create(bucket=2)"),
        ("sh", "flowhash nonsense"),
        ("sh", "flowhash table stats x.table --jsn"),
        ("sh", "A=1 flowhash table stats --jsn x.table"),
        ("sh", "true && flowhash table nonsense x"),
        ("sh", "flowhash fit photos/ \\\n  --bukets 256 --out run"),
        ("sh", "flowhash fit digits --buckets many --out run"),
        ("sh", "torchrun -m flowhash.cli fit cifar100 --floder data --out run"),
        ("sh", "make nothing-of-the-kind"),
        ("sh", "pip install '.[nothing]'"),
        ("sh", "pip install 'flowhash[learn,nothing]'"),
        ("sh", "python -m pip install '.[nothing]'"),
        ("sh", "python benchmarks/nothing.py"),
        ("sh", "python -m benchmarks.search.nothing --rows 3"),
        ("json", "{'no': 'json'}"),
        ("toml", "buckets ="),
        ("ini", "no section"),
        ("yaml", "a: [1"),
        ("nginx", "server {\n  listen 80\n}"),
        ("nginx", "server {\n  listen 80;"),
        ("nginx", "}\nserver {"),
    ],
)
def test_what_is_not_run_is_still_read(language: str, text: str) -> None:
    with pytest.raises(PageError, match=r"page\.md:1"):
        read(block(language, text))


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "import torch_of_tomorrow\nfrom flowhash import HashTable\nHashTable.create()"),
        ("python", "import flowhash.learn as learning\nlearning.preset('cpu-digits', seed=1)"),
        ("sh", "flowhash table stats x.table --json > stats.json  # kept"),
        ("sh", "flowhash fit photos/ \\\n  --buckets 256 --out run"),
        ("sh", "flowhash fit --help"),
        ("sh", "CUDA_VISIBLE_DEVICES=0 make test PYTHON=python3.12 2>&1 | tail"),
        ("sh", "python -m benchmarks.search.run --rows 3"),
        ("sh", "python -m pip install '.[learn,serve]' && curl http://example.org"),
        ("ini", "[Service]\nEnvironment=A=1\nEnvironment=B=2\nExecStart=x %i"),
        ("nginx", "server {\n  listen 80;  # as always\n}"),
        ("text", "anything: (at all"),
    ],
)
def test_what_is_right_is_read_in_silence(language: str, text: str) -> None:
    read(block(language, text))


def test_words_of_commands() -> None:
    text = "a 'b c' | d > file.txt && e \\\n f < in 2>&1 &\n# nothing\ng"
    assert [words for words in commands(text) if words] == [
        ["a", "b c"], ["d"], ["e", "f"], ["g"],
    ]  # fmt: skip


def test_the_real_parser_reads_the_options() -> None:
    found = parse_flowhash(["table", "stats", "nowhere.table", "--json"])
    assert found["table"] == "nowhere.table"


def test_a_page_is_one_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page(
        story(
            "```python", "from pathlib import Path", "value = 6", "```",
            "```sh", "echo 7 > seven.txt", "```",
            "```python", "value *= int(Path('seven.txt').read_text())", "```",
            "<!-- not run: it would fail -->", "```sh", "exit 3", "```",
            "<!-- file: a.json -->", "```json", '{"a": 1}', "```",
            "```python", "kept = Path('a.json').read_text()", "```",
        ),
        tmp_path,
    )  # fmt: skip
    assert names["value"] == 42
    assert names["kept"] == '{"a": 1}\n'


def test_a_failure_names_page_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PageError, match=r"page\.md:4: exit code 3"):
        run_page(story("words", "", "```sh", "echo before | cat; exit 3", "```"), tmp_path)
    with pytest.raises(ZeroDivisionError) as raised:
        run_page(story("words", "", "```python", "fine = 1", "1 / 0", "```"), tmp_path)
    last = raised.traceback[-1]
    assert (str(last.path).endswith("page.md"), last.lineno + 1) == (True, 5)


def test_a_server_stays_while_the_page_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answer.txt").write_text("here")
    (tmp_path / "http_server.py").write_text(
        "import http.server, sys\n"
        "server = http.server.HTTPServer(('127.0.0.1', int(sys.argv[2])),"
        " http.server.SimpleHTTPRequestHandler)\n"
        "try:\n    server.serve_forever()\nexcept KeyboardInterrupt:\n    pass\n"
    )
    names = run_page(
        story(
            "<!-- background -->", "```sh", "python http_server.py --port 8765", "```",
            "```sh", "curl -s http://127.0.0.1:8765/answer.txt > got.txt", "```",
            "```python", "got = open('got.txt').read()", "```",
        ),
        tmp_path,
    )  # fmt: skip
    assert names["got"] == "here"


def test_a_server_that_does_not_start_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = story("<!-- background -->", "```sh", "python nothing.py --port 8765", "```")
    with pytest.raises(PageError, match="did not start"):
        run_page(page, tmp_path)
