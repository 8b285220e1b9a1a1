"""Records whose answer is lost, or late: a run goes on with what a replay would be answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_durable import (
    Backoff,
    JobContext,
    PermanentFailure,
    SignalTimeout,
    step,
    store,
    workflow,
)
from django_durable.choices import StepKind, StepStatus
from django_durable.models import Job
from django_durable.outcomes import Abandoned, ParkedRun
from django_durable.steps import MOST_RERUNS
from django_durable.store import Checkpoint, Failure
from tests.contract.committed import elsewhere
from tests.contract.running import Runner
from tests.workflows.driving import AT_ONCE, checkpoints, fresh, go, lose, value_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("committed")]
WAYS = ["lost", "late", "cut"]
SOON = Backoff(initial=timedelta(milliseconds=20), jitter=0.0)


@contextmanager
def one_write(what: str, times: int = 1) -> Iterator[None]:
    """Let the next write of a checkpoint be stored, and its answer be lost; or be stored late.

    Or let the connection be cut before that, so many `times`.
    """
    written: list[Any] = []
    late: list[threading.Timer] = []

    def losing(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if len(written) >= times or "INSERT INTO durable_step" not in sql:
            return execute(sql, params, many, context)
        written.append(sql)
        if what == "lost":
            execute(sql, params, many, context)
        elif what == "late":
            late.append(threading.Timer(0.2, lambda: elsewhere(lambda: _execute(sql, params))))
            late[0].start()
        connection.connection.close()
        raise OperationalError("the connection is lost")

    with connection.execute_wrapper(losing):
        yield
    for timer in late:
        timer.join()
    assert len(written) == times


def _execute(sql: str, params: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)


@pytest.mark.parametrize("what", WAYS)
def test_a_value_is_the_one_that_is_recorded(what: str) -> None:
    calls: list[int] = []

    @step(max_attempts=5, backoff=SOON)
    def charge() -> int:
        calls.append(len(calls))
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
    assert len(calls) == 1


def test_a_value_without_a_policy_is_recorded_though_the_connection_is_cut() -> None:
    calls: list[int] = []

    @workflow(max_attempts=1)
    def flow(context: JobContext) -> int:
        value: int = context.step("charge", lambda: calls.append(1) or 7)
        return value

    job = flow.enqueue()
    with one_write("cut", times=MOST_RERUNS - 1):
        go(flow)
    assert value_of(job) == 7
    assert len(calls) == 1


def test_what_is_refused_again_and_again_is_the_attempts() -> None:
    @workflow(max_attempts=1)
    def flow(context: JobContext) -> None:
        context.step("charge", int)

    flow.enqueue()
    runner = Runner(flow)
    claim = runner.take()
    with one_write("cut", times=MOST_RERUNS):
        outcome = runner.execute(claim)
    connection.close()
    assert isinstance(outcome, Failure)
    assert outcome.error.error_class == "django.db.utils.OperationalError"


def test_nothing_is_repeated_in_a_transaction_of_an_atomic_step() -> None:
    calls: list[int] = []

    @step(max_attempts=2, backoff=AT_ONCE)
    def charge() -> int:
        calls.append(1)
        return len(calls)

    @workflow(max_attempts=1)
    def flow(context: JobContext) -> int:
        value: int = context.atomic_step("charge", charge)
        return value

    job = flow.enqueue()
    with one_write("cut"):
        go(flow)
    # What the function wrote is gone with the transaction.
    assert value_of(job) == len(calls) == 2


@pytest.mark.parametrize("what", WAYS)
def test_an_error_is_the_one_that_is_recorded(what: str) -> None:
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
    with one_write(what):
        go(flow)
    assert value_of(job) == "refused"
    assert checkpoints(job) == [("step", "charge", "failed")]


@pytest.mark.parametrize("what", ["lost", "cut"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_count_of_tries_holds_whichever_record_of_one_is_lost(what: str, at: int) -> None:
    tries: list[int] = []
    lost = ExitStack()

    @step(max_attempts=3, backoff=AT_ONCE)
    def flaky() -> int:
        tries.append(1)
        if len(tries) == at:
            lost.enter_context(one_write(what))
        raise ConnectionError(f"try {len(tries)}")

    @workflow(max_attempts=3, backoff=AT_ONCE)
    def flow(context: JobContext) -> str:
        try:
            context.step("flaky", flaky)
        except Exception as error:  # noqa: BLE001 - as users' code may
            return f"{type(error).__name__}: {error}"
        return "no error"

    job = flow.enqueue()
    with lost:
        go(flow)
    assert value_of(job) == "ConnectionError: try 3"
    assert fresh(job).attempt == 1
    assert len(tries) == job.steps.get().tries == 3
    assert checkpoints(job) == [("step", "flaky", "failed")]


@pytest.mark.parametrize("what", ["lost", "cut"])
def test_a_clock_and_a_short_sleep_go_on_whatever_record_is_lost(what: str) -> None:
    @workflow(max_attempts=1)
    def flow(context: JobContext) -> bool:
        with one_write(what):
            before = context.now("before")
        with one_write(what):
            context.sleep("nap", timedelta(milliseconds=50))
        with one_write(what):
            is_new = context.patched("new")
        return is_new and (context.now("after") - before).total_seconds() >= 0.05

    job = flow.enqueue()
    go(flow)
    assert value_of(job) is True


def lose_commit(what: str, then: Callable[[], object] = int) -> None:
    """Let the next commit be done, and its answer be lost; or be done late, or not at all.

    `then` is called before anybody knows of that.
    """
    commit = connection._commit

    def losing() -> None:
        connection._commit = commit
        raw, connection.connection = connection.connection, None
        if what == "late":
            threading.Timer(0.2, lambda: (raw.commit(), raw.close())).start()
        else:
            # Not left to the server, which would take its time, and hold the locks meanwhile.
            raw.commit() if what == "lost" else raw.rollback()
            raw.close()
        then()
        raise OperationalError("the connection is lost")

    connection._commit = losing


@pytest.mark.parametrize("what", WAYS)
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


@pytest.mark.parametrize("what", WAYS)
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


@pytest.mark.parametrize("what", WAYS)
@pytest.mark.parametrize("verb", ["sleep", "gather", "signal"])
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
            if verb == "signal":
                return context.wait_for_signal("word")
            context.sleep("night", timedelta(seconds=1.5))
        except Exception as error:  # noqa: BLE001 - as users' code may
            seen.append(type(error).__name__)
        return context.step("after", lambda: seen.append("after"))

    job = parker.enqueue()
    runner = Runner(parker)
    assert isinstance(runner.execute(runner.take()), ParkedRun)
    assert fresh(job).status == "WAITING"
    assert seen == ["begun"]
    if verb == "signal":
        job.signal("word", 7)
    end = time.monotonic() + 20
    while not fresh(job).finished_at:
        assert time.monotonic() < end
        go(parker, kid)
    assert value_of(job) == {"gather": [7], "signal": 7, "sleep": None}[verb]
    assert fresh(job).attempt == 1


@pytest.mark.parametrize("verb", ["sleep", "signal"])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_who_has_the_job_after_a_park_without_an_answer_is_told_truly(
    verb: str, *, is_resumed: bool
) -> None:
    """The one who parked has let go of it, also if it runs already; who has lost it has not."""
    runner: list[Runner] = []

    @workflow(name="lost.owner", max_attempts=3, backoff=AT_ONCE)
    def owner(context: JobContext) -> None:
        def then() -> None:
            claims: list[Any] = []
            end = time.monotonic() + 20
            # A rescue and a claim leave what somebody holds at this moment.
            while not claims:
                assert time.monotonic() < end
                if is_resumed:
                    Job.all_objects.filter(pk=context.job.pk).update(due_at=context.job.enqueued_at)
                else:
                    lose(context.job)
                claims = runner[0].claim()

        lose_commit("lost" if is_resumed else "cut", lambda: elsewhere(then))
        if verb == "signal":
            context.wait_for_signal("word")
        context.sleep("night", timedelta(hours=1))

    owner.enqueue()
    runner.append(Runner(owner))
    outcome = runner[0].execute(runner[0].take())
    assert isinstance(outcome, ParkedRun if is_resumed else Abandoned)


@contextmanager
def each_read_cut() -> Iterator[list[str]]:
    """Cut the connection at each statement that has not been cut before; gives their texts."""
    cut: list[str] = []
    kinds = ("SELECT", "WITH", "UPDATE", "INSERT")

    def cutting(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        # Not what asks whether the database is back.
        is_asked_first = "idle_in_transaction_session_timeout" in sql
        if sql in cut or is_asked_first or not sql.lstrip().startswith(kinds):
            return execute(sql, params, many, context)
        cut.append(sql)
        connection.connection.close()
        raise OperationalError("the connection is lost")

    with connection.execute_wrapper(cutting):
        yield cut


def test_whatever_a_verb_asks_is_asked_again_when_the_connection_is_cut() -> None:
    told: list[list[str]] = []

    @workflow(name="cut.child", max_attempts=1)
    def child(context: JobContext, number: int) -> int:
        if number == 2:
            raise PermanentFailure("two")
        return number

    @workflow(name="cut.parent", max_attempts=1)
    def parent(context: JobContext) -> Any:
        others = list(Job.objects.filter(name="cut.other"))
        with each_read_cut() as cut:
            told.append(cut)
            context.check_cancelled()
            context.now("before")
            context.progress(1, 3)
            jobs = context.start_many("child", child, [((number,), {}) for number in range(3)])
            answers = context.gather(jobs + others, return_exceptions=True)
        return [str(answer) for answer in answers]

    @workflow(name="cut.other")
    def other(context: JobContext) -> str:
        return "other"

    other.enqueue()
    job = parent.enqueue()
    for _ in range(3):
        go(parent, child, other)
    answers = value_of(job)
    assert answers[:2] == ["0", "1"]
    assert "two" in answers[2]
    assert answers[3] == "other"
    assert fresh(job).attempt == 1
    assert sum(map(len, told)) > 8


def test_an_undo_job_goes_on_though_its_reads_are_cut() -> None:
    undone: list[int] = []

    @step(compensate=lambda value, _: undone.append(value))
    def charge(amount: int) -> int:
        return amount

    @workflow(name="cut.undone", max_attempts=1)
    def flow(context: JobContext) -> None:
        for amount in range(2):
            context.step(f"charge-{amount}", charge, amount)
        raise PermanentFailure("no")

    flow.enqueue()
    runner = Runner(flow)
    runner.record(runner.execute(runner.take()))
    undo = Job.objects.get(metadata__has_key="undo")
    claim = runner.take()
    assert claim.id == undo.pk
    with each_read_cut() as cut:
        outcome = runner.execute(claim)
    runner.record(outcome)
    assert fresh(undo).status == "SUCCESSFUL"
    assert undone == [1, 0]
    assert fresh(undo).attempt == 1
    assert len(cut) > 3


def test_a_wait_is_over_when_it_was_to_be_though_the_answer_of_its_record_was_lost() -> None:
    @workflow(name="cut.waiter", max_attempts=1)
    def waiter(context: JobContext) -> None:
        pass

    job = waiter.enqueue()
    runner = Runner(waiter)
    claim = runner.take()
    wait = Checkpoint(
        (claim.id, claim.epoch), StepKind.SLEEP, "nap", 1, StepStatus.PENDING, delay=60.0
    )
    first = store.record_checkpoints(connection, [wait])
    again = store.record_checkpoints(connection, [wait])
    together = store.record_checkpoints(connection, [wait, replace(wait, name="other")])
    assert first.wake_at == again.wake_at == job.steps.get(name="nap").wake_at
    assert together.wake_at > first.wake_at
    # A try that follows has a wait of its own.
    following = store.record_checkpoints(connection, [replace(wait, tries=1)])
    assert following.wake_at > first.wake_at
