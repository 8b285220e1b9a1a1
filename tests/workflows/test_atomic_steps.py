"""Atomic steps by hand: function, record and fence are one transaction."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, transaction
from psycopg.errors import DeadlockDetected

from django_durable import Backoff, JobContext, step, workflow
from django_durable.outcomes import Abandoned
from tests.contract.committed import Racer, elsewhere
from tests.contract.running import Runner
from tests.workflows.driving import (
    AT_ONCE,
    HOUR,
    FlakyError,
    checkpoints,
    fresh,
    go,
    go_one,
    steal,
    value_of,
)

pytestmark = pytest.mark.django_db


def written(name: str = "written") -> int:
    return Group.objects.filter(name__startswith=name).count()


def write(name: str = "written") -> str:
    Group.objects.create(name=name)
    return name


def test_writes_and_record_are_there_together_and_never_again() -> None:
    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> str:
        value: str = context.atomic_step("write", write)
        if context.attempt == 1:
            raise FlakyError
        return value

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == "written"
    assert written() == 1
    assert checkpoints(job) == [("step", "write", "succeeded")]


def test_an_error_undoes_the_writes() -> None:
    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> None:
        def fail() -> None:
            write()
            raise FlakyError

        context.atomic_step("write", fail)

    job = flow.enqueue()
    go(flow)
    assert fresh(job).status == "DEAD"
    assert written() == 0
    assert checkpoints(job) == []


def test_a_lost_claim_undoes_the_writes_and_ends_the_run() -> None:
    @workflow
    def flow(context: JobContext) -> None:
        def lose() -> None:
            write()
            steal(context.job.pk)

        context.atomic_step("write", lose)

    job = flow.enqueue()
    runner = Runner(flow)
    assert isinstance(runner.execute(runner.take()), Abandoned)
    assert written() == 0
    assert checkpoints(job) == []


@pytest.mark.usefixtures("committed")
@pytest.mark.django_db(transaction=True)
def test_a_claim_that_is_taken_while_the_function_runs_undoes_the_writes() -> None:
    @workflow
    def flow(context: JobContext) -> None:
        def lose() -> None:
            write()
            # The row is not locked meanwhile: somebody else can take the job.
            elsewhere(lambda: steal(context.job.pk))

        context.atomic_step("write", lose)

    job = flow.enqueue()
    runner = Runner(flow)
    assert isinstance(runner.execute(runner.take()), Abandoned)
    assert written() == 0
    assert checkpoints(job) == []


def test_a_value_that_cannot_be_stored_undoes_the_writes() -> None:
    @workflow
    def flow(context: JobContext) -> None:
        context.atomic_step("write", lambda: (write(), object()))

    job = flow.enqueue()
    go(flow)
    assert written() == 0
    letter = fresh(job).dead_letter
    assert letter is not None
    assert letter.error_class == "PayloadError"
    assert checkpoints(job) == [("step", "write", "failed")]


def test_the_count_of_a_policy_is_kept_while_the_writes_are_undone(advance: Any) -> None:
    calls: list[int] = []

    @step(backoff=AT_ONCE, max_attempts=3)
    def flaky() -> int:
        write()
        calls.append(1)
        if len(calls) < 3:
            raise FlakyError
        return len(calls)

    @workflow(max_attempts=1)
    def flow(context: JobContext) -> int:
        value: int = context.atomic_step("write", flaky)
        return value

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == 3
    assert written() == 1
    assert job.steps.get().tries == 2


def test_an_atomic_of_the_functions_own_is_a_savepoint() -> None:
    def with_savepoints() -> str:
        with transaction.atomic():
            write("written-1")
        with suppress(FlakyError), transaction.atomic():
            write("written-2")
            raise FlakyError
        return "on"

    @workflow
    def flow(context: JobContext) -> str:
        value: str = context.atomic_step("write", with_savepoints)
        return value

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == "on"
    assert written() == 1


def test_a_job_enqueued_in_an_atomic_step_exists_exactly_once() -> None:
    @workflow
    def other(context: JobContext) -> None: ...

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> None:
        context.atomic_step("enqueue", lambda: other.enqueue().pk)
        if context.attempt == 1:
            raise FlakyError

    job = flow.enqueue()
    go_one(flow)
    go(flow)
    assert value_of(job) is None
    (made,) = go(other)
    assert (made.parent, made.depth) == (None, 0)


@pytest.mark.usefixtures("committed")
@pytest.mark.django_db(transaction=True)
def test_an_error_at_the_commit_undoes_the_record_too() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE one (n int UNIQUE DEFERRABLE INITIALLY DEFERRED);"
            "INSERT INTO one VALUES (1)"
        )
    calls: list[int] = []

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> int:
        def insert() -> int:
            calls.append(1)
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO one VALUES (%s)", [len(calls)])
            return len(calls)

        value: int = context.atomic_step("insert", insert)
        return value

    try:
        job = flow.enqueue()
        go_one(flow)
        assert checkpoints(job) == []
        go(flow)
        assert value_of(job) == 2
    finally:
        connection.close()


@pytest.mark.usefixtures("committed")
@pytest.mark.django_db(transaction=True)
def test_a_deadlock_is_retried_inside_the_step() -> None:
    first, second = (Group.objects.create(name=name) for name in ("first", "second"))
    calls: list[int] = []
    holds_first, holds_second = threading.Event(), threading.Event()

    def other() -> None:
        with connection.cursor() as cursor:
            # So that the workflow is the one that PostgreSQL ends.
            cursor.execute("SET deadlock_timeout TO '60s'")
        with transaction.atomic():
            Group.objects.select_for_update().get(pk=second.pk)
            holds_second.set()
            holds_first.wait(30)
            Group.objects.select_for_update().get(pk=first.pk)

    def both() -> int:
        calls.append(1)
        Group.objects.select_for_update().get(pk=first.pk)
        holds_first.set()
        holds_second.wait(30)
        Group.objects.select_for_update().get(pk=second.pk)
        Group.objects.create(name=f"written {len(calls)}")
        return len(calls)

    @workflow(max_attempts=1)
    def flow(context: JobContext) -> int:
        value: int = context.atomic_step("both", both)
        return value

    job = flow.enqueue()
    racer = Racer(other)
    holds_second.wait(30)
    go(flow)
    racer.answer()
    assert value_of(job) == 2
    assert written() == 1
    assert fresh(job).attempt == 1


def test_any_other_error_of_the_database_is_the_attempts() -> None:
    calls: list[int] = []

    @workflow(max_attempts=1)
    def flow(context: JobContext) -> None:
        def fail() -> None:
            calls.append(1)
            raise OperationalError("the disk is full")

        context.atomic_step("fail", fail)

    job = flow.enqueue()
    go(flow)
    assert fresh(job).status == "DEAD"
    assert len(calls) == 1


@pytest.mark.usefixtures("committed")
@pytest.mark.django_db(transaction=True)
def test_the_idle_limit_is_one_lease_and_ends_with_the_transaction() -> None:
    seen: list[str] = []

    def limit() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            seen.append(cursor.fetchone()[0])

    @workflow
    def flow(context: JobContext) -> None:
        context.lease = timedelta(seconds=7)
        context.atomic_step("limit", limit)
        limit()

    limit()
    job = flow.enqueue()
    go(flow)
    assert value_of(job) is None
    assert seen == [seen[0], "7s", seen[0]]


def test_a_plain_step_keeps_what_its_function_wrote_though_its_record_failed() -> None:
    @workflow
    def flow(context: JobContext) -> None:
        def lose() -> None:
            write()
            steal(context.job.pk)

        context.step("write", lose)

    flow.enqueue()
    runner = Runner(flow)
    assert isinstance(runner.execute(runner.take()), Abandoned)
    assert written() == 1


def test_steps_of_a_policy_wait_between_two_transactions_and_not_in_one(advance: Any) -> None:
    @step(backoff=Backoff(initial=HOUR, jitter=0.0), max_attempts=2)
    def flaky() -> str:
        write()
        if written() and not fresh_run:
            fresh_run.append(1)
            raise FlakyError
        return "at last"

    fresh_run: list[int] = []

    @workflow(max_attempts=1)
    def flow(context: JobContext) -> str:
        value: str = context.atomic_step("write", flaky)
        return value

    job = flow.enqueue()
    (parked,) = go(flow)
    assert (parked.status, written()) == ("WAITING", 0)
    advance(HOUR)
    go(flow)
    assert value_of(job) == "at last"
    assert written() == 1


# What is committed stays the answer, whatever comes after the commit.


def lose_answer() -> None:
    """Let the answer of the next commit be lost with the connection."""
    commit = connection._commit

    def losing() -> None:
        connection._commit = commit
        commit()
        connection.connection.close()
        raise OperationalError("the connection is lost")

    connection._commit = losing


def commit_late() -> None:
    """Let the connection be lost while the commit is under way."""
    commit = connection._commit

    def losing() -> None:
        connection._commit = commit
        raw, connection.connection = connection.connection, None
        threading.Timer(0.3, lambda: (raw.commit(), raw.close())).start()
        raise OperationalError("the connection is lost")

    connection._commit = losing


def raise_in_hook() -> None:
    def hook() -> None:
        raise ConnectionError("the mail server is away")

    transaction.on_commit(hook)


def deadlock_in_hook() -> None:
    def hook() -> None:
        raise OperationalError("deadlock detected") from DeadlockDetected()

    transaction.on_commit(hook)


AFTER = [lose_answer, commit_late, raise_in_hook, deadlock_in_hook]
POLICIES = [
    None,
    {"max_attempts": 1},
    {"max_attempts": 5, "backoff": AT_ONCE},
    {"max_attempts": 5, "backoff": Backoff(initial=timedelta(milliseconds=50), jitter=0.0)},
    {"max_attempts": 5, "backoff": Backoff(initial=HOUR)},
]


@pytest.mark.usefixtures("committed")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_raised_after_the_commit_changes_nothing_of_the_step(
    after: Any, policy: Any, *, is_async: bool
) -> None:
    def debit() -> str:
        after()
        return write()

    func = debit if policy is None else step(**policy)(debit)
    if is_async:

        @workflow
        async def flow(context: JobContext) -> str:
            value: str = await context.aatomic_step("debit", func)
            return value
    else:

        @workflow
        def flow(context: JobContext) -> str:
            value: str = context.atomic_step("debit", func)
            return value

    job = flow.enqueue()
    assert go(flow) == [job]
    assert value_of(job) == "written"
    assert (fresh(job).attempt, written()) == (1, 1)
    assert checkpoints(job) == [("step", "debit", "succeeded")]


@pytest.mark.usefixtures("committed")
@pytest.mark.django_db(transaction=True)
def test_what_is_raised_after_the_commit_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    def flow(context: JobContext) -> str:
        value: str = context.atomic_step("debit", lambda: (raise_in_hook(), write())[1])
        return value

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == "written"
    (record,) = [record for record in caplog.records if "'debit'" in record.getMessage()]
    assert record.exc_info is not None
    assert "the mail server is away" in str(record.exc_info[1])
