"""What is given to others: wheel and sdist hold everything, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import flowhash

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, built without the network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_wheel_holds_every_file_of_the_package(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert flowhash.__version__ in wheel.name
    held = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src"
    wanted = {
        path.relative_to(package).as_posix()
        for path in (package / "flowhash").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= held
    assert {"flowhash/serve/page/index.html", "flowhash/py.typed"} <= held
    assert all(name.startswith(("flowhash/", "flowhash-")) for name in held)


def test_the_sdist_holds_tests_and_documents(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"README.md", "LICENSE", "mkdocs.yml", "docs/index.md", "tests/conftest.py"} <= names
    assert not any(name.startswith((".venv", ".cache", ".git/")) for name in names)


def test_twine_finds_no_fault(dist: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2
