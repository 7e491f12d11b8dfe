"""``flowhash serve``: a table behind HTTP, with a page to search it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flowhash import engines
from flowhash.cli import options
from flowhash.cli.locations import encoder_folder, place_of
from flowhash.cli.output import in_words
from flowhash.errors import InputError
from flowhash.serve import SETTINGS
from flowhash.settings_file import read_text

VARIABLE = "FLOWHASH_API_KEY"
USUAL: dict[str, Any] = {name: one.default for name, one in SETTINGS.items()}

command = typer.Typer(add_completion=False)


def _setting(name: str, *names: str, **more: Any) -> Any:
    """An option of the server, as ``ServeOptions`` declares it."""
    told = SETTINGS[name].metadata
    return typer.Option(*names, help=told["help"], rich_help_panel=told["panel"], **more)


@command.command(epilog="Example:  flowhash serve pets.table --open")
def serve(
    context: typer.Context,
    table: options.TablePlace,
    encoder: options.OwnEncoder = None,
    host: Annotated[str, _setting("host")] = USUAL["host"],
    port: Annotated[int, _setting("port")] = USUAL["port"],
    open_browser: Annotated[bool, _setting("open_browser", "--open")] = False,
    read_only: Annotated[bool, _setting("read_only", "--read-only")] = False,
    api_key: Annotated[str | None, _setting("api_key", envvar=VARIABLE, show_envvar=True)] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="A file that holds the key.")] = None,
    allowed_hosts: Annotated[list[str] | None, _setting("allowed_hosts", "--allowed-host")] = None,
    threads: Annotated[int | None, _setting("threads", min=1)] = None,
    max_body: Annotated[int, _setting("max_body")] = USUAL["max_body"],
    max_answer: Annotated[int, _setting("max_answer")] = USUAL["max_answer"],
    max_batch: Annotated[int, _setting("max_batch")] = USUAL["max_batch"],
    max_top: Annotated[int, _setting("max_top")] = USUAL["max_top"],
    max_pixels: Annotated[int, _setting("max_pixels")] = USUAL["max_pixels"],
    max_waiting: Annotated[int, _setting("max_waiting")] = USUAL["max_waiting"],
    max_wait: Annotated[float, _setting("max_wait")] = USUAL["max_wait"],
    max_connections: Annotated[int, _setting("max_connections")] = USUAL["max_connections"],
    timeout: Annotated[float, _setting("timeout")] = USUAL["timeout"],
    send_timeout: Annotated[float, _setting("send_timeout")] = USUAL["send_timeout"],
    idle_timeout: Annotated[float, _setting("idle_timeout")] = USUAL["idle_timeout"],
    config: options.Config = None,
    quiet: options.Quiet = False,
) -> None:
    """Serve a table: a search page for people, an HTTP API for programs.

    Listens on this machine only, unless told otherwise. Ctrl-C stops it: running requests are
    answered first. What is damaged in the table is named in the log and in /health, and the rest is
    served.
    """
    from flowhash.serve import ServeOptions, run

    place = place_of(table)
    given = {name: value for name, value in context.params.items() if name in SETTINGS}
    given["api_key"] = _api_key(api_key, api_key_file)
    given["allowed_hosts"] = tuple(allowed_hosts or ())
    chosen = ServeOptions(**given)
    used = _own_encoder(place) if encoder is None else encoder
    run(place, None if used is None else encoder_folder(used), chosen)


def _own_encoder(place: str | Path) -> Path | None:
    """The encoder that made a table; None where nothing says so, or it is not there any more."""
    from flowhash.indexing import LostEncoderError, own_encoder

    with engines.open_any(place) as table:
        try:
            return own_encoder(table, place)
        except LostEncoderError as error:  # a node that only searches: by id or embedding
            print(f"flowhash: {in_words(error)}; serving without it", file=sys.stderr)
            return None


def _api_key(given: str | None, path: Path | None) -> str | None:
    """The key, from wherever it is."""
    if given is None and os.environ.get(VARIABLE) == "":
        raise InputError(f"{VARIABLE} is empty; write the key into it, or unset it to have none")
    if path is None:
        return given
    if given is not None:
        raise InputError("there is an --api-key and an --api-key-file; give one of them")
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
