"""Fixtures: a database that workers see, and workers that never outlive their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from tests.processes.harness import WorkerProcess, make_known
from tests.workerapp.notes import Notes

Start = Callable[..., WorkerProcess]


@pytest.fixture(scope="module")
def transactional_db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The test database, where every statement commits; emptied after the module, not each test.

    By then all workers have ended: they would deadlock with what empties it.
    """
    with django_db_blocker.unblock():
        yield
        connection.close()
        call_command("flush", interactive=False, verbosity=0)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """What the jobs of this test note."""
    return Notes(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The folder of the notes, as an argument of jobs."""
    return str(tmp_path)


@pytest.fixture
def queue() -> str:
    """A queue of this test's own, so that no job of another test meets its workers."""
    return f"q-{uuid4()}"


@pytest.fixture
def start(transactional_db: None, tmp_path: Path, queue: str) -> Iterator[Start]:
    """Start workers of the test's queue, with more arguments; all of them end with the test."""
    workers: list[WorkerProcess] = []

    def start_worker(*args: str, **how: str) -> WorkerProcess:
        own = () if any(arg.startswith("--queue-name") for arg in args) else ("-q", queue)
        make_known(queue)
        workers.append(WorkerProcess(tmp_path, *own, *args, **how))
        return workers[-1]

    yield start_worker
    for worker in workers:
        worker.destroy()


@pytest.fixture(scope="module")
def worker(
    transactional_db: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    """One worker of the queue `shared` for the tests of a module that leave it as it was."""
    make_known("shared")
    process = WorkerProcess(
        tmp_path_factory.mktemp("worker"), "-q", "shared", "--poll-interval", "5s"
    )
    try:
        yield process.wait_until_ready()
        process.stop()
    finally:
        process.destroy()
