"""The blocks of code in a page, in the order in which a reader meets them.

A page is a story: its ``python`` blocks share one set of names, its ``sh`` blocks one folder. Four
comments, which readers do not see, say more:

    <!-- not run: REASON -->    before a block that cannot run here; it is read all the same
    <!-- background -->         before a block whose command stays, such as a server
    <!-- file: NAME -->         before a block that the reader keeps in a file
    <!-- run-first python       code that readers need not see, up to the line with -->
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent

RUN = ("python", "sh")
READ = ("toml", "json", "ini", "yaml", "nginx")
PROSE = ("text",)
LANGUAGES = (*RUN, *READ, *PROSE)

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+|~~~+) *(?P<language>[^\s`{]*)(?P<more>[^`]*)$")
NOT_RUN = re.compile(r"^ *<!-- not run: (?P<reason>.+?) -->$")
BACKGROUND = re.compile(r"^ *<!-- background -->$")
FILE = re.compile(r"^ *<!-- file: (?P<name>[\w.-]+) -->$")
FIRST = re.compile(r"^ *<!-- run-first (?P<language>\w+)$")
MARK_LIKE = re.compile(r"^ *<!-- *(not.run|background|file|run.first)", re.IGNORECASE)


class PageError(AssertionError):
    """A page breaks a rule of the documents; the message names page and line."""


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        page: the file, from the root of the repository.
        line: of its first line of code, from 1.
        language: one of ``LANGUAGES``.
        text: the code, without the indentation of the block.
        reason: why it is not run, or None.
        background: whether it goes on running while the page goes on.
        file: where the reader keeps it, or None.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str | None = None
    background: bool = False
    file: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """All documents, from the root of the repository."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def blocks_of(page: str, text: str | None = None) -> list[Block]:
    """The blocks of a page; ``text`` stands for the file's content if it is given."""
    lines = ((ROOT / page).read_text("utf-8") if text is None else text).splitlines()
    blocks: list[Block] = []
    marks: dict[str, Any] = {}
    marked = number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if found := NOT_RUN.match(line):
            marks["reason"], marked = found["reason"], number
        elif BACKGROUND.match(line):
            marks["background"], marked = True, number
        elif found := FILE.match(line):
            marks["file"], marked = found["name"], number
        elif found := FIRST.match(line):
            end = _end(lines, number, re.compile(r"^ *-->$"), f"{page}:{number}")
            blocks.append(_block(page, number, found["language"], lines[number:end]))
            number = end + 1
        elif MARK_LIKE.match(line):
            raise PageError(f"{page}:{number}: a mark that is not understood: {line.strip()}")
        elif found := FENCE.match(line):
            closing = re.compile(rf"^ *{re.escape(found['ticks'])} *$")
            end = _end(lines, number, closing, f"{page}:{number}")
            blocks.append(_block(page, number, found["language"], lines[number:end], **marks))
            number = end + 1
            marks, marked = {}, 0
        elif marked and line.strip():
            raise PageError(f"{page}:{marked}: a mark with no block after it")
    if marked:
        raise PageError(f"{page}:{marked}: a mark with no block after it")
    return blocks


def _end(lines: list[str], start: int, closing: re.Pattern[str], place: str) -> int:
    for number in range(start, len(lines)):
        if closing.match(lines[number]):
            return number
    raise PageError(f"{place}: the block does not end")


def _block(page: str, number: int, language: str, lines: list[str], **marks: Any) -> Block:
    if language not in LANGUAGES:
        raise PageError(
            f"{page}:{number}: a block of {language or 'no language'}; expected one of "
            f"{', '.join(LANGUAGES)}. What is no code is text"
        )
    text = textwrap.dedent("\n".join(lines)) + "\n"
    return Block(page, number + 1, language, text, **marks)
