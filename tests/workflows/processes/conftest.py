"""Fixtures: real workers of a queue of the test's own, and the ledger of their workflows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from tests.processes.conftest import folder, notes, queue, start, transactional_db
from tests.workerapp.models import Debit

__all__ = ["folder", "notes", "queue", "start", "transactional_db"]


@pytest.fixture
def ledger(transactional_db: None) -> Iterator[type[Debit]]:
    """The ledger, empty."""
    with connection.schema_editor() as editor:
        editor.create_model(Debit)
    yield Debit
    with connection.schema_editor() as editor:
        editor.delete_model(Debit)
