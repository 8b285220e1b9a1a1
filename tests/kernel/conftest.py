"""Fixtures of the kernel's tests."""

import math
from collections.abc import Iterator

import pytest
from django.db import connection

from django_durable import faults
from django_durable.store import claiming
from tests.kernel import interleaving, world


@pytest.fixture
def director(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[interleaving.Director]:
    """Two connections whose every interleaving can be tried."""
    # A stopped statement must not look like a slow one, which would change what comes next.
    monkeypatch.setattr(claiming, "SLOW_LOOK", math.inf)
    world.empty_tables()
    made = interleaving.Director()
    faults.hook = interleaving.stop_here
    yield made
    faults.hook = None
    made.close()
    world.empty_tables()


@pytest.fixture
def tables(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Empty tables and a clock that may be moved; a slow machine looks like a quick one."""
    monkeypatch.setattr(claiming, "SLOW_LOOK", math.inf)
    monkeypatch.setattr(claiming, "BUDGETS_REST", 0.0)
    world.empty_tables()
    yield
    connection.durable_clock_offset = world.NOW  # type: ignore[attr-defined]
    world.empty_tables()
