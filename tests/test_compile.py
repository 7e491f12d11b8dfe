"""What is said while kernels are compiled, and that nothing is said where the cache has them."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import event

from flowhash.cli.output import without_notices
from flowhash.compile import Notice

WORDS = "compiles some of its kernels, each once, at its first use: all of them take 10 to 20 s"
SOURCE = """
from flowhash.compile import kernel
@kernel
def twice(number):
    return 2 * number
"""
CALLING = """
from typing import NamedTuple
import numpy as np
from flowhash.compile import empty, inner_kernel, kernel
class Pair(NamedTuple):
    one: np.ndarray
    two: int
@inner_kernel
def doubled(number, times):
    return 2 * number * times
@kernel
def paired(number):
    numbers = empty(3, np.int64)
    numbers[:] = doubled(number, 1)
    return Pair(numbers, doubled(number, 2))
@kernel
def summed(numbers):
    return doubled(numbers[0], 3) + paired(1).two + doubled(len(numbers), 4)
"""
# A small kernel of ours, which a search calls too.
SMALL = (
    "import numpy; from flowhash.argument_checks import finite; finite(numpy.zeros((2, 3)), 'x')"
)


@pytest.fixture
def notice(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notice]:
    """The listener as in a new process, beside the one of this process."""
    monkeypatch.delenv("FLOWHASH_QUIET")
    for known in event._registered["numba:compile"]:
        if isinstance(known, Notice):
            monkeypatch.setattr(known, "said", True)
    with event.install_listener("numba:compile", Notice()) as new:
        yield new


def module_of(path: Path, name: str = "flowhash.sample") -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_says_once_that_it_compiles_and_nothing_where_the_cache_has_it(
    tmp_path: Path, notice: Notice, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "sample.py"
    path.write_text(SOURCE)
    module = module_of(path)
    assert module.twice(1) == 2
    assert [record.levelname for record in caplog.records if WORDS in record.message] == ["WARNING"]
    module.twice(1.0)  # other types are compiled anew, which is not worth a second line
    assert len(caplog.records) == 1
    notice.said = False
    assert module_of(path).twice(1) == 2
    assert len(caplog.records) == 1
    assert not notice.said
    assert module.twice(1j) == 2j
    assert len(caplog.records) == 2


def test_what_was_compiled_for_types_of_a_module_that_is_gone_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    kernels, types = tmp_path / "sample.py", tmp_path / "types.py"
    kernels.write_text(
        "from flowhash.compile import kernel\n@kernel\ndef first(pair):\n    return pair.one\n"
    )
    types.write_text(
        "from typing import NamedTuple\nclass Pair(NamedTuple):\n    one: int\n    two: int\n"
    )
    for name in ("old_pairs", "new_pairs"):  # what an upgrade renamed
        with monkeypatch.context() as patch:
            pairs = module_of(types, name)
            patch.setitem(sys.modules, name, pairs)
            assert module_of(kernels).first(pairs.Pair(1, 2)) == 1


class Compiled(event.Listener):
    """The names of kernels as they are compiled."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, compiling: Any) -> None:
        self.names.append(compiling.data["dispatcher"].py_func.__name__)

    def on_end(self, compiling: Any) -> None:
        pass


def test_a_kernel_is_compiled_once_for_all_that_call_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is called with: literals, lengths, whole numbers of any size."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "sample.py"
    path.write_text(CALLING)
    module = module_of(path)
    with event.install_listener("numba:compile", Compiled()) as compiled:
        assert module.summed(np.arange(5, 8, dtype=np.int32)) == 30 + 4 + 24
        assert compiled.names.count("doubled") == 1
        assert module.paired(4).one.tolist() == [8, 8, 8]
        assert module.doubled(4, 5) == 40
    # Of each what Python calls, and the part that others have in them.
    names = [name for name in compiled.names if name in ("summed", "paired", "doubled")]
    assert sorted(names) == ["doubled"] * 2 + ["paired"] * 2 + ["summed"] * 2


def test_what_the_cache_has_of_kernels_that_call_each_other_is_whole(tmp_path: Path) -> None:
    """A kernel's constants are not those of it as a part of another, which comes first here."""
    path = tmp_path / "sample.py"
    path.write_text(CALLING)
    code = (
        "import importlib.util, sys, numpy; from numba.core import event\n"
        f"spec = importlib.util.spec_from_file_location('flowhash.sample', {str(path)!r})\n"
        "module = sys.modules['flowhash.sample'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "with event.install_recorder('numba:compile') as compiled:\n"
        "    print(module.summed(numpy.ones(2, numpy.int32)), module.paired(4).one)\n"
        "print(len(compiled.buffer) > 0)\n"
    )
    for compiles in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "FLOWHASH_QUIET": "1"},
        )  # fmt: skip
        assert done.stdout.splitlines() == ["26 [8 8 8]", str(compiles)]


SEARCHING = """
import sys
import numba, numpy as np
numba.version_info = numba.version_info._replace(short=(0, 999))  # nobody has tried it
from flowhash.table import HashTable
rng = np.random.default_rng(0)
items, asked = np.split(rng.standard_normal((303, 100), np.float32), [300])
codes = rng.permuted(np.tile(np.arange(4, dtype=np.int32), (300, 1)), axis=1)[:, :2]
table = HashTable.create(buckets=4, dim=100, active=2)
table.add(codes, items)
order = np.tile(np.arange(4, dtype=np.int32), (3, 1))
found = table.search(order, asked, 5, probe=4)
truth = np.argsort(((asked[:, None].astype(float) - items) ** 2).sum(2), axis=1)[:, :5]
print((found.ids == truth).all(), "flowhash.kernel_parts" in sys.modules)
"""


@pytest.mark.long
def test_a_numba_that_nobody_has_tried_compiles_as_it_always_does(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SEARCHING], capture_output=True, text=True, check=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "FLOWHASH_QUIET": "1"},
    )  # fmt: skip
    assert done.stdout.split() == ["True", "False"]


def test_kernels_stay_python_where_numba_is_switched_off() -> None:
    """As those want it who step through a program or count its lines: all can be imported."""
    code = (
        "import flowhash.table.hash_table; from flowhash.codes import balanced_kmeans\n"
        "from flowhash.top_values import group_count; print(group_count(9))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )  # fmt: skip
    assert done.stdout == "2\n"


def test_says_nothing_of_kernels_of_others(
    tmp_path: Path, notice: Notice, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "sample.py"
    path.write_text("import numba\ntwice = numba.njit(lambda number: 2 * number)\n")
    assert module_of(path, "flowhasher").twice(1) == 2
    assert not caplog.records
    assert module_of(path).twice(1) == 2
    assert len(caplog.records) == 1


@pytest.mark.parametrize("way", ["variable", "quiet", "logging"])
def test_can_be_silenced(
    tmp_path: Path, notice: Notice, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, way: str,
) -> None:  # fmt: skip
    log = logging.getLogger("flowhash.compile")
    path = tmp_path / "sample.py"
    path.write_text("import numba\ntwice = numba.njit(lambda number: 2 * number)\n")
    with contextlib.ExitStack() as stack:
        if way == "variable":
            monkeypatch.setenv("FLOWHASH_QUIET", "1")
        elif way == "quiet":
            stack.enter_context(without_notices())
        else:
            stack.callback(log.setLevel, log.level)
            log.setLevel("ERROR")
        assert module_of(path).twice(1) == 2
        assert not caplog.records
    assert log.level == logging.NOTSET


@pytest.mark.slow
def test_a_fresh_process_says_it_on_the_error_stream(tmp_path: Path) -> None:
    said = []
    for _ in range(2):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        environment.pop("FLOWHASH_QUIET", None)
        done = subprocess.run(
            [sys.executable, "-c", SMALL], env=environment, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert done.stdout == ""
        said.append(done.stderr)
    cold, warm = said
    assert WORDS in cold
    assert cold.count("\n") == 1
    assert warm == ""
