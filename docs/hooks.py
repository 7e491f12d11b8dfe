"""What mkdocs does beyond its plugins: equations become MathML, the changelog becomes a page."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
# What pymdownx.arithmatex leaves of $...$ and $$...$$.
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)

NUMBER = re.compile(r"\\tag\{(.+?)\}")


def on_files(files: Files, config: Any) -> Files:
    """Add CHANGELOG.md, which stands beside docs/, as the page changelog.md."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=text))
    return files


def on_page_content(content: str, **_: Any) -> str:
    """Turn LaTeX into MathML, which browsers show without a script."""
    return EQUATION.sub(_as_mathml, content)


def _as_mathml(found: re.Match[str]) -> str:
    tag, opening, formula = found.groups()
    formula = html.unescape(formula)
    if opening == "(":
        return f'<{tag} class="equation">{convert(formula)}</{tag}>'
    number = NUMBER.search(formula)
    shown = f'<span class="equation-number">({number[1]})</span>' if number else ""
    made = convert(NUMBER.sub("", formula), display="block")
    return f'<{tag} class="equation">{made}{shown}</{tag}>'
