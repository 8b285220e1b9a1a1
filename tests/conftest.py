"""Fixtures of the whole suite."""

from collections.abc import Iterator

import pytest

from testproject.embedded import Server

# Modules whose tests share a database, a worker or a run of something long.
TOGETHER = ("processes", "browser", "test_benchmarks")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one process run all tests of a module that has something in common."""
    for item in items:
        if any(name in item.nodeid for name in TOGETHER):
            module = item.nodeid.partition("::")[0]
            item.add_marker(pytest.mark.xdist_group(name=module))


@pytest.fixture
def private_server() -> Iterator[Server]:
    """A PostgreSQL for one test to stop, crash and restart, apart from the suite's own."""
    with Server(settings={"fsync": "off"}) as server:
        yield server
