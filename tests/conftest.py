"""Fixtures of the whole suite."""

from collections.abc import Iterator

import pytest

from testproject.embedded import Server


@pytest.fixture
def private_server() -> Iterator[Server]:
    """A PostgreSQL for one test to stop, crash and restart, apart from the suite's own."""
    with Server(settings={"fsync": "off"}) as server:
        yield server
