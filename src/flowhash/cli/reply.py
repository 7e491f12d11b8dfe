"""What a command says: progress for people, its result for people or for scripts."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowhash.errors import Advice, Argument
from flowhash.progress_bars import silence

# What the library calls by its own names has other names here.
ADVICE = {
    Advice.CREATE: "`flowhash index --out` makes one",
    Advice.NEW_FOLDER: "give a new or empty folder",
    Advice.ONE_WRITER: "Close that one first, or serve with --read-only",
}


@dataclass(frozen=True)
class Reply:
    """How a command answers.

    Attributes:
        quiet: only the result, no progress.
        as_json: the result as one JSON object on the standard output; progress, if any, goes to
            the error stream.
    """

    quiet: bool = False
    as_json: bool = False

    def __post_init__(self) -> None:
        if self.quiet:
            silence()

    def say(self, words: str) -> None:
        """A line about what happens now."""
        if not self.quiet:
            print(words, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def show(self, renderable: Any) -> None:
        """A part of the result that rich draws, for people."""
        if not self.as_json:
            from rich.console import Console

            Console(highlight=False).print(renderable)

    def result(self, facts: Mapping[str, Any], *lines: str) -> None:
        """The result: facts for scripts, or lines for people."""
        if self.as_json:
            print(json.dumps(plain(facts), indent=1, ensure_ascii=False))
        else:
            for line in lines:
                print(line, flush=True)


def in_words(error: Exception) -> str:
    """What an error says, with options instead of the library's arguments."""
    remedy = getattr(error, "remedy", None)
    words = str(getattr(error, "words", error))
    if isinstance(remedy, Advice):
        return f"{words} {ADVICE[remedy]}"
    if isinstance(remedy, Argument):
        value = f" {remedy.name.upper()}" if remedy.value == "..." else ""
        return f"{words} --{remedy.name.replace('_', '-')}{value}"
    return words


def plain(value: Any) -> Any:
    """A value as JSON has it: no NaN and no infinity, text for paths and other things."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):  # an array or a number of numpy
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def count(number: int, word: str) -> str:
    """A number of things: "1 item", "2,000 items"."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def size(number: float) -> str:
    """A number of bytes: "1.5 MiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} GiB"
