"""Runs a page: its blocks in order, in one folder, with one set of Python names."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.documents.blocks import RUN, Block, PageError
from tests.documents.reading import read

PORT = 8000  # where `flowhash serve` listens if it is not told
GUARD = 900  # seconds after which a block is taken to hang
SERVE = re.compile(r"^(flowhash serve)(?![^\n]*--port)", re.MULTILINE)


def run_page(blocks: list[Block], folder: Path) -> dict[str, Any]:
    """Run a page in ``folder``, which must be the current one; returns the Python names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    running: list[tuple[Block, subprocess.Popen[bytes]]] = []
    ports = _free_ports(blocks)
    try:
        for block in blocks:
            if block.file is not None:
                (folder / block.file).write_text(block.text, "utf-8")
            if block.reason is not None or block.language not in RUN:
                read(block)
            elif block.language == "python":
                _run_python(block, _moved(block.text, ports), names)
            elif block.background:
                running.append((block, _start(block, _moved(block.text, ports), folder)))
            else:
                _run_shell(block, _moved(block.text, ports), folder)
    finally:
        for block, process in running:
            _stop(block, process, complain=sys.exc_info()[0] is None)
    return names


def _run_python(block: Block, text: str, names: dict[str, Any]) -> None:
    # Empty lines before it give a traceback the line numbers of the page.
    exec(compile("\n" * (block.line - 1) + text, block.page, "exec"), names)


def _run_shell(block: Block, text: str, folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=GUARD,
        check=False,
    )
    said = done.stdout.decode(errors="replace")
    if done.returncode:
        raise PageError(f"{block.place}: exit code {done.returncode} of\n{text}\n{said}")
    print(said)


def environment() -> dict[str, str]:
    """Ours, with the commands of this Python's environment first, and plain output."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "120", "TERM": "dumb"}


def _start(block: Block, text: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a block that stays, and wait until its port answers."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", f"exec {text.strip()}"],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    port = re.search(r"--port (\d+)", text)
    end = time.monotonic() + GUARD
    while port is not None and not _answers(int(port[1])):
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            said = process.communicate()[0].decode(errors="replace")
            raise PageError(f"{block.place}: the server did not start:\n{text}\n{said}")
        time.sleep(0.1)
    return process


def _stop(block: Block, process: subprocess.Popen[bytes], complain: bool) -> None:
    """End it as Ctrl-C does; it must go without complaint."""
    process.send_signal(signal.SIGINT)
    try:
        said = process.communicate(timeout=60)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.kill()
        said = process.communicate()[0].decode(errors="replace")
    if complain and (process.returncode not in (0, 130) or "Traceback" in said):
        raise PageError(f"{block.place}: ended with {process.returncode}\n{said}")


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports(blocks: list[Block]) -> dict[int, int]:
    """A free port for each that the page names, so that pages do not disturb anybody."""
    text = "".join(block.text for block in blocks if block.reason is None)
    wanted = {PORT, *(int(number) for number in re.findall(r"--port (\d+)", text))}
    found: dict[int, int] = {}
    probes = [socket.socket() for _ in wanted]
    for number, probe in zip(sorted(wanted), probes, strict=True):
        probe.bind(("127.0.0.1", 0))
        found[number] = probe.getsockname()[1]
    for probe in probes:
        probe.close()
    return found


def _moved(text: str, ports: dict[int, int]) -> str:
    """The same block with the ports of this run."""
    text = SERVE.sub(rf"\1 --port {PORT}", text)
    pattern = r"(?<=--port )(\d+)\b|(?<=127\.0\.0\.1:)(\d+)\b|(?<=localhost:)(\d+)\b"

    def port(found: re.Match[str]) -> str:
        return str(ports.get(int(found[0]), found[0]))

    return re.sub(pattern, port, text)
