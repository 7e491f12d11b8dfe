"""The search page: files of this package, read once; no path ever comes from a client."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from flowhash.serve.errors import ProblemError
from flowhash.serve.request_guard import PAGE_POLICY

FOLDER = Path(__file__).parent.parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"


@dataclass(frozen=True)
class PageFile:
    """A file of the page."""

    content: bytes
    media: str


def page_files() -> dict[str, PageFile]:
    """All files of the page by name."""
    return {
        path.name: PageFile(path.read_bytes(), KINDS[path.suffix])
        for path in sorted(FOLDER.iterdir())
        if path.suffix in KINDS and path.is_file()
    }


def page_response(files: dict[str, PageFile], name: str, request: Request) -> Response:
    """A file of the page.

    Raises:
        ProblemError: 404 for other names.
    """
    file = files.get(name)
    if file is None:
        raise ProblemError(404, f"the page has no file {name[:100]!r}; expected {', '.join(files)}")
    headers = {"Content-Security-Policy": PAGE_POLICY, "X-Frame-Options": "DENY"}
    return cached(request, file.content, file.media, headers)


def cached(request: Request, content: bytes, media: str, headers: dict[str, str]) -> Response:
    """Content that a browser may keep, but asks about each time."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers = {**headers, "ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, media)
