"""For tests in which several connections must see each other's commits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django.db import connection, connections, transaction

TABLES = ("await", "attempt", "deadletter", "queue", "worker", "step", "signal", "job")
T = TypeVar("T")


def empty_tables() -> None:
    """Delete every row: no lock of a whole table, for which other connections would wait."""
    with connection.cursor() as cursor:
        cursor.execute("".join(f"DELETE FROM durable_{table};" for table in TABLES))


def at_once(number: int, call: Callable[[int], T]) -> list[T | BaseException]:
    """Call it in so many threads, each with its connection, all released at one moment.

    Returns what each returned or raised.
    """
    barrier = threading.Barrier(number)

    def one(place: int) -> Any:
        try:
            # Connected first, so that they meet in the statement and not on the way to it.
            connection.ensure_connection()
            barrier.wait(timeout=30)
            return call(place)
        except Exception as error:  # noqa: BLE001 - the test judges it
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(one, range(number)))


def elsewhere(call: Callable[[], T]) -> T:
    """Call it on another connection and return what it returns."""
    (answer,) = at_once(1, lambda _: call())
    if isinstance(answer, BaseException):
        raise answer
    return answer


@contextmanager
def rolled_back(using: str | None = None) -> Iterator[None]:
    """Open a transaction, or a savepoint in one, that is undone at its end."""
    with transaction.atomic(using=using):
        yield
        transaction.set_rollback(True, using=using)


def backend_pid() -> int:
    """Return the process of the server that serves this thread's connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid: int = cursor.fetchone()[0]
        return pid


class Racer:
    """Make a call on another connection, which may have to wait for a lock."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._pid: SimpleQueue[int] = SimpleQueue()
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(self._run, call)

    def _run(self, call: Callable[[], Any]) -> Any:
        try:
            self._pid.put(backend_pid())
            return call()
        finally:
            connections.close_all()

    def wait_until_blocked_by(self, pid: int) -> None:
        """Wait until the call waits for a lock of this backend."""
        own = self._pid.get(timeout=30)
        with connection.cursor() as cursor:
            while True:
                cursor.execute("SELECT %s = ANY(pg_blocking_pids(%s))", [pid, own])
                if cursor.fetchone()[0]:
                    return
                assert not self._future.done(), "the call did not wait"

    def answer(self) -> Any:
        """Return what the call returned."""
        answer = self._future.result(timeout=30)
        self._pool.shutdown()
        return answer


def database_url() -> str:
    """Return the address of the test database, for other processes."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    return parts._replace(path=f"/{connection.settings_dict['NAME']}").geturl()


def python_on_the_test_database(code: str) -> subprocess.Popen[str]:
    """Start an interpreter that runs the code with the test project's settings."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "DATABASE_URL": database_url(),
            "DJANGO_SETTINGS_MODULE": "testproject.settings",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
