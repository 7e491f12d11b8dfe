"""Three servers that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.serve.servers import KEY, Server, make_images, make_strings, make_vectors, serving


@dataclass
class Servers:
    """What each has to offer stands with the function that makes its table."""

    vectors: Server
    strings: Server
    images: Server


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """Compile before anything is asked in this process: requests have a time limit."""
    from flowhash.serve import create_app
    from tests.serve.test_limits import small_table

    create_app(small_table()).state.service.warm_up()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    yield from three(tmp_path_factory)


@pytest.fixture(scope="module")
def own_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The same, for tests that add and delete whatever they like."""
    yield from three(tmp_path_factory)


def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("vectors", "strings", "images")}
    with serving(
        (*make_vectors(folders["vectors"]), {}),
        (make_strings(folders["strings"]), None, {"api_key": KEY}),
        (*make_images(folders["images"]), {"max_pixels": 1_000_000}),
    ) as found:
        yield Servers(*found)
