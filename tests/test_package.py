"""What the package promises as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

import flowhash
from flowhash.errors import MissingExtraError
from flowhash.extras import require
from flowhash.threads import in_shards


def test_every_public_name_loads() -> None:
    for name in flowhash.__all__:
        assert getattr(flowhash, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        flowhash.nothing  # noqa: B018


def test_codes_do_not_import_torch() -> None:
    code = "import flowhash.codes, sys; print('torch' in sys.modules, 'ortools' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def test_a_missing_extra_is_named() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'flowhash\[learn\]'"):
        require("a_package_that_nobody_has", "learn")


def test_a_fault_inside_an_extra_is_not_hidden(tmp_path: object, monkeypatch: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "broken_package.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(str(folder))  # type: ignore[attr-defined]
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has") as caught:
        require("broken_package", "learn")
    assert not isinstance(caught.value, MissingExtraError)


@pytest.mark.parametrize("rows", [0, 1, 1023, 1024, 5000, 12345])
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_shards_cover_every_row_once(rows: int, threads: int) -> None:
    shards = in_shards(lambda start, stop: range(start, stop), rows, threads)
    assert [row for shard in shards for row in shard] == list(range(rows))
    assert len(shards) <= threads


def test_a_fault_in_a_thread_reaches_the_caller() -> None:
    def fail(start: int, stop: int) -> None:
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        in_shards(fail, 9999, 3)
