"""Records whose answer is lost, or late: a run goes on with what a replay would be answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_durable import Backoff, JobContext, PermanentFailure, SignalTimeout, step, workflow
from django_durable.models import Job
from tests.contract.committed import elsewhere
from tests.workflows.driving import AT_ONCE, checkpoints, fresh, go, go_one, value_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("committed")]
SOON = Backoff(initial=timedelta(milliseconds=20), jitter=0.0)


@contextmanager
def one_write(what: str) -> Iterator[None]:
    """Let the next write of a checkpoint be stored, and its answer be lost; or be stored late."""
    written: list[Any] = []

    def losing(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if written or "INSERT INTO durable_step" not in sql:
            return execute(sql, params, many, context)
        written.append(sql)
        if what == "lost":
            execute(sql, params, many, context)
        else:
            threading.Timer(0.2, lambda: elsewhere(lambda: _execute(sql, params))).start()
        connection.connection.close()
        raise OperationalError("the connection is lost")

    with connection.execute_wrapper(losing):
        yield
    assert written


def _execute(sql: str, params: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)


@pytest.mark.parametrize("what", ["lost", "late"])
def test_a_value_is_the_one_that_is_recorded(what: str) -> None:
    calls: list[int] = []

    @step(max_attempts=5, backoff=SOON)
    def charge() -> int:
        calls.append(len(calls))
        if len(calls) > 1:
            # By now the first record has arrived.
            threading.Event().wait(0.6)
        return calls[-1]

    @workflow(max_attempts=1)
    def flow(context: JobContext) -> int:
        value: int = context.step("charge", charge)
        return value

    job = flow.enqueue()
    with one_write(what):
        go(flow)
    assert value_of(job) == 0
    assert job.steps.get().value == 0
    # Nobody can know of a write that has yet to come: that a plain step is called again is allowed.
    assert len(calls) == (1 if what == "lost" else 2)


def test_an_error_is_the_one_that_is_recorded() -> None:
    def refuse() -> None:
        raise PermanentFailure("refused")

    @workflow(max_attempts=1)
    def flow(context: JobContext) -> str:
        try:
            context.step("charge", refuse)
        except PermanentFailure as error:
            return str(error)
        return "charged"

    job = flow.enqueue()
    with one_write("lost"):
        go(flow)
    assert value_of(job) == "refused"
    assert checkpoints(job) == [("step", "charge", "failed")]


def test_a_count_of_tries_whose_answer_is_lost_is_not_lost() -> None:
    tries: list[int] = []

    @step(max_attempts=3, backoff=AT_ONCE)
    def flaky() -> int:
        tries.append(1)
        raise ConnectionError

    @workflow(max_attempts=3, backoff=AT_ONCE)
    def flow(context: JobContext) -> None:
        context.step("flaky", flaky)

    job = flow.enqueue()
    with one_write("lost"):
        go(flow)
    assert fresh(job).status == "DEAD"
    assert len(tries) == 3


def lose_commit(what: str) -> None:
    """Let the next commit be done, and its answer be lost; or be done late."""
    commit = connection._commit

    def losing() -> None:
        connection._commit = commit
        raw, connection.connection = connection.connection, None
        if what == "lost":
            raw.commit()
            raw.close()
        else:
            threading.Timer(0.2, lambda: (raw.commit(), raw.close())).start()
        raise OperationalError("the connection is lost")

    connection._commit = losing


@pytest.mark.parametrize("what", ["lost", "late"])
def test_children_whose_birth_has_no_answer_are_born_once(what: str) -> None:
    @workflow(name="lost.child")
    def child(context: JobContext, number: int) -> int:
        return number

    @workflow(name="lost.parent", max_attempts=1)
    def parent(context: JobContext) -> list[bool]:
        calls = [((number,), {}) for number in range(3)]
        lose_commit(what)
        return [job.created for job in context.start_many("children", child, calls)]

    job = parent.enqueue()
    go(parent, child)
    assert value_of(job) == [True] * 3
    children = Job.objects.filter(parent=job).order_by("pk")
    assert [one.return_value for one in children] == [0, 1, 2]
    assert [kind for kind, _name, _status in checkpoints(job)] == ["child"] * 3


@pytest.mark.parametrize("what", ["lost", "late"])
@pytest.mark.parametrize("is_sent", [False, True])
def test_the_answer_of_a_wait_is_the_one_that_is_recorded(what: str, *, is_sent: bool) -> None:
    @workflow(name="lost.waiter", max_attempts=1)
    def waiter(context: JobContext) -> Any:
        lose_commit(what)
        try:
            return context.wait_for_signal("word", timeout=0)
        except SignalTimeout:
            return "timeout"

    job = waiter.enqueue()
    if is_sent:
        job.signal("word", 7)
    go(waiter)
    assert value_of(job) == (7 if is_sent else "timeout")
    assert [status for _kind, _name, status in checkpoints(job)] == [
        "succeeded" if is_sent else "failed"
    ]


@pytest.mark.parametrize("what", ["lost", "late"])
@pytest.mark.parametrize("verb", ["sleep", "gather"])
def test_a_park_whose_answer_is_lost_is_one(what: str, verb: str) -> None:
    seen: list[str] = []

    @workflow(name="lost.kid")
    def kid(context: JobContext) -> int:
        return 7

    @workflow(name="lost.parker", max_attempts=1)
    def parker(context: JobContext) -> Any:
        jobs = [context.start("kid", kid)] if verb == "gather" else []
        if not seen:
            seen.append("begun")
            lose_commit(what)
        try:
            if verb == "gather":
                return context.gather(jobs)
            context.sleep("night", timedelta(seconds=1.5))
        except Exception as error:  # noqa: BLE001 - as users' code may
            seen.append(type(error).__name__)
        return context.step("after", lambda: seen.append("after"))

    job = parker.enqueue()
    go_one(parker)
    assert fresh(job).status == "WAITING"
    assert seen == ["begun"]
    end = time.monotonic() + 20
    while not fresh(job).finished_at:
        assert time.monotonic() < end
        go(parker, kid)
    assert value_of(job) == ([7] if verb == "gather" else None)
    assert fresh(job).attempt == 1
