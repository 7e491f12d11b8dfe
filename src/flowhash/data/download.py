"""Downloads that can be interrupted: to a ``.part`` file, checked, then renamed in one step."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

from flowhash.durable_files import NOT_THROUGH_LINKS, NOT_WAITING
from flowhash.errors import DamagedFileError, StorageError
from flowhash.progress_bars import bytes_bar

CHUNK = 1 << 18
PATIENCE = 60  # seconds without a byte


def download(address: str, target: Path, md5: str) -> None:
    """Fetch ``address`` to ``target``; what a broken download left is taken up again.

    Args:
        address: where it is.
        target: where it goes; its folder is made.
        md5: checksum of the whole file, in hexadecimal.

    Raises:
        StorageError: the connection or the disk failed; calling again goes on where it broke off.
        DamagedFileError: what came has another checksum; it was deleted.
    """
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch(address, part)
    except (OSError, http.client.HTTPException) as error:
        raise StorageError(
            f"{address} could not be downloaded to {part}: {error}. Try again, which goes on where "
            f"it broke off, or fetch the file by other means and put it to {target}"
        ) from error
    found = _checksum(part)
    if found != md5:
        part.unlink()
        raise DamagedFileError(
            f"{address} came with the checksum (md5) {found}; expected {md5}. It was deleted from "
            f"{part}; try again, or fetch the file by other means and put it to {target}"
        )
    part.replace(target)


def _fetch(address: str, part: Path) -> None:
    """Append to ``part`` what it lacks."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        error.close()
        # The part is as long as the file, or longer: whole but not renamed, or of another file.
        # Its checksum tells, and a wrong one deletes it.
        return
    with response:
        # A server that knows no ranges sends all of it again.
        resumed = response.status == http.client.PARTIAL_CONTENT
        start = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        name = part.name.removesuffix(".part")
        with _opened(part, resumed) as file, bytes_bar(name, start, total) as advance:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                advance(len(chunk))
    size = part.stat().st_size
    if total is not None and size < total:
        raise StorageError(f"the connection ended after {size} of {total} bytes")


def _opened(part: Path, resumed: bool) -> IO[bytes]:
    """Open a part to write to its end, or anew; its name can be foreseen, so never a link."""
    flags = os.O_WRONLY | os.O_CREAT | NOT_THROUGH_LINKS | NOT_WAITING
    handle = os.open(part, flags | (os.O_APPEND if resumed else os.O_TRUNC), 0o666)
    return os.fdopen(handle, "ab" if resumed else "wb")


def _checksum(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
