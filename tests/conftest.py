"""Fixtures of the whole suite."""

import sys
from collections.abc import Iterator

import pytest
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from testproject.embedded import Server

OTHERS = """
SELECT pg_terminate_backend(pid), application_name, state, query FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The test databases; what is still connected in the end must not keep them from going."""
    yield
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute(OTHERS)
            for _ended, *session in cursor.fetchall():
                sys.stderr.write(f"Still connected: {session}\n")
        connection.close()


@pytest.fixture
def private_server() -> Iterator[Server]:
    """A PostgreSQL for one test to stop, crash and restart, apart from the suite's own."""
    with Server(settings={"fsync": "off"}) as server:
        yield server
