"""``flowhash bulk …``: encode, index, search and join in parts, here or on a Ray cluster."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flowhash.cli.config import save_settings
from flowhash.cli.opening import encoder_folder, in_our_words, located
from flowhash.cli.reply import Reply, count
from flowhash.data import NAMED
from flowhash.errors import InputError
from flowhash.extras import require
from flowhash.indexing import SETTINGS
from flowhash.settings_file import read_settings, write_section
from flowhash.table import HashTable

if TYPE_CHECKING:
    from flowhash.bulk import Choices, Runner, Source, TableChoices, Work

ENCODED = "_encode.toml"  # beside the encoded files; it names encoder and items


@dataclass(frozen=True)
class Running:
    """Where a command runs, and how it begins.

    Attributes:
        ray: the address of a cluster; None for this process.
        workers: how many; None for what the cluster has.
        restart: drop what is there.
        rows: of a part.
    """

    ray: str | None
    workers: int | None
    restart: bool
    rows: int | None

    def device(self, asked: str) -> str:
        """Where items are encoded: on a cluster, on a GPU only if it is asked for.

        Workers that ask for no GPU may share a node's with others.
        """
        return "cpu" if asked == "auto" and self.ray is not None else asked

    @contextlib.contextmanager
    def runner(self, device: str = "cpu") -> Iterator[Runner]:
        """Who does the parts; a worker takes a GPU where it encodes on cuda."""
        from flowhash.bulk import LocalRunner, RayRunner

        require("pyarrow", "parquet" if self.ray is None else "ray")
        if self.ray is None:
            if self.workers is not None:
                raise InputError("--workers is for a cluster; give --ray, too, or leave it out")
            yield LocalRunner()
            return
        with RayRunner(self.ray, self.workers, 1 if device == "cuda" else 0) as runner:
            yield runner


def source_of(items: str, split: str, opening: dict[str, Any]) -> Source:
    """Items as every worker finds them, wherever it runs."""
    from flowhash.bulk import Source

    place = items if items in NAMED else str(Path(items).expanduser().absolute())
    options = tuple(
        (name, str(value.expanduser().absolute()) if isinstance(value, Path) else value)
        for name, value in sorted(opening.items())
    )
    return Source(place, split, options)


def encode(
    context: typer.Context, run: Path, source: Source, out: Path, choices: Choices,
    running: Running, reply: Reply,
) -> None:  # fmt: skip
    """Encode, and say what comes next."""
    from flowhash.bulk import encode

    folder = encoder_folder(run)
    choices = replace(choices, device=running.device(choices.device))
    with _working(out, reply) as told, running.runner(choices.device) as runner, _in_our_words():
        work = encode(
            folder, source, out, runner, choices, rows=running.rows, restart=running.restart,
            show=not reply.quiet,
        )  # fmt: skip
    save_settings(context, out / ENCODED, encoder=folder, items=located(source.source))
    told(work, "item", f"next: flowhash bulk index {shlex.quote(str(out))} --out TABLE")


def index(
    encoded: Path, out: Path, choices: TableChoices, compact: bool, running: Running, reply: Reply
) -> None:
    """Build segments, take them over, say what comes next."""
    from flowhash.bulk import index

    with _working(out, reply) as told, running.runner() as runner:
        items, work = index(
            encoded, out, runner, choices, rows=running.rows, compact=compact,
            restart=running.restart, show=not reply.quiet,
        )  # fmt: skip
    place = shlex.quote(str(out))
    known = read_settings(encoded / ENCODED, "bulk", "encode") if encoded.is_dir() else {}
    if "encoder" in known and not (out / SETTINGS).exists():  # search and serve look there
        section = {"encoder": known["encoder"], "items": known["items"], "out": out.resolve()}
        write_section(out / SETTINGS, ["index"], section)
    told(
        work, "item", f"the table has {count(items, 'item')}",
        f"next: flowhash bulk search {place} QUERIES --out ANSWERS   or   flowhash serve {place}",
        items=items,
    )  # fmt: skip


def search(
    table: Path, queries: str, out: Path, top: int, probe: int | None, encoder: Path | None,
    device: str, split: str, opening: dict[str, Any], running: Running, reply: Reply,
) -> None:  # fmt: skip
    """Search, after encoding the queries if an encoder is given."""
    from flowhash.bulk import ENCODED as FOLDER, Choices, encode, search

    place = Path(queries).expanduser()
    device = running.device(device) if encoder is not None else "cpu"
    with _working(out, reply) as told, running.runner(device) as runner:
        if encoder is not None:
            place = out / FOLDER
            with HashTable.open(table) as opened:
                wanted = Choices(probe=probe or opened.active, pictures=False, device=device)
            with _in_our_words():
                encode(
                    encoder_folder(encoder), source_of(queries, split, opening), place, runner,
                    wanted, restart=running.restart, show=not reply.quiet,
                )  # fmt: skip
        elif opening:
            raise InputError(
                "options that say how items are opened need --encoder, which makes queries of them"
            )
        work = search(
            table, place, out, runner, top=top, probe=probe, rows=running.rows,
            restart=running.restart, show=not reply.quiet,
        )  # fmt: skip
    told(work, "query")


def neighbours(table: Path, out: Path, top: int, running: Running, reply: Reply) -> None:
    """Join the table with itself."""
    with _working(out, reply) as told, running.runner() as runner:
        from flowhash.bulk import neighbours

        work = neighbours(
            table, out, runner, top=top, rows=running.rows, restart=running.restart,
            show=not reply.quiet,
        )  # fmt: skip
    told(work, "item")


@contextlib.contextmanager
def _working(out: Path, reply: Reply) -> Iterator[Any]:
    """Say how far it is if Ctrl-C stops it; yields what tells the result."""
    from flowhash.bulk import Interrupted

    began = time.monotonic()

    def tell(work: Work, word: str, *lines: str, **facts: Any) -> None:
        seconds = time.monotonic() - began
        now, rows = work.plan.rows - work.before, work.plan.rows
        facts = {
            "out": out, "rows": rows, "done_now": now, "parts": len(work.plan.sizes), **facts,
            "seconds": seconds,
        }  # fmt: skip
        words = "queries" if word == "query" and rows != 1 else count(rows, word).partition(" ")[2]
        what = f"{out}: {rows:,} {words} in {count(len(work.plan.sizes), 'part')}"
        if not now:
            what += ", all of which were there before"
        else:
            what += f", {now:,} of them now, in {seconds:.1f} s"
        reply.result(facts, what, *lines)

    try:
        yield tell
    except Interrupted as stopped:
        print(f"flowhash: stopped; {stopped}, the same command goes on in {out}", file=sys.stderr)
        sys.exit(130)


@contextlib.contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(in_our_words(str(error))) from error
