"""Fixtures of the tests that hold the public contract, sentence by sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.db import connection

from django_durable.jobtypes import JobType, registry
from tests.contract.committed import empty_tables


@pytest.fixture(autouse=True)
def _forget_job_types() -> Iterator[None]:
    """Forget the job types that a test has defined, so that another may use their names."""
    before = set(registry.names())
    yield
    for name in registry.names():
        kind: JobType | None = registry.find(name)
        if kind is not None and name not in before:
            registry.remove(kind)


@pytest.fixture
def advance(db: None) -> Iterator[Callable[[timedelta], None]]:
    """Move the one clock on, for this test's connection."""

    def move(by: timedelta) -> None:
        connection.durable_clock_offset = (
            getattr(connection, "durable_clock_offset", timedelta(0)) + by
        )

    yield move
    connection.durable_clock_offset = timedelta(0)


@pytest.fixture
def committed(transactional_db: None) -> Iterator[None]:
    """The test database without a transaction around the test, for tests with more connections."""
    empty_tables()
    yield
    empty_tables()
