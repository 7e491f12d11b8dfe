"""``flowhash serve``: a table behind HTTP, with a page to search it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from flowhash.cli.notes import place_of
from flowhash.cli.opening import encoder_folder
from flowhash.engines import open_any
from flowhash.errors import InputError
from flowhash.indexing import LostEncoderError, TableNotes, own_encoder
from flowhash.settings_file import read_text

VARIABLE = "FLOWHASH_API_KEY"


def serve(
    text: str, encoder: Path | None, key: str | None, key_file: Path | None,
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Find encoder and key, then serve until Ctrl-C."""
    from flowhash.serve import ServeOptions, run

    if key is None and os.environ.get(VARIABLE) == "":
        raise InputError(f"{VARIABLE} is empty; write the key into it, or unset it to have none")
    if key_file is not None:
        if key is not None:
            raise InputError("there is an --api-key and an --api-key-file; give one of them")
        key = _read_key(key_file)
    place = place_of(text)
    made_with = encoder
    if encoder is None:
        with open_any(place) as table:
            settings = TableNotes(table).settings()
        try:
            made_with = own_encoder(settings, place, None)
        except LostEncoderError as error:  # a node that only searches: by id or embedding
            print(f"flowhash: {error}; serving without it", file=sys.stderr)
    run(
        place,
        None if made_with is None else encoder_folder(made_with),
        ServeOptions(api_key=key, **options),
    )


def _read_key(path: Path) -> str:
    try:
        key = read_text(path).strip()
    except InputError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--api-key-file {path} cannot be read: {reason}") from error
    if not key:
        raise InputError(f"--api-key-file {path} is empty; write the key into it")
    return key
