"""The search page: files of this package, read once; no path ever comes from a client.

Starlette's StaticFiles reads them from disk for each request, and streams what the guard of this
server counts as one answer.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flowhash.serve.errors import RequestError

FOLDER = Path(__file__).parent.parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "X-Frame-Options": "DENY"}


async def index(request: Request) -> Response:
    """The page."""
    return _page_response(INDEX, request)


async def page_file(request: Request) -> Response:
    """What belongs to the page."""
    return _page_response(request.path_params["name"], request)


ROUTES = (Route("/", index), Route("/page/{name}", page_file))


def cached(request: Request, content: bytes, media: str, headers: dict[str, str]) -> Response:
    """Content that a browser may keep, but asks about each time."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers = {**headers, "ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, media)


@functools.cache
def _files() -> dict[str, tuple[bytes, str]]:
    """All files of the page by name, with their media types."""
    return {
        path.name: (path.read_bytes(), KINDS[path.suffix])
        for path in sorted(FOLDER.iterdir())
        if path.suffix in KINDS and path.is_file()
    }


def _page_response(name: str, request: Request) -> Response:
    files = _files()
    if name not in files:
        raise RequestError(404, f"the page has no file {name[:100]!r}; expected {', '.join(files)}")
    return cached(request, *files[name], HEADERS)
