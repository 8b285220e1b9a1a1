"""Users' code that is asked aside: whatever it does, who asks goes on, and who asks next."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from django_durable import aside, job
from django_durable.aside import Aside
from django_durable.enqueueing import new_job
from django_durable.jobtypes import Call, registry


class Odd(BaseException):
    """Be no Exception."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "LIMIT", 0.2)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    opened = threading.Event()
    yield opened
    opened.set()


def test_without_a_worker_it_is_called_here() -> None:
    assert aside.ask("it", 1, threading.get_ident) == threading.get_ident()


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, SystemExit, Odd]
)
def test_what_is_no_exception_is_raised_as_one(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error("why")

    with pytest.raises(RuntimeError, match=f"{error.__name__}: why"), Aside().asking():
        aside.ask("it", 1, fail)


@pytest.mark.usefixtures("quick")
def test_what_hangs_is_not_asked_again_until_it_has_answered(gate: threading.Event) -> None:
    with Aside().asking():
        with pytest.raises(TimeoutError, match="it has not answered within"):
            aside.ask("it", 1, gate.wait)
        started = time.monotonic()
        for _ in range(3 * aside.MOST):
            with pytest.raises(TimeoutError, match="it has not answered yet"):
                aside.ask("it", 1, gate.wait)
            assert aside.ask("other", 2, lambda: "answer") == "answer"
        assert time.monotonic() - started < 0.2
        gate.set()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                assert aside.ask("it", 1, lambda: "late") == "late"
                break
            except TimeoutError:
                threading.Event().wait(0.01)
        else:
            raise AssertionError("it is never asked again")


@pytest.mark.usefixtures("quick")
def test_so_many_hang_at_once_and_no_more(gate: threading.Event) -> None:
    with Aside().asking():
        for kind in ("it", "other", "third"):
            assert aside.ask(kind, "known", lambda: "answer") == "answer"
        for number in range(aside.MOST_OF_KIND):
            with pytest.raises(TimeoutError, match="within"):
                aside.ask("it", number, gate.wait)
        with pytest.raises(TimeoutError, match="it is not asked, since 4 others"):
            aside.ask("it", "more", gate.wait)
        # Of another kind there is room, until there are too many of all.
        for number in range(aside.MOST - aside.MOST_OF_KIND):
            with pytest.raises(TimeoutError, match="within"):
                aside.ask("other", number, gate.wait)
        with pytest.raises(TimeoutError, match="third is not asked, since 8 others"):
            aside.ask("third", "more", gate.wait)
        # What has answered before is asked all the same.
        for kind in ("it", "other", "third"):
            assert aside.ask(kind, "known", lambda: "answer") == "answer"


def sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


@pytest.mark.usefixtures("quick")
@pytest.mark.django_db(transaction=True)
def test_so_many_have_a_connection_whatever_has_answered_before(gate: threading.Event) -> None:
    """One database that is away may stop each key that was quick until then."""

    def hang() -> None:
        Group.objects.count()
        gate.wait()

    before = sessions()
    with Aside().asking():
        for number in range(2 * aside.MOST_IN_ALL):
            assert aside.ask("it", number, Group.objects.count) == 0
        for number in range(aside.MOST_IN_ALL):
            with pytest.raises(TimeoutError, match="within"):
                aside.ask("it", number, hang)
        for number in range(aside.MOST_IN_ALL, 2 * aside.MOST_IN_ALL):
            with pytest.raises(TimeoutError, match="it is not asked, since 16 others"):
                aside.ask("it", number, hang)
        assert sessions() - before == aside.MOST_IN_ALL
        gate.set()
        end = time.monotonic() + 10
        while sessions() > before:
            assert time.monotonic() < end
            threading.Event().wait(0.02)
        assert aside.ask("it", 0, Group.objects.count) == 0


def _leave_transaction() -> None:
    transaction.atomic().__enter__()
    Group.objects.count()


def _leave_failed() -> None:
    connection.set_autocommit(False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


def _leave_dead() -> None:
    Group.objects.count()
    connection.connection.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("leave", [_leave_transaction, _leave_failed, _leave_dead])
def test_what_is_left_behind_meets_nobody(leave: Callable[[], None]) -> None:
    with Aside().asking():
        before = sessions()
        for _ in range(3):
            try:
                aside.ask("it", 1, leave)
            except Exception as error:  # noqa: BLE001 - the server's own
                assert "division by zero" in str(error)  # noqa: PT017
            assert aside.ask("it", 2, Group.objects.count) == 0
        end = time.monotonic() + 10
        while sessions() > before:
            assert time.monotonic() < end
            threading.Event().wait(0.02)


@pytest.mark.usefixtures("quick")
def test_what_a_key_returns_is_looked_at_aside_too() -> None:
    class Slow:
        def __repr__(self) -> str:
            threading.Event().wait(5)
            return "slow"

    key: Any = lambda: Slow()  # noqa: E731
    slow = job(name="aside.slow", concurrency_key=key)(lambda: None)
    try:
        with pytest.raises(TimeoutError, match="has not answered within"), Aside().asking():
            new_job(Call(slow), [], {})
    finally:
        registry.remove(slow)
