"""For tests in which several connections must see each other's commits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import connection, connections, transaction

TABLES = ("await", "attempt", "deadletter", "queue", "worker", "job")
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
def rolled_back() -> Iterator[None]:
    """Open a transaction, or a savepoint in one, that is undone at its end."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
