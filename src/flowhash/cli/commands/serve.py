"""``flowhash serve``: a table behind HTTP, with a page to search it."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from flowhash import engines
from flowhash.cli import options
from flowhash.cli.locations import encoder_folder, place_of
from flowhash.errors import InputError
from flowhash.settings_file import read_text

LIMITS = "Limits"
VARIABLE = "FLOWHASH_API_KEY"

command = typer.Typer(add_completion=False)


@command.command(epilog="Example:  flowhash serve pets.table --open")
def serve(
    context: typer.Context,
    table: options.TablePlace,
    encoder: options.OwnEncoder = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the search page in a browser.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="No adding, no deleting.")] = False,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar=VARIABLE,
            show_envvar=True,
            help="Needed for adding and deleting. Better in the environment or a file: other "
            "users of this machine see command lines.",
        ),
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="A file that holds the key.")] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="Another name of this server, such as a proxy's; may be given again."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of a search.")] = None,
    max_body: Annotated[int, typer.Option(help="Bytes of a request.", rich_help_panel=LIMITS)] = 10
    << 20,
    max_answer: Annotated[
        int,
        typer.Option(
            help="Bytes of an answer; four times as much may wait for slow readers.",
            rich_help_panel=LIMITS,
        ),
    ] = 16 << 20,
    max_batch: Annotated[
        int, typer.Option(help="Vectors or items of a request.", rich_help_panel=LIMITS)
    ] = 256,
    max_top: Annotated[int, typer.Option(help="Hits of a query.", rich_help_panel=LIMITS)] = 1000,
    max_pixels: Annotated[
        int, typer.Option(help="Pixels of an image.", rich_help_panel=LIMITS)
    ] = 25_000_000,
    max_waiting: Annotated[
        int, typer.Option(help="Requests in work; others get 503.", rich_help_panel=LIMITS)
    ] = 1024,
    max_connections: Annotated[
        int,
        typer.Option(
            help="Open connections; a further one closes the one idle for longest.",
            rich_help_panel=LIMITS,
        ),
    ] = 2048,
    timeout: Annotated[
        float, typer.Option(help="Seconds for an answer.", rich_help_panel=LIMITS)
    ] = 10.0,
    send_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds for a client to read an answer, or it is cut off.",
            rich_help_panel=LIMITS,
        ),
    ] = 30.0,
    idle_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds for a connection to send a whole request head, or it is closed.",
            rich_help_panel=LIMITS,
        ),
    ] = 30.0,
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
    names = {field.name for field in fields(ServeOptions)}
    given = {name: value for name, value in context.params.items() if name in names}
    given["api_key"] = _api_key(api_key, api_key_file)
    given["allowed_hosts"] = tuple(allowed_host or ())
    chosen = ServeOptions(**given)
    used = _own_encoder(place) if encoder is None else encoder
    run(place, None if used is None else encoder_folder(used), chosen)


def _own_encoder(place: str | Path) -> Path | None:
    """The encoder that made a table; None where nothing says so, or it is not there any more."""
    from flowhash.indexing import LostEncoderError, TableNotes, own_encoder

    with engines.open_any(place) as table:
        settings = TableNotes(table).settings()
    try:
        return own_encoder(settings, place, None)
    except LostEncoderError as error:  # a node that only searches: by id or embedding
        print(f"flowhash: {error}; serving without it", file=sys.stderr)
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
