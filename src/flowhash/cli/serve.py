"""``flowhash serve``: a table behind HTTP, with a page to search it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowhash.cli.opening import encoder_folder
from flowhash.cli.search import own_encoder
from flowhash.errors import InputError
from flowhash.extras import require


def serve(
    table: Path, encoder: Path | None, key: str | None, key_file: Path | None,
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Find encoder and key, then serve until Ctrl-C."""
    for module in ("fastapi", "uvicorn", "prometheus_client", "orjson"):
        require(module, "serve")
    from flowhash.serve import ServeOptions, run

    if key_file is not None:
        if key is not None:
            raise InputError("there is an --api-key and an --api-key-file; give one of them")
        key = _read_key(key_file)
    place = own_encoder(table, encoder)
    run(
        table,
        None if place is None else encoder_folder(place),
        ServeOptions(api_key=key, **options),
    )


def _read_key(path: Path) -> str:
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--api-key-file {path} cannot be read: {reason}") from error
    if not key:
        raise InputError(f"--api-key-file {path} is empty; write the key into it")
    return key
